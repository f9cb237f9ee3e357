// Package events holds the payloads of the events that platform publishes: the only definition of their form. A version
// may only get new optional fields; a breaking change is a new event type. Consumers parse their own structs. Only
// internal/app and the contract tests import this package.
//
//   - decision_recorded.go: a decision about a rule's proposal was recorded
//   - failure_cluster_detected.go: a failure cluster has grown, in two versions; the first is deprecated
//   - memory_promoted.go: a memory was promoted
//   - curation_decided.go: curators decided on a rule candidate
//   - agent_task_dispatched.go: an agent task waits for a worker
package events
