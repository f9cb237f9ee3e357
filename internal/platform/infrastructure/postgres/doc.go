// Package postgres stores the aggregates and projections of platform in schema platform. Each
// repository is built for one transaction. Only this package uses platformdb, which is
// generated from db/queries/platform.
package postgres
