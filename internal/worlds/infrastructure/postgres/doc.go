// Package postgres stores the aggregates of worlds in schema worlds. Each repository is built for one transaction. Only
// this package uses worldsdb, which is generated from db/queries/worlds.
//
//   - cards.go, rule_health.go: cards, and the health of rules
//   - scans.go: scans, and the index of their findings
//   - rule_candidates.go: rule candidates, and the rulings on decisions about them
package postgres
