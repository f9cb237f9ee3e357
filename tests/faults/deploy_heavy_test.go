//go:build heavy

package faults_test

import (
	"fmt"
	"testing"
	"time"

	"spectral/tests/faults/ledger"
	"spectral/tests/faults/process"
	"spectral/tests/pgbouncer"
	"spectral/tests/pgtest"
)

// Publishers and the workers' pool through a transaction pooler, the listener straight to Postgres.
func TestThroughPgBouncer(t *testing.T) {
	b := setup(t)
	l := ledger.New(ledger.Cards(nil))
	running := b.runAll(3, b.worker, pgbouncer.Start(t, pgbouncer.Transaction, b.worker).URL)
	load := l.Start(t, ledger.Load{
		URL: pgbouncer.Start(t, pgbouncer.Transaction, b.publisher).URL, Publishers: 8, Rate: 25, PerTx: 5, Seed: seed(t),
	})
	meanwhile(t, 8*time.Second)
	load.Stop()
	t.Log(l.Counts())
	l.Verify(t, b.direct(), ledger.Expect{Within: patience})
	wantRunning(t, running)
}

// What a worker had in hand when it was killed is delivered even if those that are left cannot listen.
func TestKilledBesideWorkersThatCannotListen(t *testing.T) {
	b := setup(t)
	l := ledger.New(ledger.Cards(nil))
	worker := b.run(b.worker, "")
	held := b.hold("held-1")
	l.Publish(t, b.publisher, "held-1", neighbour(1))
	held.awaitEntered()
	other := process.Start(t, b.command(pgbouncer.Start(t, pgbouncer.Transaction, b.worker).URL, b.worker))
	other.Await(t, deaf, 1, patience)
	worker.Kill()
	worker.AwaitExit(t, grace)
	held.letGo()
	// 35 s until the verdict, found by a poll that reconnecting and its self-tests hold up
	l.Verify(t, b.direct(), ledger.Expect{Within: 3 * patience})
}

// Generation N runs on the schema of N+1: additive steps under load must not cost an event an
// attempt, whatever plans the workers have cached.
func TestAdditiveMigrationsUnderTwentyWorkers(t *testing.T) {
	b := setup(t)
	l := ledger.New(ledger.Cards(nil))
	running := b.runAll(20, b.worker, "")
	load := l.Start(t, ledger.Load{URL: b.publisher, Publishers: 4, Rate: 25, PerTx: 5, Seed: seed(t)})
	owner := pgtest.Conn(t, b.direct())
	for i := range 5 {
		meanwhile(t, time.Second)
		for _, step := range []string{
			"alter table core.outbox add column added_%d text null",
			"alter table platform.system_cards add column added_%d integer null",
			"alter table core.event_handled add column added_%d integer null",
			"create index added_%d on platform.system_cards (projected_at)",
			"create index concurrently added_%[1]d_too on core.outbox (occurred_at) where status = 'failed'",
		} {
			_, err := owner.Exec(t.Context(), fmt.Sprintf(step, i))
			must(t, err)
		}
	}
	meanwhile(t, time.Second)
	load.Stop()
	t.Log(l.Counts())
	l.Verify(t, b.direct(), ledger.Expect{Within: patience})
	wantRunning(t, running)
}
