package faults_test

import (
	"os"
	"strings"
	"time"

	"spectral/internal/app"
	"spectral/internal/core/events"
	"spectral/tests/faults/ledger"
	"spectral/tests/faults/process"
)

// What workers log of leases.
const (
	leaseLost  = "lease lost, or event settled already: this result is dropped"
	notRenewed = "leases could not be renewed"
)

// lease is renewed often enough for a test to see it, and outlasts what a loaded machine does to a worker.
const lease = 30 * time.Second

// leased is a bundle with errands to be run.
type leased struct {
	*bundle
	errands
	ledger *ledger.Ledger
}

// leased prepares errands; what is not set of how they are run gets a default. Takes may be nil: no time.
func (b *bundle) leased(r errands, takes func(n int) time.Duration) *leased {
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
	if takes == nil {
		takes = func(int) time.Duration { return 0 }
	}
	ledger.WatchLeases(b.T, b.direct())
	b.register()
	return &leased{bundle: b, errands: r, ledger: ledger.New(errandKind(r, takes))}
}

// command is a worker that runs errands; pool may be empty.
func (b *leased) command(direct, pool string) process.Command {
	b.Helper()
	c := b.testCommand(leasing)
	environment, err := b.environment()
	must(b.T, err)
	c.Env = append(c.Env, environment, app.EnvDatabaseURL+"="+direct, app.EnvPoolURL+"="+pool)
	return c
}

// run starts a worker and returns when it listens.
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

// open lets errands go on that await it.
func (b *leased) open(keys ...string) {
	b.Helper()
	for _, key := range keys {
		b.tell(key, 0, "")
	}
}

// tell writes to a gate.
func (b *leased) tell(key string, pid int, text string) {
	b.Helper()
	gate := b.gate(key, pid)
	hidden := strings.Replace(gate, "gate-", "new-", 1)
	must(b.T, os.WriteFile(hidden, []byte(text), 0o600))
	must(b.T, os.Rename(hidden, gate))
}

// executions are those of an event by the runner so far.
func (b *leased) executions(key string) (found []ledger.Execution) {
	b.Helper()
	all, err := b.diary().Read()
	must(b.T, err)
	for _, e := range all {
		if e.Key == key && e.Handler == runner {
			found = append(found, e)
		}
	}
	return found
}

// awaitBegun returns the n-th execution of an event, from 1, once it has begun.
func (b *leased) awaitBegun(key string, n int) ledger.Execution {
	b.Helper()
	var found []ledger.Execution
	b.eventually(key+" is being worked on", testTimeout, func() bool { found = b.executions(key); return len(found) >= n })
	return found[n-1]
}

// expire lets all leases have run out.
func (b *leased) expire() {
	b.Helper()
	b.expireWhere("true")
}

// expireWhere lets the leases of some rows have run out. It passes over locked rows: a frozen worker keeps its locks for a while.
func (b *leased) expireWhere(condition string) {
	b.Helper()
	one[int](b.bundle, `with expired as (update core.outbox set lease_seconds = 1e-6 where id in
			(select id from core.outbox where status = 'in_flight' and (`+condition+`) for update skip locked) returning 1)
		select count(*) from expired`)
}

// awaitStatus returns once an event has a status.
func (b *leased) awaitStatus(key, status string) {
	b.Helper()
	b.eventually(key+" is "+status, testTimeout, func() bool { return b.column(key, "status") == status })
}

// column reads SQL of an event's row as text.
func (b *leased) column(key, sql string) string {
	b.Helper()
	return one[string](b.bundle, "select coalesce(("+sql+")::text, '') from core.outbox o where payload ->> 'key' = $1", key)
}

// wantColumn compares.
func (b *leased) wantColumn(key, sql, want string) {
	b.Helper()
	if got := b.column(key, sql); got != want {
		b.Errorf("%s: %s is %q, want %q", key, sql, got, want)
	}
}

// wantExecuted fails unless an event was executed so often.
func (b *leased) wantExecuted(key string, times int) {
	b.Helper()
	if n := len(b.executions(key)); n != times {
		b.Errorf("%s was executed %d times, want %d: %+v", key, n, times, b.executions(key))
	}
}

// verify holds the ledger, the diary and the database against each other.
func (b *leased) verify(expect ledger.Expect) ledger.Totals {
	b.Helper()
	b.ledger.Verify(b.T, b.direct(), expect)
	totals := b.ledger.VerifyLeases(b.T, b.direct(), b.diary())
	b.Log(totals)
	return totals
}
