// Package sql_test proves what the migrations make: the schema and privileges as data, functions by tables of calls,
// what each role may not do, and that SQL refuses what Go refuses.
package sql_test
