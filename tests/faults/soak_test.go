//go:build soak

package faults_test

import (
	"fmt"
	"testing"
	"time"

	"spectral/tests/faults/proxy"
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
