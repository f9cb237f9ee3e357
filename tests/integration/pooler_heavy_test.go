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

// wantNoSettingsLeftBehind checks six server connections of a pooler.
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
		tx, err := conn.Begin(b.ctx) // the pooler assigns a server connection to each transaction
		must(b.T, err)
		defer func() { _ = tx.Rollback(b.ctx) }()
		var pid int32
		var role, timeout string
		const settings = "select pg_backend_pid(), current_setting('role'), current_setting('statement_timeout')"
		must(b.T, tx.QueryRow(b.ctx, settings).Scan(&pid, &role, &timeout))
		if role != "none" || timeout != "0" {
			b.Errorf("server connection %d is left with role %s and a timeout of %s", pid, role, timeout)
		}
		seen[pid] = true
	}
	if len(seen) != 6 {
		b.Fatalf("saw %d server connections", len(seen))
	}
}

func TestStartupChecksLeaveNoSettingsOnAPooler(t *testing.T) {
	b := setup(t)
	bouncer := pgbouncer.Start(t, pgbouncer.Transaction, b.url)
	must(t, app.CheckDatabase(b.ctx, &app.Settings{
		DatabaseURL: b.url, PoolURL: bouncer.URL + "&default_query_exec_mode=cache_describe", Generation: pgtest.Generation,
	}, "spectral_operator"))
	b.wantNoSettingsLeftBehind(bouncer.URL)
}

func TestWorkerListensThroughASessionPooler(t *testing.T) {
	b := setup(t)
	b.directURL = pgbouncer.Start(t, pgbouncer.Session, b.url).URL
	l := b.startWorker(noPoll, subscription(effectHandler("platform.one")))
	b.publish(event(1))
	l.awaitDelivered(1)
}

func TestPoolerThatLeadsToAStandbyCostsNoAttempt(t *testing.T) {
	b := setup(t)
	log := &logBuffer{}
	b.log = logTo(log)
	standby := pgtest.NewStandby(t)
	bouncer := pgbouncer.Start(t, pgbouncer.Transaction, b.url)
	b.poolURL = bouncer.URL + "&default_query_exec_mode=cache_describe"
	l := b.startWorker(noPoll, subscription(effectHandler("platform.one")))
	bouncer.Redirect(t, standby.Of(t, b.url))
	e := event(1)
	b.publish(e)
	b.eventually("the log entry about the standby", func() bool { return log.count("hot standby") > 0 })
	b.wantRow(e.EventID, "pending", 0)
	bouncer.Redirect(t, b.url)
	l.awaitDelivered(1)
	b.wantRow(e.EventID, "delivered", 1)
}

// A transaction pooler accepts LISTEN and delivers no notification. The worker logs it once, polls, leaves no
// settings on the pooler's connections, and listens when the URL leads to Postgres.
func TestTransactionPoolerIsReportedAndPolled(t *testing.T) {
	for name, poolToo := range map[string]bool{"for LISTEN": false, "for everything": true} {
		t.Run(name, func(t *testing.T) {
			b := setup(t)
			log := &logBuffer{}
			b.log = logTo(log)
			bouncer := pgbouncer.Start(t, pgbouncer.Transaction, b.url)
			b.directURL = bouncer.URL
			if poolToo {
				b.poolURL = bouncer.URL + "&default_query_exec_mode=cache_describe"
			}
			wire := &sockets{}
			l := b.newWorker(100*time.Millisecond, subscription(effectHandler("platform.one")), dialedBy(wire))
			must(t, l.Start(b.ctx))
			t.Cleanup(l.stop)
			l.wantState(testTimeout, notify.Polling, "DATABASE_URL leads through a transaction pooler")
			for n := range 5 {
				b.publish(event(n))
				l.awaitDelivered(1)
			}
			b.eventually("another connection attempt", func() bool { return wire.count() >= 2 })
			wire.dialWith(refuseDial) // ends the self-test
			l.wantState(testTimeout, notify.Polling, errOnPurpose.Error())
			b.wantNoSettingsLeftBehind(bouncer.URL)
			if n := log.count("transaction pooler"); n != 1 {
				t.Fatalf("%d warnings: %s", n, log.text.String())
			}
			wire.dialWith(dialAddress(address(t, b.url)))
			l.wantState(2*testTimeout, notify.Listening, "")
			b.publish(event(9))
			l.awaitDelivered(1)
		})
	}
}
