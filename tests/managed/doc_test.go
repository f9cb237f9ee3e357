// Package managed_test runs the product as it is run on a managed Postgres: by a login that owns the database and may
// create roles, and is no superuser, on the oldest and the newest version that is supported; and moves it to another cluster by
// dump and restore. All of it is behind the build tag heavy.
package managed_test
