//go:build soak

package faults_test

import (
	"fmt"
	"testing"
	"time"

	"spectral/tests/faults/ledger"
	"spectral/tests/faults/process"
	"spectral/tests/faults/proxy"
	"spectral/tests/pgbouncer"
)

// TestRandomFaultsForLong runs the heavy tests for longer.
func TestRandomFaultsForLong(t *testing.T) {
	t.Run("kills", func(t *testing.T) { killsAtRandom(t, 50) })
	t.Run("lost connections", func(t *testing.T) { losesConnections(t, 60) })
	t.Run("a stalled network", func(t *testing.T) { stallsNetwork(t, time.Minute) })
	t.Run("migrations under twenty workers", func(t *testing.T) { migratesUnderLoad(t, 20, 5) })
	t.Run("leases", func(t *testing.T) { faultsUnderLeases(t, 50) })
	t.Run("out of memory among many", func(t *testing.T) { endsItsProcess(t, doAllocate, memoryLimited, 50, plainKey) })
}

// notListening is what a worker logs while no notification reaches it.
const notListening = "no LISTEN connection: events wait for the poll"

func TestEventsOfKilledWorkerAreDeliveredWithoutNotifications(t *testing.T) {
	b := setup(t)
	l := ledger.New(ledger.Cards())
	worker := b.run(b.worker, "")
	held := b.lockCard("held-1")
	l.Publish(t, b.publisher, "held-1", plainKey(1))
	held.awaitHandler()
	other := process.Start(t, b.command(pgbouncer.Start(t, pgbouncer.Transaction, b.worker).URL, b.worker))
	other.Await(t, notListening, 1, testTimeout)
	worker.Kill()
	worker.AwaitExit(t, grace)
	held.release()
	// The row is reaped after 35 s and found by a poll, which reconnects and self-tests delay.
	l.Verify(t, b.direct(), ledger.Expect{Within: 3 * testTimeout})
}

// Each COMMIT is lost in every way; the heavy test loses each in one way.
func TestAnyLostLeaseCommitRepeatsNothing(t *testing.T) {
	for name, action := range map[string]proxy.Action{
		"before it arrives": proxy.Reset, "its reply": proxy.ForwardThenReset, "no reply, no reset": proxy.DropReplies,
	} {
		for at := range commits {
			t.Run(at+"/"+name, func(t *testing.T) { loseLeaseCommit(t, at, action) })
		}
	}
}

func TestWorkerMayBeKilledAfterAnyStatement(t *testing.T) {
	for first := 1; first <= parts; first++ {
		t.Run("one event/after", func(t *testing.T) { killsAtStatements(t, []string{"a"}, proxy.DropReplies, 2, first) })
		t.Run("a batch/before", func(t *testing.T) { killsAtStatements(t, []string{"a", "b", "c"}, proxy.Freeze, 1, first) })
		t.Run("a batch/after", func(t *testing.T) {
			killsAtStatements(t, []string{"a", "b", "c"}, proxy.DropReplies, 1, first)
		})
	}
}

func TestMoreHandlersThatEndTheirProcessFailAlone(t *testing.T) {
	slow := func(i int) string { return fmt.Sprintf("%s-%d", doSleep, i) }
	t.Run(doExit, func(t *testing.T) { endsItsProcess(t, doExit, unlimited, 50, plainKey) })
	t.Run("among many slow ones", func(t *testing.T) { endsItsProcess(t, doExit, unlimited, 50, slow) })
	t.Run("leased, among others", func(t *testing.T) { killerAmongLeases(t, doExit) })
}
