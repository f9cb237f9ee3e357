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

// TestLongStorms runs what the heavy tests run briefly.
func TestLongStorms(t *testing.T) {
	t.Run("kills", func(t *testing.T) { killsAtRandom(t, 50) })
	t.Run("cuts", func(t *testing.T) { cutsConnections(t, 60) })
	t.Run("a stalled network", func(t *testing.T) { stallsNetwork(t, time.Minute) })
	t.Run("migrations under twenty workers", func(t *testing.T) { migratesUnderLoad(t, 20, 5) })
	t.Run("leases", func(t *testing.T) { stormsOverLeases(t, 50) })
	t.Run("out of memory beside many", func(t *testing.T) { endsItsProcess(t, doBalloon, limited, 50, neighbour) })
}

// notListening is what a worker logs while notifications do not reach it.
const notListening = "no LISTEN connection: events wait for the poll"

// What a killed worker held is delivered even if the others cannot listen.
func TestKilledBesideWorkersThatCannotListen(t *testing.T) {
	b := setup(t)
	l := ledger.New(ledger.Cards(nil))
	worker := b.run(b.worker, "")
	held := b.hold("held-1")
	l.Publish(t, b.publisher, "held-1", neighbour(1))
	held.awaitEntered()
	other := process.Start(t, b.command(pgbouncer.Start(t, pgbouncer.Transaction, b.worker).URL, b.worker))
	other.Await(t, notListening, 1, testTimeout)
	worker.Kill()
	worker.AwaitExit(t, grace)
	held.letGo()
	// 35 s until it is reaped, found by a poll that reconnecting and its self-tests hold up
	l.Verify(t, b.direct(), ledger.Expect{Within: 3 * testTimeout})
}

// Every way to lose every COMMIT; the heavy tests lose each in one way.
func TestAllLostCommitsOfLeasesRepeatNothing(t *testing.T) {
	for name, verdict := range map[string]proxy.Verdict{
		"before it arrives": proxy.Cutoff, "in the middle of it": proxy.Tear, "its reply": proxy.ForwardThenCut, "its reply never comes": proxy.Hush,
	} {
		for at := range commits {
			t.Run(at+"/"+name, func(t *testing.T) { losesCommitOfALease(t, at, verdict) })
		}
	}
}

func TestKilledAtEveryStatement(t *testing.T) {
	for first := 1; first <= parts; first++ {
		t.Run("one event/after", func(t *testing.T) { killsBetween(t, []string{"a"}, proxy.Hush, 2, first) })
		t.Run("a batch/before", func(t *testing.T) { killsBetween(t, []string{"a", "b", "c"}, proxy.Freeze, 1, first) })
		t.Run("a batch/after", func(t *testing.T) { killsBetween(t, []string{"a", "b", "c"}, proxy.Hush, 1, first) })
	}
}

func TestMoreHandlersThatEndTheirProcess(t *testing.T) {
	slow := func(i int) string { return fmt.Sprintf("%s-%d", doDawdle, i) }
	t.Run(doExit, func(t *testing.T) { endsItsProcess(t, doExit, unlimited, 50, neighbour) })
	t.Run("beside many slow ones", func(t *testing.T) { endsItsProcess(t, doExit, unlimited, 50, slow) })
	t.Run("leased, among others", func(t *testing.T) { killsLeasesAmongOthers(t, doExit) })
}
