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

// The answer to a COMMIT that settles events is lost with its connection: whether it was done is
// unknown to the worker, and must not matter.
func TestConnectionLostAtCommit(t *testing.T) {
	losesCommit(t, proxy.ForwardThenCut, []string{neighbour(1), neighbour(2), neighbour(3), neighbour(4)}, testTimeout)
}

func losesCommit(t *testing.T, verdict proxy.Verdict, keys []string, within time.Duration) {
	t.Helper()
	b := setup(t)
	l := ledger.New(ledger.Cards(nil))
	pool := proxy.InFrontOf(t, b.worker)
	worker := b.run(b.worker, pool.URL(t, b.worker))
	var conn atomic.Int64
	filter, hit := proxy.Nth(1, verdict, func(m proxy.Message) bool {
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
	l.Verify(t, b.direct(), ledger.Expect{Within: within})
	// and the worker gives the connection up and goes on, with every runner it has
	b.eventually("the connection is given up", testTimeout, func() bool {
		return !slices.Contains(pool.Standing(), int(conn.Load()))
	})
	l.Publish(t, b.publisher, afterwards...)
	l.Verify(t, b.direct(), ledger.Expect{Within: within})
	wantRunning(t, []*process.Process{worker})
}

// afterwards are the keys of events enough for every runner.
var afterwards = []string{
	neighbour(101), neighbour(102), neighbour(103), neighbour(104), neighbour(105), neighbour(106), neighbour(107), neighbour(108),
}
