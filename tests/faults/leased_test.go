package faults_test

import (
	"syscall"
	"testing"
	"time"

	"spectral/internal/core/events"
	"spectral/tests/faults/ledger"
	"spectral/tests/faults/process"
)

// holder is the id of the worker that has an event in flight.
const holder = "split_part(claimed_by, ' ', 1)"

// A worker that stands still until its lease has run out has lost its event to another. Nothing that it does then may
// change the row, or have an effect.
func TestZombiesWriteNothing(t *testing.T) {
	zombieWritesNothing(t, func(b *leased, zombie *process.Process) {
		b.tell(zombieKey, zombie.PID(), "")
		zombie.Thaw()
		zombie.Await(t, leaseLost, 1, testTimeout)
	})
}

const zombieKey = doAwait + "-1"

func zombieWritesNothing(t *testing.T, wakes func(b *leased, zombie *process.Process)) {
	t.Helper()
	b := setup(t).leased(errands{Lease: lease, Grace: time.Millisecond}, nil)
	zombie := b.run()
	b.publish(zombieKey)
	b.awaitBegun(zombieKey, 1)
	zombie.Freeze()
	b.expire()
	other := b.run()
	second := b.awaitBegun(zombieKey, 2)
	if second.PID != other.PID() {
		t.Fatalf("the second execution is %+v", second)
	}
	const whose = "concat_ws(' ', status, attempts, claim_token, claimed_by, crashes, last_error, handler_failures, failure_history)"
	taken := b.column(zombieKey, whose)
	wakes(b, zombie)
	b.wantColumn(zombieKey, whose, taken)
	b.wantColumn(zombieKey, holder, second.Worker)
	b.tell(zombieKey, other.PID(), "")
	b.verify(ledger.Expect{Within: testTimeout, MaxAttempts: 2})
	b.wantExecuted(zombieKey, 2)
	b.wantColumn(zombieKey, "attempts", "2")
}

// A worker that is started in the place of another, with all that it had but its life, is another: it gets
// nothing of what that one holds before the lease has run out, which VerifyLeases sees to.
func TestRestartedWorkersInheritNoLease(t *testing.T) {
	const key = doAwait + "-1"
	b := setup(t).leased(errands{Lease: time.Hour}, nil)
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
	b.expire()
	second := b.awaitBegun(key, 2)
	b.wantColumn(key, holder, second.Worker)
	if second.Worker == first.Worker {
		t.Errorf("both are worker %s", first.Worker)
	}
	b.open(key)
	totals := b.verify(ledger.Expect{Within: testTimeout, MaxAttempts: 2})
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
	totals := b.verify(ledger.Expect{Within: testTimeout})
	if totals.Repeats != 1 || totals.Because["released"] != 1 {
		t.Error(totals)
	}
}
