// Package domain holds the rules of worlds. It knows neither the database nor events.
//
//   - world_model_card.go: a small versioned document about a place or thing
//   - scan.go: scans and their findings
//   - rule_health.go: how often the proposals of a rule are followed
//   - rule_candidate.go: proposed rules, and the decisions about them
package domain
