// Package runbook_test executes docs/runbook.md: each situation on a database that is in that trouble, once by its SQL
// and once by its commands, as the operator that reads it would, and then wants the trouble to be over. A situation
// without a test, and a test without its situation, fail.
package runbook_test
