//go:build heavy

package faults_test

import (
	"fmt"
	"syscall"
	"testing"
	"time"

	"spectral/tests/faults/ledger"
	"spectral/tests/faults/process"
	"spectral/tests/faults/proxy"
)

func TestRollingRestart(t *testing.T) {
	b := setup(t)
	l := ledger.New(ledger.Cards(nil))
	running := b.runAll(3, b.worker, "")
	load := l.Start(t, ledger.Load{URL: b.publisher, Publishers: 4, Rate: 25, PerTx: 5, Seed: seed(t)})
	for i := range 6 {
		letRun(t, 2500*time.Millisecond) // so seldom that a starting worker's first look is no substitute for a ring
		old := running[i%3]
		old.Signal(syscall.SIGTERM)
		if code := old.AwaitExit(t, grace); code != 0 {
			t.Errorf("restart %d: exit code %d, want 0", i, code)
		}
		running[i%3] = b.run(b.worker, "")
	}
	load.Stop()
	l.Verify(t, b.direct(), ledger.Expect{Within: testTimeout})
}

// A worker that is stopped in the middle of a handler (a frozen container, a paused machine) must not
// hold its row for ever.
func TestFrozenInTheMiddleOfAHandler(t *testing.T) {
	b := setup(t)
	l := ledger.New(ledger.Cards(nil))
	frozen := b.run(b.worker, "")
	held := b.hold("held-1")
	l.Publish(t, b.publisher, "held-1", "k000001", "k000002")
	held.awaitEntered()
	other := b.run(b.worker, "")
	frozen.Freeze()
	held.letGo() // its statement ends, but nobody is there to read that
	b.eventually("another worker has delivered what the frozen one held", 75*time.Second, func() bool {
		return b.card("held-1").Status == "delivered"
	})
	frozen.Thaw()
	// it goes on: alone, it delivers what comes
	other.Signal(syscall.SIGTERM)
	other.AwaitExit(t, grace)
	l.Publish(t, b.publisher, "k000003")
	l.Verify(t, b.direct(), ledger.Expect{Within: testTimeout})
}

// A worker dies just before its n-th statement arrives, for every n of a dispatch.
func TestKilledBetweenAnyTwoStatements(t *testing.T) {
	// an event that runs alone when its worker dies is charged with one crash
	for first := range parts {
		t.Run(fmt.Sprint("from ", first+1), func(t *testing.T) { killsBetween(t, []string{"a"}, proxy.Freeze, 2, first+1) })
	}
}

const parts = 4 // of the statements, side by side

func killsBetween(t *testing.T, keys []string, verdict proxy.Verdict, maxAttempts, first int) {
	t.Helper()
	b := setup(t)
	l := ledger.New(ledger.Cards(nil))
	pool := proxy.InFrontOf(t, b.worker)
	command := b.command(b.worker, pool.URL(t, b.worker))
	quiet := func() bool { return one[int](b, "select count(*) from core.outbox where status = 'pending'") == 0 }
	for n := first; ; n += parts {
		worker := process.Start(t, command)
		worker.Await(t, listening, 1, testTimeout)
		b.eventually("what the last one left is delivered", testTimeout, quiet)
		filter, hit := proxy.Nth(n, verdict, proxy.Statement)
		pool.Filter(filter)
		published := make([]string, len(keys))
		for i, key := range keys {
			published[i] = fmt.Sprintf("%s%d", key, n)
		}
		l.Publish(t, b.publisher, published...)
		reached := func() bool {
			select {
			case <-hit:
				return true
			default:
				return false
			}
		}
		b.eventually("the worker comes to the statement or the end", testTimeout, func() bool { return reached() || quiet() })
		killed := reached() // a further runner may have delivered what the one that was halted had not claimed
		worker.Kill()
		worker.AwaitExit(t, grace)
		pool.Filter(nil)
		pool.Cut()
		if !killed { // there are no more statements than that in a dispatch
			t.Logf("a dispatch has fewer than %d statements", n)
			break
		}
	}
	b.run(b.worker, "")
	l.Verify(t, b.direct(), ledger.Expect{Within: testTimeout, MaxAttempts: maxAttempts})
}

// A handler that ends its process: the event is failed after five crashes, and those that were claimed with it, or run beside
// it, are charged with nothing.
func TestHandlerThatEndsItsProcess(t *testing.T) {
	t.Run(doKill, func(t *testing.T) { endsItsProcess(t, doKill, unlimited, 50, neighbour) })
	// these are at work, in runners of their own, whenever the process ends
	slow := func(i int) string { return fmt.Sprintf("%s-%d", doDawdle, i) }
	t.Run("beside few slow ones", func(t *testing.T) { endsItsProcess(t, doExit, unlimited, 3, slow) })
}

func endsItsProcess(t *testing.T, do, memory string, neighbours int, neighbour func(int) string) {
	t.Helper()
	b := setup(t)
	b.register()
	l := ledger.New(deeds())
	killer := do + "-1"
	keys := make([]string, 0, neighbours+1)
	for i := range neighbours + 1 {
		keys = append(keys, neighbour(i))
	}
	keys[neighbours/2] = killer
	l.Publish(t, b.publisher, keys...)
	supervisor := process.Supervise(t, b.testCommand(memory), restartPause)
	dead := ledger.Dead{Attempts: 4} // the first crash was also that of the batch
	l.Verify(t, b.direct(), ledger.Expect{Within: 6 * testTimeout, Failed: map[string]ledger.Dead{killer: dead}})
	t.Logf("%d restarts", supervisor.Restarts())
}
