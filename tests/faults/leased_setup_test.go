package faults_test

import (
	"fmt"
	"os"
	"strings"
	"time"

	"spectral/internal/app"
	"spectral/internal/core/events"
	"spectral/tests/faults/ledger"
	"spectral/tests/faults/process"
)

// What workers log about leases.
const (
	leaseLost  = "lease lost, or event settled already: this result is dropped"
	notRenewed = "leases could not be renewed"
)

// lease is short enough for a test to see renewals, and long enough for a slow machine.
const lease = 30 * time.Second

// leased is a bundle whose workers handle jobs in leased mode.
type leased struct {
	*bundle
	jobConfig
	ledger *ledger.Ledger
}

// leased sets up jobs with defaults for the zero fields of r. takes may be nil: jobs take no time.
func (b *bundle) leased(r jobConfig, takes func(n int) time.Duration) *leased {
	b.Helper()
	r.Dir = b.TempDir()
	if r.Concurrency == 0 {
		r.Concurrency = 8
	}
	if r.Retries == 0 {
		r.Retries = events.DefaultRetryPolicy.MaxRetries
	}
	if r.Grace == 0 {
		r.Grace = app.ShutdownGrace
	}
	ledger.RecordLeases(b.T, b.direct())
	b.register()
	handlers := []string{primaryExecutor}
	if r.SecondExecutor {
		handlers = append(handlers, secondExecutor)
	}
	return &leased{bundle: b, jobConfig: r, ledger: ledger.New(kindOf(jobType, takes, handlers...))}
}

// command returns how to run a worker of jobs. pool may be empty.
func (b *leased) command(direct, pool string) process.Command {
	b.Helper()
	c := b.testCommand(leasedJobs)
	environment, err := b.environment()
	must(b.T, err)
	c.Env = append(c.Env, environment, app.EnvDatabaseURL+"="+direct, app.EnvPoolURL+"="+pool)
	return c
}

func (b *leased) run() *process.Process {
	b.Helper()
	p := process.Start(b.T, b.command(b.worker, ""))
	p.Await(b.T, listening, 1, testTimeout)
	return p
}

func (b *leased) publish(keys ...string) {
	b.Helper()
	b.ledger.Publish(b.T, b.publisher, keys...)
}

// open opens the gates of the jobs with the given keys, in every process.
func (b *leased) open(keys ...string) {
	b.Helper()
	for _, key := range keys {
		b.tell(key, 0, "")
	}
}

func (b *leased) tell(key string, pid int, text string) {
	b.Helper()
	gate := b.gate(key, pid)
	temporary := strings.Replace(gate, "gate-", "new-", 1)
	must(b.T, os.WriteFile(temporary, []byte(text), 0o600))
	must(b.T, os.Rename(temporary, gate))
}

// executions returns the calls of the primary executor for a job so far.
func (b *leased) executions(key string) (found []ledger.Execution) {
	b.Helper()
	all, err := b.executionLog().Read()
	must(b.T, err)
	for _, e := range all {
		if e.Key == key && e.Handler == primaryExecutor {
			found = append(found, e)
		}
	}
	return found
}

// awaitExecution waits for the n-th call of the primary executor for a job, from 1.
func (b *leased) awaitExecution(key string, n int) ledger.Execution {
	b.Helper()
	var found []ledger.Execution
	b.eventually(fmt.Sprintf("execution %d of %s", n, key), testTimeout, func() bool {
		found = b.executions(key)
		return len(found) >= n
	})
	return found[n-1]
}

// expire makes all leases of now expire. A worker that was frozen or lost its connection may keep a row locked for a
// while.
func (b *leased) expire() {
	b.Helper()
	leases := one[[]string](b.bundle,
		"select coalesce(array_agg(claim_token::text), '{}') from core.outbox where status = 'in_flight'")
	theirs := "claim_token = any ('{" + strings.Join(leases, ",") + "}')"
	b.eventually("the end of all leases", testTimeout, func() bool {
		b.expireWhere(theirs)
		return one[int](b.bundle, "select count(*) from core.outbox where lease_seconds > 1 and "+theirs) == 0
	})
}

// expireWhere makes the leases of some rows expire. It skips locked rows, since a frozen worker may keep its locks.
func (b *leased) expireWhere(condition string) {
	b.Helper()
	one[int](b.bundle, `with expired as (update core.outbox set lease_seconds = 1e-6 where id in
			(select id from core.outbox where status = 'in_flight' and (`+condition+`) for update skip locked) returning 1)
		select count(*) from expired`)
}

func (b *leased) awaitStatus(key, status string) {
	b.Helper()
	b.eventually(key+" becoming "+status, testTimeout, func() bool { return b.column(key, "status") == status })
}

// column evaluates sql on a job's row and returns it as text.
func (b *leased) column(key, sql string) string {
	b.Helper()
	const row = " from core.outbox o where payload ->> 'key' = $1"
	return one[string](b.bundle, "select coalesce(("+sql+")::text, '')"+row, key)
}

func (b *leased) wantColumn(key, sql, want string) {
	b.Helper()
	if got := b.column(key, sql); got != want {
		b.Errorf("%s: %s is %q, want %q", key, sql, got, want)
	}
}

func (b *leased) wantExecuted(key string, times int) {
	b.Helper()
	if n := len(b.executions(key)); n != times {
		b.Errorf("%s was executed %d times, want %d: %+v", key, n, times, b.executions(key))
	}
}

// verify compares the ledger and the execution log with the database.
func (b *leased) verify(expect ledger.Expect) ledger.Totals {
	b.Helper()
	b.ledger.Verify(b.T, b.direct(), expect)
	totals := b.ledger.VerifyLeases(b.T, b.direct(), b.executionLog())
	b.Log(totals)
	return totals
}
