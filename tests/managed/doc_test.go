// Package managed_test runs the product as on a managed Postgres: the login owns the database and may create roles,
// but is no superuser. It tests the oldest and the newest supported version, and moves the database to another
// cluster by dump and restore. All tests have the build tag heavy.
package managed_test
