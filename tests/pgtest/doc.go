// Package pgtest gives tests a real, migrated Postgres: one server for each test binary, started when first asked for,
// and a database for each test. It also starts hot standbys of that server, and the product's own workers.
//
// The server begins with a copy of a prepared cluster in the cache folder, which the first test binary makes for each
// set of migrations, contracts and version of Postgres. A database goes back into a pool when its test ends: sessions are ended,
// tables emptied, and those that migrating fills are filled again. One whose schema, privileges or settings a
// test changed is dropped, so that a test need not say what it does. Roles belong to the server: a test that
// changes one that is not from [Login] changes it for the tests beside it.
//
// A package that uses it has
//
//	func TestMain(m *testing.M) { pgtest.Main(m) }
package pgtest
