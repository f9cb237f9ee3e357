package faults_test

import (
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"spectral/tests/faults/ledger"
	"spectral/tests/faults/process"
	"spectral/tests/faults/proxy"
)

// The worker cannot know whether a COMMIT whose reply is lost took effect. Each event must be handled once either
// way.
func TestLostCommitReplyRepeatsNothing(t *testing.T) {
	loseCommit(t, proxy.ForwardThenReset, plainKeys(1, 4))
}

// loseCommit does action to the COMMIT that settles the events.
func loseCommit(t *testing.T, action proxy.Action, keys []string) {
	t.Helper()
	b := setup(t)
	l := ledger.New(ledger.Cards())
	pool := proxy.InFrontOf(t, b.worker)
	worker := b.run(b.worker, pool.URL(t, b.worker))
	var conn atomic.Int64
	filter, hit := proxy.Nth(1, action, func(m proxy.Message) bool {
		conn.Store(int64(m.Conn))
		return proxy.Commit(m)
	})
	pool.Filter(filter)
	l.Publish(t, b.publisher, keys...)
	select {
	case <-hit:
	case <-time.After(testTimeout):
		t.Fatal("no COMMIT went through the proxy")
	}
	l.Verify(t, b.direct(), ledger.Expect{Within: testTimeout})
	// The worker closes the connection and goes on with all its runners.
	b.eventually("the worker closes the connection", testTimeout, func() bool {
		return !slices.Contains(pool.Open(), int(conn.Load()))
	})
	l.Publish(t, b.publisher, plainKeys(101, 8)...) // enough for every runner
	l.Verify(t, b.direct(), ledger.Expect{Within: testTimeout})
	wantRunning(t, []*process.Process{worker})
}
