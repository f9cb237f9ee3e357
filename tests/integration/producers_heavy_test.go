//go:build heavy

package integration_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// Producers publish in bursts with pauses between them: in a steady stream the next notification would hide that an
// event was left behind. The worker does not poll.
func TestBurstsOfProducersLeaveNoEventBehind(t *testing.T) {
	leaveNoEventBehind(t, 12, 3, "concurrent and slow", "serializable, races", "some are killed")
}

// leaveNoEventBehind runs the named cases, or all of them.
func leaveNoEventBehind(t *testing.T, producers, bursts int, names ...string) {
	t.Helper()
	const (
		each    = 4
		publish = `select core.outbox_publish('worlds.test.happened', 'worlds', '{"n": 1}'); `
		// The commit takes some milliseconds after the trigger's decision, as on a slow disk.
		linger, abort = "insert into worlds.linger values (false); commit", "insert into worlds.linger values (true); commit"
		serializable  = "begin isolation level serializable; "
	)
	for name, c := range map[string]struct {
		does []string // each producer executes one of them
		// If a notifier aborts after its decision, the events of the producers that relied on it wait for the next
		// notification.
		aborts, killed bool
	}{
		"concurrent and slow": {does: []string{publish, "begin; " + publish + linger}},
		"serializable":        {does: []string{serializable + publish + linger}},
		"slow transactions":   {does: []string{"begin; " + publish + "select pg_sleep(0.3 * random()); " + linger}},
		"bulk": {does: []string{publish, publish, publish, publish, publish, publish, publish,
			"begin; " + bulkSQL + linger}},
		"some abort": {does: []string{publish, "begin; " + publish + linger, "begin; " + publish + abort},
			aborts: true},
		"some are killed": {does: []string{publish, "begin; " + publish + linger}, aborts: true, killed: true},
		"serializable, races": {aborts: true, does: []string{publish,
			serializable + publish + "select sum(v) from worlds.skew; update worlds.skew set v = v + 1; " + linger}},
	} {
		if len(names) > 0 && !slices.Contains(names, name) {
			continue
		}
		t.Run(name, func(t *testing.T) {
			b := setup(t)
			b.exec(`create table worlds.skew (v int); insert into worlds.skew values (0); create table worlds.linger (refuse
				boolean);
				create function worlds.linger() returns trigger language plpgsql as $$ begin
					perform pg_catalog.pg_sleep(0.01 * random());
					if new.refuse then raise unique_violation using message = 'on purpose'; end if;
					return null;
				end $$;
				create constraint trigger linger after insert on worlds.linger deferrable initially deferred
					for each row execute function worlds.linger()`)
			b.startWorker(noPoll, subscription(effectHandler("platform.one")))
			ctx, cancel := context.WithCancel(b.ctx)
			var killing sync.WaitGroup
			defer killing.Wait()
			defer cancel()
			if c.killed {
				killing.Go(func() {
					for ctx.Err() == nil {
						_, _ = b.pool.Exec(ctx, `select pg_terminate_backend(pid), pg_sleep(0.05 * random()) from pg_stat_activity
							where application_name = 'producer' and datname = current_database() and state <> 'idle' order by random()
								limit 1`)
					}
				})
			}
			conns, faults := make([]*pgx.Conn, producers), make([]error, producers)
			for range bursts {
				var burst sync.WaitGroup
				for n := range conns {
					burst.Go(func() {
						for range each {
							if conns[n] == nil || conns[n].IsClosed() {
								if conns[n], faults[n] = pgx.Connect(b.ctx, b.url+"&application_name=producer"); faults[n] != nil {
									return
								}
							}
							_, err := conns[n].Exec(b.ctx, c.does[n%len(c.does)])
							if _, refused := errors.AsType[*pgconn.PgError](err); err != nil && (!c.aborts || !refused && !c.killed) {
								faults[n] = err
								return
							}
							if err != nil && !conns[n].IsClosed() {
								_, _ = conns[n].Exec(b.ctx, "rollback")
							}
						}
					})
				}
				burst.Wait()
				must(t, errors.Join(faults...))
				if c.aborts { // which finds no lock of a session that is being killed, or it would stay silent too
					b.eventually("the end of all locks of producers", func() bool {
						return one[bool](b, `select not exists (select from pg_locks l join pg_stat_activity a using (pid)
							where l.locktype = 'advisory' and a.application_name = 'producer' and a.datname = current_database())`)
					})
					b.publish(event(1))
				}
				b.eventually("delivery of all events", func() bool {
					return one[bool](b, "select count(*) > 0 and bool_and(status = 'delivered') from core.outbox")
				})
			}
			for _, conn := range conns {
				_ = conn.Close(b.ctx)
			}
		})
	}
}

// bulkSQL publishes so many events that the call notifies without an election.
const bulkSQL = `select core.outbox_publish_many(jsonb_agg(jsonb_build_object('event_type', 'worlds.test.happened',
	'source', 'worlds', 'payload', jsonb_build_object('n', i)))) from generate_series(1, 200) i; `
