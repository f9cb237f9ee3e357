package faults_test

import (
	"strings"
	"syscall"
	"testing"
	"time"

	"spectral/internal/core/events"
	"spectral/tests/faults/ledger"
	"spectral/tests/faults/process"
	"spectral/tests/faults/proxy"
	"spectral/tests/pgtest"
)

// holder is the id of the worker that has an event in flight.
const holder = "split_part(claimed_by, ' ', 1)"

// A worker that stands still for longer than its lease has lost its event to another, and finds out
// whatever it does next: nothing that it does may change the row, or have an effect.
func TestAZombieLosesItsLease(t *testing.T) {
	const key = doAwait + "-1"
	for name, wakes := range map[string]func(b *leased, zombie *process.Process){ // before it goes on
		"when it settles":  func(b *leased, zombie *process.Process) { b.tell(key, zombie.PID(), "") },
		"when it retries":  func(b *leased, zombie *process.Process) { b.tell(key, zombie.PID(), refuse) },
		"when it fails":    func(b *leased, zombie *process.Process) { b.tell(key, zombie.PID(), refuseForGood) },
		"when it renews":   func(*leased, *process.Process) {},
		"when it releases": func(_ *leased, zombie *process.Process) { zombie.Signal(syscall.SIGTERM) },
	} {
		t.Run(name, func(t *testing.T) {
			b := setup(t).leased(errands{Lease: time.Second, Grace: time.Millisecond}, nil)
			zombie := b.run()
			b.publish(key)
			b.awaitBegun(key, 1)
			zombie.Freeze()
			other := b.run()
			second := b.awaitBegun(key, 2)
			if second.PID != other.PID() {
				t.Fatalf("the second execution is %+v", second)
			}
			const whose = "concat_ws(' ', status, attempts, claim_token, claimed_by, crashes, last_error, handler_failures, failure_history)"
			taken := b.column(key, whose)
			wakes(b, zombie)
			zombie.Thaw()
			zombie.Await(t, leaseLost, 1, patience)
			b.wantColumn(key, whose, taken)
			b.wantColumn(key, holder, second.Worker)
			b.tell(key, other.PID(), "")
			b.verify(ledger.Expect{Within: patience, MaxAttempts: 2})
			b.wantExecuted(key, 2)
			b.wantColumn(key, "attempts", "2")
		})
	}
}

// What a zombie brings after its event was settled leaves the row as it is.
func TestAZombieComesTooLate(t *testing.T) {
	const key = doAwait + "-1"
	b := setup(t).leased(errands{Lease: time.Second}, nil)
	zombie := b.run()
	b.publish(key)
	b.awaitBegun(key, 1)
	zombie.Freeze()
	b.run()
	b.awaitBegun(key, 2)
	b.open(key)
	b.awaitStatus(key, "delivered")
	settled := b.column(key, "o")
	zombie.Thaw()
	zombie.Await(t, leaseLost, 1, patience)
	b.wantColumn(key, "o", settled)
	b.verify(ledger.Expect{Within: patience, MaxAttempts: 2})
	b.wantExecuted(key, 2)
}

// Nobody else was there to take the event; its lease has run out all the same.
func TestALoneZombieStartsAnew(t *testing.T) {
	const key = doAwait + "-1"
	b := setup(t).leased(errands{Lease: time.Second}, nil)
	zombie := b.run()
	b.publish(key)
	b.awaitBegun(key, 1)
	zombie.Freeze()
	b.awaitExpired(key)
	b.open(key) // it brings what it has at once
	zombie.Thaw()
	b.verify(ledger.Expect{Within: patience, MaxAttempts: 2})
	zombie.Await(t, leaseLost, 1, patience)
	b.wantExecuted(key, 2)
	b.wantColumn(key, "attempts", "2")
}

// A worker that is started in the place of another, with all that it had but its life, is another: it gets
// nothing of what that one holds before the lease has run out, which VerifyLeases sees to.
func TestARestartedWorkerIsAnother(t *testing.T) {
	const key = doAwait + "-1"
	b := setup(t).leased(errands{Lease: 2 * time.Second}, nil)
	old := b.run()
	b.publish(key)
	first := b.awaitBegun(key, 1)
	b.wantColumn(key, holder, first.Worker)
	old.Kill()
	old.AwaitExit(t, grace)
	b.run()
	b.publish(neighbour(1))
	b.awaitStatus(neighbour(1), "delivered") // it works
	b.wantColumn(key, "status || ' ' || "+holder, "in_flight "+first.Worker)
	second := b.awaitBegun(key, 2)
	b.wantColumn(key, holder, second.Worker)
	if second.Worker == first.Worker {
		t.Errorf("both are worker %s", first.Worker)
	}
	b.open(key)
	totals := b.verify(ledger.Expect{Within: patience, MaxAttempts: 2})
	if totals.Repeats != 1 || totals.Because["reaped"] != 1 {
		t.Error(totals)
	}
}

// What is done within the grace is delivered; what is not is given back as if nothing had been, and another
// worker has it at once, however long the lease.
func TestTerminatedWorkerReleasesItsLeases(t *testing.T) {
	const quick, slow = doAwait + "-quick", doAwait + "-slow"
	b := setup(t).leased(errands{Lease: time.Hour, Grace: 2 * time.Second}, nil)
	old := b.run()
	b.publish(quick, slow)
	b.awaitBegun(quick, 1)
	b.awaitBegun(slow, 1)
	next := b.run()
	old.Signal(syscall.SIGTERM)
	b.open(quick)
	b.awaitStatus(quick, "delivered")
	b.publish(neighbour(1)) // not for who is about to go
	old.AwaitExit(t, b.Grace+grace)
	if second := b.awaitBegun(slow, 2); second.PID != next.PID() {
		t.Errorf("the second execution is %+v", second)
	}
	told := b.executions(slow)[0].Ended
	if told != events.ErrStopping.Error() {
		t.Errorf("the first was told %q", told)
	}
	refunded := one[int](b.bundle, "select count(*) from faults.leases where ended = 'released' and refunded")
	if refunded != 1 {
		t.Errorf("%d leases were released and refunded, want 1", refunded)
	}
	b.open(slow)
	totals := b.verify(ledger.Expect{Within: patience, MaxDelay: patience})
	if totals.Repeats != 1 || totals.Because["released"] != 1 {
		t.Error(totals)
	}
}

// commits of leased work, and what is lost if nobody knows what became of one.
var commits = map[string]struct {
	text  string // of a statement of its transaction
	key   string
	lease time.Duration
	runs  int // executions, of which all but the last fail
}{
	"claim":     {"outbox_lease", neighbour(1), time.Hour, 1},
	"settle":    {"outbox_deliver", neighbour(1), time.Hour, 1},
	"retry":     {"outbox_retry", doBalk + "-1", time.Hour, 2},
	"heartbeat": {"outbox_heartbeat", doAwait + "-1", 6 * time.Second, 1},
}

func TestAnswerToCommitOfALeaseIsLost(t *testing.T) {
	for at := range commits {
		t.Run(at, func(t *testing.T) { losesCommitOfALease(t, at, proxy.ForwardThenCut) })
	}
}

// losesCommitOfALease does that to a COMMIT. Nobody may wait for a lease to run out because of it, and
// what was executed is not executed again.
func losesCommitOfALease(t *testing.T, at string, verdict proxy.Verdict) {
	t.Helper()
	c := commits[at]
	b := setup(t).leased(errands{Lease: c.lease}, nil)
	pool := proxy.InFrontOf(t, b.worker)
	filter, hit := proxy.Nth(1, verdict, proxy.CommitOf(c.text))
	pool.Filter(filter)
	worker := process.Start(t, b.command(b.worker, pool.URL(t, b.worker)))
	worker.Await(t, listening, 1, patience)
	b.publish(c.key, neighbour(2), neighbour(3))
	select {
	case <-hit:
	case <-time.After(patience):
		t.Fatalf("no COMMIT of %s went through the proxy", c.text)
	}
	if at == "heartbeat" {
		worker.Await(t, notRenewed, 1, patience)
	}
	b.open(c.key)
	totals := b.verify(ledger.Expect{Within: patience, MaxAttempts: c.runs})
	if totals.Executions != c.runs+2 || totals.Leases["reaped"] > 0 {
		t.Error(totals)
	}
	b.publish(afterwards...) // and it goes on
	b.verify(ledger.Expect{Within: patience, MaxAttempts: c.runs})
	worker.Signal(syscall.SIGTERM)
	if code := worker.AwaitExit(t, grace+patience); code != 0 {
		t.Errorf("exit code %d, want 0", code)
	}
	if n := worker.Count(leaseLost) + worker.Count(notSettled); n > 0 {
		t.Errorf("%d times it took a lease for lost", n)
	}
}

// Two events with one idempotency key, at work in two workers at once, and the answer to one's settlement
// is lost: the one that is second writes nothing.
func TestTwinsAtTwoWorkersHaveOneEffect(t *testing.T) {
	const key = doAwait + "-1"
	b := setup(t).leased(errands{Lease: time.Hour, Concurrency: 1}, nil)
	pool := proxy.InFrontOf(t, b.worker)
	filter, hit := proxy.Nth(1, proxy.ForwardThenCut, proxy.CommitOf("outbox_deliver"))
	pool.Filter(filter)
	first, second := process.Start(t, b.command(b.worker, pool.URL(t, b.worker))), b.run()
	first.Await(t, listening, 1, patience)
	_, err := pgtest.Conn(t, b.publisher).Exec(t.Context(), `select core.outbox_publish($1, 'worlds', $2::text::jsonb, p_idempotency_key => 'same')
		from generate_series(1, 2)`, errandType, `{"key": "`+key+`", "do": "`+doAwait+`", "takes_us": 0}`)
	must(t, err)
	b.awaitBegun(key, 2)
	b.tell(key, first.PID(), "")
	<-hit
	b.tell(key, second.PID(), "")
	b.eventually("both are delivered", patience, func() bool {
		return one[int](b.bundle, "select count(*) from core.outbox where status = 'delivered' and attempts = 1") == 2
	})
	if n := one[int](b.bundle, "select count(*) from faults.effects"); n != 1 {
		t.Errorf("%d effects, want 1", n)
	}
	b.wantExecuted(key, 2)
	b.ledger.VerifyLeases(t, b.direct(), b.diary())
}

// Work that makes no progress does not live for ever, however faithfully its lease is renewed.
func TestEndlessWorkIsCutOff(t *testing.T) {
	const key = doEndless + "-1"
	b := setup(t).leased(errands{Lease: 500 * time.Millisecond, Timeout: 1500 * time.Millisecond, Retries: 1}, nil)
	b.run()
	b.publish(key, neighbour(1))
	b.verify(ledger.Expect{Within: patience, Failed: map[string]ledger.Dead{key: {Attempts: 2}}})
	for _, e := range b.executions(key) {
		if e.Ended != "context deadline exceeded" {
			t.Errorf("it was told %q", e.Ended)
		}
	}
	b.wantExecuted(key, 2)
	b.wantColumn(key, "handler_failures -> '"+runner+"' ->> 'class'", "TimeoutError")
	if last := b.column(key, "last_error"); !strings.HasPrefix(last, "TimeoutError: "+runner) {
		t.Errorf("last_error is %q", last)
	}
	if n := one[int](b.bundle, "select count(*) from faults.leases where ended = 'reaped'"); n > 0 {
		t.Errorf("%d leases ran out", n)
	}
}
