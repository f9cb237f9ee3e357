// Package coredb has the queries of db/queries/core, as sqlc writes them, but for the files below.
//
//   - claim.go: the query of a claim, whose rows its caller reads
package coredb
