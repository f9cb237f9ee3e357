//go:build heavy

package faults_test

import (
	"fmt"
	"syscall"
	"testing"
	"time"

	"spectral/tests/faults/ledger"
)

// Postgres goes down under load, in order, in a crash of which it tells its clients, and in one of
// which it does not. What committed must still be there, and it must cost no event an attempt.
func TestServerGoesDown(t *testing.T) {
	b, s, _ := setupServer(t, nil)
	l := ledger.New(ledger.Cards(nil))
	running := b.runAll(3, b.worker, "")
	load := l.Start(t, ledger.Load{URL: b.publisher, Publishers: 4, Rate: 50, PerTx: 5, Seed: seed(t)})
	for i, how := range []syscall.Signal{syscall.SIGINT, syscall.SIGQUIT, syscall.SIGKILL} {
		letRun(t, 3*time.Second)
		held := b.hold(fmt.Sprintf("%s%d", ledger.Held, i)) // so that a handler is at work; the lock goes down too
		l.Publish(t, b.publisher, held.key)
		held.awaitEntered()
		s.Crash(t, how)
		s.Start(t)
	}
	letRun(t, 4*time.Second)
	load.Stop()
	t.Log(l.Counts())
	l.Verify(t, b.direct(), ledger.Expect{Within: 2 * testTimeout})
	wantRunning(t, running)
}

// A failover that leaves the workers on the old primary for some seconds: it answers, and refuses to
// write.
func TestDemotedAndPromoted(t *testing.T) {
	b, s, _ := setupServer(t, nil)
	l := ledger.New(ledger.Cards(nil))
	running := b.runAll(3, b.worker, "")
	load := l.Start(t, ledger.Load{URL: b.publisher, Publishers: 4, Rate: 25, PerTx: 5, Seed: seed(t)})
	letRun(t, 2*time.Second)
	s.Demote(t)
	if !one[bool](b, "select pg_is_in_recovery()") {
		t.Fatal("the server has not become a standby")
	}
	letRun(t, 8*time.Second)
	s.Promote(t)
	promoted := time.Now()
	letRun(t, 2*time.Second)
	load.Stop()
	t.Log(l.Counts())
	l.Verify(t, b.direct(), ledger.Expect{Within: time.Minute - time.Since(promoted)})
	for _, worker := range running {
		worker.Await(t, listening, 2, time.Minute-time.Since(promoted))
	}
	wantRunning(t, running)
}
