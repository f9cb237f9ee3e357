// Package pgtest gives tests a real, migrated Postgres: one server for each test binary, started
// when first asked for, and a database of its own for each test, cloned from a migrated template.
// It also starts hot standbys of that server, and the product's own workers.
//
// A package that uses it has
//
//	func TestMain(m *testing.M) { pgtest.Main(m) }
package pgtest
