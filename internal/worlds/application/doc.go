// Package application holds the use cases of worlds, each one business transaction. Its ports are implemented in
// infrastructure and connected in internal/app.
//
//   - publish_card.go: stores and publishes a version of a card
//   - look_up_card.go: answers other contexts about a card
//   - scans.go: starts and completes scans
//   - propose_candidate.go: makes a rule candidate of a failure cluster or a memory
//   - apply_decision.go: applies a curation decision to its candidate
//   - unit_of_work.go: the port of a business transaction
package application
