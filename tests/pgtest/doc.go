// Package pgtest gives tests a real, migrated Postgres: one server for each test binary, started at the first use,
// and a database for each test. It also starts hot standbys of that server and the product's workers.
//
// The server starts on a copy of a prepared cluster in the cache folder. The first test binary prepares it for each
// set of migrations, contracts and version of Postgres. When a test ends, its sessions are terminated, its database
// is emptied and filled as after migrating, and another test reuses it. A database whose schema, privileges or
// settings were changed is dropped. Roles belong to the server: a test that changes a role other than those of
// [Login] affects the tests beside it.
//
// A package that uses pgtest has
//
//	func TestMain(m *testing.M) { pgtest.Main(m) }
//
// Files: pgtest.go has databases and connections, prepared.go the cluster in the cache folder and servers with
// copies of it, pool.go the databases that are reused, contracts.go the product's contracts, standby.go hot standbys,
// workers.go workers.
package pgtest
