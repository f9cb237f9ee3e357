// Package events holds worlds' event handlers. Each parses a payload into its own struct and does what the event means
// to worlds, in the claiming transaction. Package internal/app wires them to the worker.
//
//   - rule_health_recorder.go: counts decisions about the proposals of a rule
//   - scan_completed_indexer.go: indexes the findings of a scan
//   - candidate_proposers.go: propose a rule against a failure cluster, and one from a promoted memory
//   - curation_decision_applier.go: applies curation decisions
package events
