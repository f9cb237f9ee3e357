// Package demo implements `workers demo`. It publishes world model cards through the use case of worlds, each in its
// own business transaction, and shows them arrive as system cards of platform. Or it runs every flow once, step by
// step.
//
//   - demo.go: publishes cards, and reports the progress and the totals
//   - cards.go: the cards, made up or read from the input
//   - flows.go: runs flows, and waits for their events
//   - flows_cards.go: the flows of cards, scans and tasks
//   - telemetry.go: the trace and the metrics of one card
//   - flows_rules.go: the flows of decisions, failure clusters, memories and curation
//
// It uses the parts of a worker process and adds none.
package demo
