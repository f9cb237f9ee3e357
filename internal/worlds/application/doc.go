// Package application holds the use cases of worlds, each one business transaction. Its ports are implemented in
// infrastructure and connected in internal/app.
//
//   - cards.go: stores and publishes a version of a card, and answers other contexts about it
//   - scans.go: starts and completes scans
//   - candidates.go: makes a rule candidate of a failure cluster or a memory, and applies curation decisions to it
//   - unit_of_work.go: the port of a business transaction
package application
