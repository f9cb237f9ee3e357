// Package postgres stores the aggregates of worlds in schema worlds. Each repository is built for one transaction. Only
// this package uses worldsdb, which is generated from db/queries/worlds.
//
//   - cards.go: world model cards
//   - scans.go: scans, and the index of their findings
//   - rules.go: rule candidates with the rulings about them, and the health of rules
package postgres
