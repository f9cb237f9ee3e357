// Package events holds platform's event handlers. Each parses a payload into its own struct and does what the event
// means to platform, in the claiming transaction or under a lease. Package internal/app wires them to the worker.
//
//   - world_model_card_projector.go: keeps system cards at their latest version
//   - decision_recorded_aggregator.go: adds decisions to the override patterns of their rules
//   - curation_outcome_recorder.go: records what worlds made of a curation decision
//   - agent_task_runner.go: runs dispatched tasks
package events
