// Package postgres stores the aggregates of worlds in schema worlds. Each repository is built for one transaction. Only
// this package uses worldsdb, which is generated from db/queries/worlds.
//
//   - cards.go, scans.go, scan_index.go, rule_health.go, rule_candidates.go, curation_rulings.go: a repository each
package postgres
