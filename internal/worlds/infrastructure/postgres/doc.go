// Package postgres stores the aggregates of worlds in schema worlds. Each repository is built for
// one transaction. Package worldsdb, generated from db/queries/worlds, is its own.
package postgres
