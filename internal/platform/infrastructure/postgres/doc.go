// Package postgres stores the aggregates and projections of platform in schema platform. Each repository is built for
// one transaction. Only this package uses platformdb, which is generated from db/queries/platform.
//
//   - system_cards.go, agent_tasks.go: system cards, and agent tasks with their conversations
//   - decisions.go: decisions, and the override patterns of their rules
//   - curation.go: failure clusters and memories, from which rules are proposed, and the decisions about these
package postgres
