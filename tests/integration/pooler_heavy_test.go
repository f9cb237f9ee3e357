//go:build heavy

package integration_test

import (
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"spectral/internal/app"
	"spectral/internal/core/events/infrastructure/postgres/notify"
	"spectral/tests/pgbouncer"
	"spectral/tests/pgtest"
)

// Behind a real PgBouncer, which a plain test run does not ask for.

// wantNoSettingsLeftBehind looks at several of a pooler's server connections at once.
func (b *bundle) wantNoSettingsLeftBehind(at string) {
	b.Helper()
	config, err := pgx.ParseConfig(at)
	must(b.T, err)
	config.DefaultQueryExecMode = pgx.QueryExecModeSimpleProtocol
	seen := make(map[int32]bool)
	for range 6 {
		conn, err := pgx.ConnectConfig(b.ctx, config)
		must(b.T, err)
		defer func() { _ = conn.Close(b.ctx) }()
		tx, err := conn.Begin(b.ctx) // keeps its server connection to itself
		must(b.T, err)
		defer func() { _ = tx.Rollback(b.ctx) }()
		var pid int32
		var role, timeout string
		must(b.T, tx.QueryRow(b.ctx, "select pg_backend_pid(), current_setting('role'), current_setting('statement_timeout')").Scan(&pid, &role, &timeout))
		if role != "none" || timeout != "0" {
			b.Errorf("server connection %d is left with role %s and a timeout of %s", pid, role, timeout)
		}
		seen[pid] = true
	}
	if len(seen) != 6 {
		b.Fatalf("saw %d server connections", len(seen))
	}
}

// Nor does what a worker checks before it starts.
func TestTheChecksBeforeAStartLeaveNothingOnAPooler(t *testing.T) {
	b := setup(t)
	bouncer := pgbouncer.Start(t, pgbouncer.Transaction, b.url)
	must(t, app.CheckDatabase(b.ctx, &app.Settings{
		DatabaseURL: b.url, PoolURL: bouncer.URL + "&default_query_exec_mode=cache_describe", Generation: pgtest.Generation,
	}, "spectral_operator"))
	b.wantNoSettingsLeftBehind(bouncer.URL)
}

// In session mode a pooler is as good as none.
func TestThroughASessionPoolerItListens(t *testing.T) {
	b := setup(t)
	b.directURL = pgbouncer.Start(t, pgbouncer.Session, b.url).URL
	l := b.listen(noPoll, subscription(leaving("platform.one")))
	b.publish(event(1))
	l.delivered(1)
}

// A pooler that turns to a standby and back: nothing is attempted, and nothing counted.
func TestAPoolerThatTurnsToAStandbyCostsNoAttempt(t *testing.T) {
	b := setup(t)
	log := &notes{}
	b.log = logTo(log)
	standby := pgtest.NewStandby(t)
	bouncer := pgbouncer.Start(t, pgbouncer.Transaction, b.url)
	b.poolURL = bouncer.URL + "&default_query_exec_mode=cache_describe"
	l := b.listen(noPoll, subscription(leaving("platform.one")))
	bouncer.Turn(t, standby.Of(t, b.url))
	e := event(1)
	b.publish(e)
	b.eventually("the standby is noticed", func() bool { return log.count("hot standby") > 0 })
	b.wantRow(e.EventID, "pending", 0)
	bouncer.Turn(t, b.url)
	l.delivered(1)
	b.wantRow(e.EventID, "delivered", 1)
}

// A transaction pooler takes LISTEN and delivers nothing. The listener says so, once, polls, leaves
// no settings behind on the pooler's connections, and heals when the URL leads to Postgres.
func TestATransactionPoolerIsSaidAndPolled(t *testing.T) {
	for name, poolToo := range map[string]bool{"for LISTEN": false, "for everything": true} {
		t.Run(name, func(t *testing.T) {
			b := setup(t)
			log := &notes{}
			b.log = logTo(log)
			bouncer := pgbouncer.Start(t, pgbouncer.Transaction, b.url)
			b.directURL = bouncer.URL
			if poolToo {
				b.poolURL = bouncer.URL + "&default_query_exec_mode=cache_describe"
			}
			wire := &sockets{}
			l := b.newWorker(100*time.Millisecond, pgtest.Generation, subscription(leaving("platform.one")), through(wire))
			must(t, l.Start(b.ctx))
			t.Cleanup(l.stop)
			l.wantState(testTimeout, notify.Polling, "DATABASE_URL leads through a transaction pooler")
			for n := range 5 {
				b.publish(event(n))
				l.delivered(1)
			}
			b.eventually("it has tried again", func() bool { return wire.count() >= 2 })
			wire.reach(refusing) // no test is under way any more
			l.wantState(testTimeout, notify.Polling, errRefusing.Error())
			b.wantNoSettingsLeftBehind(bouncer.URL)
			if n := log.count("transaction pooler"); n != 1 {
				t.Fatalf("%d warnings: %s", n, log.text.String())
			}
			wire.reach(leadingTo(address(t, b.url)))
			l.wantState(2*testTimeout, notify.Listening, "")
			b.publish(event(9))
			l.delivered(1)
		})
	}
}
