// Package events holds the payloads of the events that worlds publishes: the only definition of their form. A version
// may only get new optional fields; a breaking change is a new event type. Consumers parse their own structs. Only
// internal/app and the contract tests import this package.
//
//   - world_model_card_published.go: a version of a card was published
//   - scan_completed.go: a scan has ended
//   - rule_candidate_proposed.go: a rule was proposed
//   - curation_applied.go: a curation decision was applied or refused
package events
