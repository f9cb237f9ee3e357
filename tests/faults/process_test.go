package faults_test

import (
	"fmt"
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

// A handler that ends its process: the event must end as a dead letter after its retries, and those
// that were claimed with it, or are at work beside it, must not suffer.
func TestHandlerThatEndsItsProcess(t *testing.T) {
	for _, do := range []string{doExit, doKill} {
		t.Run(do, func(t *testing.T) { endsItsProcess(t, do, unlimited, neighbour) })
	}
	t.Run("beside slow ones", func(t *testing.T) {
		endsItsProcess(t, doExit, unlimited, func(i int) string { return fmt.Sprintf("%s-%d", doDawdle, i) })
	})
}

func endsItsProcess(t *testing.T, do, memory string, neighbour func(int) string) {
	t.Helper()
	b := setup(t)
	b.register()
	l := ledger.New(deeds())
	killer := do + "-1"
	keys := make([]string, 0, 51)
	for i := range 51 {
		keys = append(keys, neighbour(i))
	}
	keys[25] = killer
	l.Publish(t, b.publisher, keys...)
	supervisor := process.Supervise(t, b.testCommand(memory), restartPause)
	// once its killer is parked, the other handler has its turn
	dead := ledger.Dead{Attempts: 1 + quickly.MaxRetries + 1, Handled: []string{witness}}
	// a neighbour that another runner has in hand, alone, when the process ends is charged as well
	l.Verify(t, b.direct(), ledger.Expect{Within: 3 * patience, Failed: map[string]ledger.Dead{killer: dead}, MaxAttempts: quickly.MaxRetries})
	t.Logf("%d restarts", supervisor.Restarts())
}
