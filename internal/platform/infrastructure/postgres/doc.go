// Package postgres stores the aggregates and projections of platform in schema platform. Each
// repository is built for one transaction. Package platformdb, generated from
// db/queries/platform, is its own.
package postgres
