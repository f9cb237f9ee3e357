//go:build heavy

package faults_test

import (
	"fmt"
	"syscall"
	"testing"
	"time"

	"spectral/tests/faults/ledger"
)

// The server stops under load: by a fast shutdown, by an immediate one, and by SIGKILL. No committed event is lost,
// and none loses an attempt.
func TestEventsSurviveServerShutdowns(t *testing.T) {
	b, s := setupServer(t)
	l := ledger.New(ledger.Cards())
	running := b.runAll(3, b.worker, "")
	load := l.Start(t, ledger.Load{URL: b.publisher, Publishers: 4, Rate: 50, PerTx: 5, Seed: seed(t)})
	for i, how := range []syscall.Signal{syscall.SIGINT, syscall.SIGQUIT, syscall.SIGKILL} {
		pass(t, 3*time.Second)
		held := b.lockCard(fmt.Sprintf("%s%d", ledger.LockedPrefix, i)) // a handler runs until the server stops
		l.Publish(t, b.publisher, held.key)
		held.awaitHandler()
		s.Crash(t, how)
		s.Start(t)
	}
	pass(t, 4*time.Second)
	load.Stop()
	t.Log(l.Counts())
	l.Verify(t, b.direct(), ledger.Expect{Within: 2 * testTimeout})
	wantRunning(t, running)
}

// During a failover the old primary answers for some seconds and refuses to write.
func TestWorkersRecoverAfterFailover(t *testing.T) {
	b, s := setupServer(t)
	l := ledger.New(ledger.Cards())
	running := b.runAll(3, b.worker, "")
	load := l.Start(t, ledger.Load{URL: b.publisher, Publishers: 4, Rate: 25, PerTx: 5, Seed: seed(t)})
	pass(t, 2*time.Second)
	s.Demote(t)
	if !one[bool](b, "select pg_is_in_recovery()") {
		t.Fatal("the server has not become a standby")
	}
	pass(t, 8*time.Second)
	s.Promote(t)
	promoted := time.Now()
	pass(t, 2*time.Second)
	load.Stop()
	t.Log(l.Counts())
	l.Verify(t, b.direct(), ledger.Expect{Within: time.Minute - time.Since(promoted)})
	for _, worker := range running {
		worker.Await(t, listening, 2, time.Minute-time.Since(promoted))
	}
	wantRunning(t, running)
}
