//go:build heavy

package faults_test

import (
	"testing"
	"time"

	"spectral/tests/faults/ledger"
	"spectral/tests/faults/process"
	"spectral/tests/faults/proxy"
)

// A worker dies with two events in hand, one of which was leased a moment after the other.
func TestNeitherOfTwoIsCharged(t *testing.T) {
	const first, second = doAwait + "-1", doAwait + "-2"
	b := setup(t).leased(errands{Lease: 2 * time.Second}, nil)
	worker := b.run()
	b.publish(first)
	b.awaitBegun(first, 1)
	b.publish(second)
	b.awaitBegun(second, 1)
	worker.Kill()
	worker.AwaitExit(t, grace)
	b.run()
	b.awaitBegun(first, 2)
	b.awaitBegun(second, 2)
	b.wantColumn(first, "handler_failures", "{}")
	b.wantColumn(second, "handler_failures", "{}")
	b.open(first, second)
	b.verify(ledger.Expect{Within: patience, MaxAttempts: 2})
}

// A connection that goes silent under a heartbeat is not to cost the lease: two thirds of it are
// left for the next one.
func TestASilentHeartbeatDoesNotCostTheLease(t *testing.T) {
	const key = doAwait + "-1"
	b := setup(t).leased(errands{Lease: 6 * time.Second}, nil)
	pool := proxy.InFrontOf(t, b.worker)
	filter, hit := proxy.Nth(1, proxy.Hush, proxy.CommitOf("outbox_heartbeat"))
	pool.Filter(filter)
	worker := process.Start(t, b.command(b.worker, pool.URL(t, b.worker)))
	worker.Await(t, listening, 1, patience)
	b.publish(key)
	<-hit
	worker.Await(t, notRenewed, 1, patience)
	b.open(key)
	b.verify(ledger.Expect{Within: patience})
	b.wantExecuted(key, 1)
}
