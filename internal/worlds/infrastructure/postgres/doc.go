// Package postgres stores the aggregates of worlds in schema worlds. Each repository is built for
// one transaction. Only this package uses worldsdb, which is
// generated from db/queries/worlds.
package postgres
