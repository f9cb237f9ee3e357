// Package application holds the use cases of platform, each one business transaction. Its ports are implemented in
// infrastructure and connected in internal/app.
//
//   - decisions.go: records a decision about a rule's proposal, and decides on a rule candidate
//   - detect_failure_cluster.go: adds a detection to its failure cluster
//   - memories.go: records, promotes and retires memories
//   - dispatch_task.go, run_task.go, control_task.go: dispatch an agent task, run it, and let people control it
//   - tasks.go: the ports of agent tasks: their repository, and their executors
//   - card_briefing.go: an executor that briefs people about a card
//   - unit_of_work.go: the port of a business transaction
package application
