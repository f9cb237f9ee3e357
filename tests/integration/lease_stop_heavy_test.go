//go:build heavy

package integration_test

import (
	"context"
	"testing"
	"time"

	"spectral/internal/core/events"
	"spectral/tests/pgtest"
)

// However many completions wait for a lock of what they write to, all are given back when the worker stops, but for those
// whose own rows are locked, which hold up no others.
func TestStoppingGivesBackWhatWaitsForLocks(t *testing.T) {
	b := setup(t)
	b.poolURL += "&pool_max_conns=2" // so that some wait for connections, too
	b.exec("create table platform.contended (n int); insert into platform.contended values (1); grant all on platform.contended to spectral_platform")
	holder := pgtest.Conn(t, b.url)
	_, err := holder.Exec(b.ctx, "begin; update platform.contended set n = 2")
	must(t, err)
	g := newGate()
	t.Cleanup(g.letOn)
	contending := executor(worker1, func(ctx context.Context, e events.Envelope) (events.Completion, error) {
		return func(ctx context.Context, tx events.Tx) error {
			if _, err := tx.Exec(ctx, "update platform.contended set n = 3"); err != nil {
				return err
			}
			return effect(worker1)(ctx, tx, e)
		}, g.pass(ctx)
	})
	s := leasing(time.Minute, contending)
	s.Concurrency = 40
	l := b.newListener(never, pgtest.Generation, s)
	l.start()
	all := b.publishMany(40)
	g.awaitAll(t, len(all))
	g.letOn()
	b.eventually("the completions wait", b.somebodyWaits)
	const locked = 6
	locking := pgtest.Conn(t, b.url)
	b.eventually("rows can be locked", func() (held bool) {
		_, err := locking.Exec(b.ctx, "rollback; begin")
		must(t, err)
		must(t, locking.QueryRow(b.ctx, `select count(*) = $1 from
			(select from core.outbox where status = 'in_flight' limit $1 for update skip locked) as l`, locked).Scan(&held))
		return held
	})
	l.stopNow()
	b.wantGivenBack(len(all) - locked)
	if n := one[int](b, "select count(*) from core.outbox where status = 'in_flight' and attempts = 1"); n != locked {
		t.Errorf("%d are left to their leases", n)
	}
	_, err = holder.Exec(b.ctx, "rollback")
	must(t, err)
	next := b.listen(never, leasing(time.Minute, contending))
	next.delivered(len(all) - locked)
	b.wantEffects(map[string]int{worker1: len(all) - locked})
}

// What failed before is recorded, when a co-handler's completion is given up.
func TestStoppingRecordsFailuresBesideWhatWaits(t *testing.T) {
	b := setup(t)
	e := event(1)
	e.IdempotencyKey = "held"
	holder := pgtest.Conn(t, b.url)
	_, err := holder.Exec(b.ctx, "begin")
	must(t, err)
	_, err = holder.Exec(b.ctx, `insert into core.event_handled (handler_name, idempotency_key, event_id, event_type, content_class)
		values ($1, 'worlds:-:held', gen_random_uuid(), $2, 'operational')`, worker2, happenedType)
	must(t, err)
	l := b.newListener(never, pgtest.Generation, leasing(6*time.Second,
		executor(worker1, func(context.Context, events.Envelope) (events.Completion, error) {
			return nil, events.Terminal(errRefusing)
		}),
		completing(worker2)))
	l.start()
	b.publish(e)
	b.eventually("it waits for its key", b.somebodyWaits)
	l.stopNow()
	r := b.wantRow(e.EventID, "pending", 1)
	if f := r.Failures[worker1]; !f.Parked || len(r.Failures) != 1 {
		t.Errorf("%+v", r)
	}
}

// What may still be committed is not given back: the server has the COMMIT, and its answer was lost.
func TestStoppingGivesNothingBackThatMayBeCommitted(t *testing.T) {
	b := setup(t)
	b.sockets = new(sockets)
	b.exec(`create function public.wait() returns trigger language plpgsql as $$ begin
			loop
				begin
					perform pg_advisory_xact_lock_shared(7);
					return null;
				exception when query_canceled then null; -- deaf to it, as a COMMIT that waits for a standby
				end;
			end loop;
		end $$;
		create constraint trigger waits after insert on platform.effects deferrable initially deferred for each row execute function public.wait()`)
	holder := pgtest.Conn(t, b.url)
	_, err := holder.Exec(b.ctx, "select pg_advisory_lock(7)")
	must(t, err)
	l := b.newListener(never, pgtest.Generation, leasing(6*time.Second, completing(worker1)))
	l.start()
	e := event(1)
	b.publish(e)
	b.eventually("the COMMIT waits", func() bool {
		return one[bool](b, `select exists (select from pg_locks l join pg_stat_activity a using (pid)
			where not l.granted and l.locktype = 'advisory' and a.datname = current_database() and a.query ~* '^commit')`)
	})
	b.sockets.cut()
	l.stopNow()
	b.wantRow(e.EventID, "in_flight", 1)
	_, err = holder.Exec(b.ctx, "select pg_advisory_unlock(7)")
	must(t, err)
	b.eventually("it is committed", func() bool {
		return one[bool](b, "select status = 'delivered' from core.outbox where id = $1", e.EventID)
	})
	b.wantEffects(map[string]int{worker1: 1})
}
