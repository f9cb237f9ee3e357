// Package database_test proves what the migrations make: the schema and privileges as data, what
// each role may not do, and that SQL refuses what Go refuses.
package database_test
