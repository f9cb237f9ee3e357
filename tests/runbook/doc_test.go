// Package runbook_test executes docs/runbook.md. It brings a database into each situation, executes the situation's SQL
// or its commands as an operator would, and checks that the trouble is over. A situation without a test fails, and so
// does a test without a situation.
package runbook_test
