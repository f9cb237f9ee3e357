package faults_test

import (
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"spectral/tests/faults/ledger"
	"spectral/tests/faults/process"
)

// grace is how long a worker may take to end once its handlers have.
const grace = 5 * time.Second

// stopping is what a worker logs when it is told to stop.
const stopping = "stopping: waiting for handlers at work"

func TestTerminatedWorkerFinishesItsHandlers(t *testing.T) {
	b := setup(t)
	l := ledger.New(ledger.Cards(nil))
	worker := b.run(b.worker, "")
	held := b.hold("held-1")
	l.Publish(t, b.publisher, "held-1", "k000001", "k000002")
	held.awaitEntered()
	worker.Signal(syscall.SIGTERM)
	worker.Await(t, stopping, 1, grace)
	l.Publish(t, b.publisher, "k000003") // for the next worker
	held.letGo()
	if code := worker.AwaitExit(t, grace); code != 0 {
		t.Errorf("exit code %d, want 0", code)
	}
	if got, want := b.card("held-1"), (row{"delivered", 1}); got != want {
		t.Errorf("the event at work is %v, want %v", got, want)
	}
	b.run(b.worker, "")
	l.Verify(t, b.direct(), ledger.Expect{Within: patience})
}

func TestKilledWorkerLeavesItsEvents(t *testing.T) {
	b := setup(t)
	l := ledger.New(ledger.Cards(nil))
	worker := b.run(b.worker, "")
	held := b.hold("held-1")
	l.Publish(t, b.publisher, "held-1", "k000001", "k000002")
	held.awaitEntered()
	worker.Kill()
	worker.AwaitExit(t, grace)
	held.letGo()
	b.run(b.worker, "")
	l.Verify(t, b.direct(), ledger.Expect{Within: patience})
}

// Two workers of one generation with the same handlers are fine. One with others ends, and says which they
// are; killing those that are in its way lets it work.
func TestAWorkerWithOtherHandlersEnds(t *testing.T) {
	b := setup(t)
	l := ledger.New(deeds())
	others := []*process.Process{process.Start(t, b.testCommand(unlimited)), process.Start(t, b.testCommand(unlimited))}
	for _, other := range others {
		other.Await(t, listening, 1, patience)
	}
	refused := process.Start(t, b.testCommand(lone))
	if code := refused.AwaitExit(t, patience); code != 1 {
		t.Errorf("exit code %d, want 1", code)
	}
	b.eventually("it says why", grace, func() bool {
		return slices.ContainsFunc(refused.Entries(), func(e process.Entry) bool {
			return strings.Contains(e.Message(), "a changed set of handlers is a new generation") && strings.Contains(e.Message(), witness)
		})
	})
	l.Publish(t, b.publisher, neighbour(1), neighbour(2))
	l.Verify(t, b.direct(), ledger.Expect{Within: patience})
	wantRunning(t, others)
	for _, other := range others {
		other.Kill()
		other.AwaitExit(t, grace)
	}
	process.Start(t, b.testCommand(lone)).Await(t, listening, 1, patience)
}
