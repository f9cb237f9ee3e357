// Package postgres stores the aggregates and projections of platform in schema platform. Each repository is built for
// one transaction. Only this package uses platformdb, which is generated from db/queries/platform.
//
//   - system_cards.go, decisions.go (with override patterns), failure_clusters.go, memories.go, curation_decisions.go,
//     agent_tasks.go: a repository each
package postgres
