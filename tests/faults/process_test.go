package faults_test

import (
	"syscall"
	"testing"
	"time"

	"spectral/tests/faults/ledger"
)

// grace is how long a worker may take to end after its handlers have ended.
const grace = 5 * time.Second

// stopping is what a worker logs when it begins to stop.
const stopping = "stopping: waiting for running handlers"

func TestTerminatedWorkerFinishesItsHandlers(t *testing.T) {
	b := setup(t)
	l := ledger.New(ledger.Cards())
	worker := b.run(b.worker, "")
	held := b.lockCard("held-1")
	l.Publish(t, b.publisher, "held-1", "k000001", "k000002")
	held.awaitHandler()
	worker.Signal(syscall.SIGTERM)
	worker.Await(t, stopping, 1, grace)
	l.Publish(t, b.publisher, "k000003") // for the next worker
	held.release()
	if code := worker.AwaitExit(t, grace); code != 0 {
		t.Errorf("exit code %d, want 0", code)
	}
	if got, want := b.card("held-1"), (row{"delivered", 1}); got != want {
		t.Errorf("the running event is %v, want %v", got, want)
	}
	b.run(b.worker, "")
	l.Verify(t, b.direct(), ledger.Expect{Within: testTimeout})
}

func TestEventsOfKilledWorkerAreDelivered(t *testing.T) {
	b := setup(t)
	l := ledger.New(ledger.Cards())
	worker := b.run(b.worker, "")
	held := b.lockCard("held-1")
	l.Publish(t, b.publisher, "held-1", "k000001", "k000002")
	held.awaitHandler()
	worker.Kill()
	worker.AwaitExit(t, grace)
	held.release()
	b.run(b.worker, "")
	l.Verify(t, b.direct(), ledger.Expect{Within: testTimeout})
}
