// Package domain holds the rules of platform. It knows neither the database nor events.
//
//   - system_card.go: a card of another context, at its latest version
//   - decision.go: decisions about proposals, and what they add up to for a rule
//   - failure_cluster.go: failures with the same signature
//   - memory.go: what agents have learned
//   - curation_decision.go: decisions on rule candidates, and their outcome
//   - agent_task.go: agent tasks
package domain
