//go:build heavy

package faults_test

import (
	"math/rand/v2"
	"testing"
	"time"

	"spectral/internal/app"
	"spectral/tests/faults/ledger"
	"spectral/tests/faults/process"
	"spectral/tests/pgtest"
)

// core.outbox becomes partitions, and one table again, under load, by commands that are killed at any moment, while
// workers are killed too. No event is lost or handled twice, and none is refused.
func TestPartitionsUnderLoad(t *testing.T) {
	b := setup(t)
	s := seed(t)
	random := rand.New(rand.NewPCG(s, s))
	admin := pgtest.Conn(t, b.direct())
	// enough for the check to take a while, and, of a later month, for the way back
	_, err := admin.Exec(b.Context(), `insert into core.outbox (event_type, event_version, source, content_class, channel,
			generation, payload, idempotency_key, status, attempts, occurred_at, delivered_at)
		select 'old', 1, 'worlds', 'operational', 'outbox_gen_1', 1, '{}', gen_random_uuid()::text, 'delivered', 1,
			now() - i * interval '1 s', now() from generate_series(1, 200000) i`)
	must(t, err)
	l := ledger.New(ledger.Cards())
	supervisors := b.supervise(2)
	load := l.Start(t, ledger.Load{URL: b.publisher, Publishers: 4, Rate: 25, PerTx: 5, Seed: s})
	killed := 0
	later := func() {
		_, err := admin.Exec(b.Context(), `insert into core.outbox (event_type, event_version, source, content_class,
				channel, generation, payload, idempotency_key, status, attempts, occurred_at, delivered_at)
			select 'old', 1, 'worlds', 'operational', 'outbox_gen_1', 1, '{}', gen_random_uuid()::text, 'delivered', 1,
				now() + interval '300 days', now() from generate_series(1, 100000)`)
		must(t, err)
	}
	for step, arguments := range [][]string{{"--yes"}, {"--yes", "--undo"}} {
		if step == 1 {
			later()
		}
		for kills := range 4 {
			command := process.Start(t, process.Command{
				Path: workers.Path(t), Args: append([]string{"outbox", "partition"}, arguments...),
				Env: []string{app.EnvDatabaseURL + "=" + b.direct()},
			})
			if kills < 3 {
				pass(t, time.Duration(50+random.IntN(600))*time.Millisecond)
				command.Kill()
				victim := supervisors[random.IntN(len(supervisors))].Current()
				victim.Kill()
				victim.AwaitExit(t)
			}
			if code := command.AwaitExit(t); code == -1 {
				killed++
			} else if code != 0 {
				t.Errorf("%v ends with %d", arguments, code)
			}
		}
	}
	load.Stop()
	l.Verify(t, b.direct(), ledger.Expect{Within: 2 * testTimeout, MaxAttempts: 5})
	if old := one[int](b, "select count(*) from core.outbox where event_type = 'old'"); old != 300000 {
		t.Errorf("%d of 300000 old events are there", old)
	}
	if errs := l.Errors(); len(errs) > 0 {
		t.Errorf("publishing failed: %v", errs)
	}
	if killed == 0 {
		t.Error("no command was killed")
	}
	t.Logf("%d commands were killed; the longest transaction of a producer took %s", killed, l.Longest())
}
