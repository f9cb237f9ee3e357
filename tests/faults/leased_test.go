package faults_test

import (
	"syscall"
	"testing"
	"time"

	"spectral/internal/core/events"
	"spectral/tests/faults/ledger"
	"spectral/tests/faults/process"
)

// holder is SQL for the id of the worker that holds a row's lease.
const holder = "split_part(claimed_by, ' ', 1)"

func TestWorkerWritesNothingAfterItsLeaseExpired(t *testing.T) {
	oldHolderWritesNothing(t, func(b *leased, oldHolder *process.Process) {
		b.tell(contestedKey, oldHolder.PID(), "")
		oldHolder.Thaw()
		oldHolder.Await(t, leaseLost, 1, testTimeout)
	})
}

const contestedKey = doAwait + "-1"

// oldHolderWritesNothing freezes a worker, lets another take its lease, and calls resume to let the first go on.
func oldHolderWritesNothing(t *testing.T, resume func(b *leased, oldHolder *process.Process)) {
	t.Helper()
	b := setup(t).leased(jobConfig{Lease: lease, Grace: time.Millisecond}, nil)
	oldHolder := b.run()
	b.publish(contestedKey)
	b.awaitExecution(contestedKey, 1)
	oldHolder.Freeze()
	b.expire()
	other := b.run()
	second := b.awaitExecution(contestedKey, 2)
	if second.PID != other.PID() {
		t.Fatalf("the second execution is %+v", second)
	}
	const claimColumns = `concat_ws(' ', status, attempts, claim_token, claimed_by, crashes, last_error,
		handler_failures, failure_history)`
	taken := b.column(contestedKey, claimColumns)
	resume(b, oldHolder)
	b.wantColumn(contestedKey, claimColumns, taken)
	b.wantColumn(contestedKey, holder, second.Worker)
	b.tell(contestedKey, other.PID(), "")
	b.verify(ledger.Expect{Within: testTimeout, MaxAttempts: 2})
	b.wantExecuted(contestedKey, 2)
	b.wantColumn(contestedKey, "attempts", "2")
}

// A worker that is started again is a new worker: it gets a lease of the old one only after it expired.
func TestRestartedWorkerInheritsNoLease(t *testing.T) {
	const key = doAwait + "-1"
	b := setup(t).leased(jobConfig{Lease: time.Hour}, nil)
	old := b.run()
	b.publish(key)
	first := b.awaitExecution(key, 1)
	b.wantColumn(key, holder, first.Worker)
	old.Kill()
	old.AwaitExit(t)
	b.run()
	b.publish(plainKey(1))
	b.awaitStatus(plainKey(1), "delivered") // the new worker claims events
	b.wantColumn(key, "status || ' ' || "+holder, "in_flight "+first.Worker)
	b.expire()
	second := b.awaitExecution(key, 2)
	b.wantColumn(key, holder, second.Worker)
	if second.Worker == first.Worker {
		t.Errorf("both are worker %s", first.Worker)
	}
	b.open(key)
	totals := b.verify(ledger.Expect{Within: testTimeout, MaxAttempts: 2})
	if totals.Repeats != 1 || totals.RepeatsAfter["reaped"] != 1 {
		t.Error(totals)
	}
}

// Jobs that end within the grace period are delivered. The others are released without counting an attempt, and
// another worker runs them at once.
func TestTerminatedWorkerReleasesItsLeases(t *testing.T) {
	const quick, slow = doAwait + "-quick", doAwait + "-slow"
	b := setup(t).leased(jobConfig{Lease: time.Hour, Grace: 2 * time.Second}, nil)
	old := b.run()
	b.publish(quick, slow)
	b.awaitExecution(quick, 1)
	b.awaitExecution(slow, 1)
	next := b.run()
	old.Signal(syscall.SIGTERM)
	b.open(quick)
	b.awaitStatus(quick, "delivered")
	b.publish(plainKey(1)) // the stopping worker must not claim it
	old.AwaitExit(t)
	if second := b.awaitExecution(slow, 2); second.PID != next.PID() {
		t.Errorf("the second execution is %+v", second)
	}
	result := b.executions(slow)[0].Result
	if result != events.ErrStopping.Error() {
		t.Errorf("the first execution ended with %q", result)
	}
	refunded := one[int](b.bundle, "select count(*) from faults.leases where ended = 'released' and refunded")
	if refunded != 1 {
		t.Errorf("%d leases were released and refunded, want 1", refunded)
	}
	b.open(slow)
	totals := b.verify(ledger.Expect{Within: testTimeout})
	if totals.Repeats != 1 || totals.RepeatsAfter["released"] != 1 {
		t.Error(totals)
	}
}
