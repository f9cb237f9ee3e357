//go:build heavy

package faults_test

import (
	"testing"
	"time"

	"spectral/tests/faults/ledger"
	"spectral/tests/pgbouncer"
)

// Publishers and the workers' pools connect through a transaction pooler, the listen connections directly.
func TestEventsAreDeliveredThroughATransactionPooler(t *testing.T) {
	b := setup(t)
	l := ledger.New(ledger.Cards())
	running := b.runAll(3, b.worker, pgbouncer.Start(t, pgbouncer.Transaction, b.worker).URL)
	load := l.Start(t, ledger.Load{
		URL: pgbouncer.Start(t, pgbouncer.Transaction, b.publisher).URL, Publishers: 8, Rate: 25, PerTx: 5, Seed: seed(t),
	})
	pass(t, 8*time.Second)
	load.Stop()
	t.Log(l.Counts())
	l.Verify(t, b.direct(), ledger.Expect{Within: testTimeout})
	wantRunning(t, running)
}
