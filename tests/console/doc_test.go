// Package console_test runs the operators' console on a real database: its login, its limits, and what the database
// refuses.
package console_test
