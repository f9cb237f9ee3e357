package pgtx

import (
	"testing"
	"time"
)

// Each line is a relation that some promise depends on; the reason says which.
func TestLimitsFitTogether(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		reason       string
		less, longer time.Duration
	}{
		{"a handler is abandoned before a forced stop ends", AbandonAfter, ForcedStop},
		{"results are settled, and leases released, before a forced stop ends", FlushTimeout, ForcedStop},
		{"what an abandoned handler has returned can still be settled", AbandonAfter, FlushTimeout},
		{"a ping is answered before the server ends a silent session", PingInterval + AnswerTimeout, ListenIdleTimeout},
		{"a statement of the adapter ends before its transaction counts as idle", StatementTimeout, IdleTimeout},
		{"a pool tries every host before its caller gives up", AllHostsTimeout, StatementTimeout},
		{"a worker's four first connections find the last host in time", 4 * AllHostsTimeout, 30 * time.Second},
		{"a reconnecting worker is not taken for dead after an outage", MaxBackoff, OutageGrace},
		{"a lost connection is tried at least once within a worker's grace", FirstBackoff, DeadGrace},
		{"a failed self-test is repeated sooner", SelfTestRetry, SelfTestInterval},
		{"a self-test ends before the next", SelfTestSend + SelfTestArrive + AnswerTimeout, SelfTestInterval},
		{"the wait at the barrier is far below the poll interval", BarrierMaxPause, DefaultPollInterval},
		{"a batch's COMMIT may take longer than the batch should", BatchTime, BatchCommitTimeout},
		{"a batch's COMMIT ends before the statement limit", BatchCommitTimeout, StatementTimeout},
		{"a retried result has more time than the first try", QuickSettle, MaxSettle},
	} {
		if c.less >= c.longer {
			t.Errorf("%s: %s is not less than %s", c.reason, c.less, c.longer)
		}
	}
}
