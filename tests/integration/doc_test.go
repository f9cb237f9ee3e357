// Package integration_test runs workers and the product's consumers on a real Postgres: publishing, notification,
// dispatch, retries, failures and operators. setup_test.go has the helpers; each other file covers the topic of its
// name.
package integration_test
