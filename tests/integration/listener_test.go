package integration_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"net/url"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"spectral/internal/app"
	"spectral/internal/core/events"
	"spectral/internal/core/events/infrastructure/postgres/notify"
	"spectral/tests/pgtest"
)

// notifiers is SQL for the backends of the listen connections.
const notifiers = `from pg_stat_activity where application_name = 'notifier' and datname = current_database()
	and backend_type = 'client backend'`

func (b *bundle) notifierPIDs() []int32 {
	b.Helper()
	return one[[]int32](b, "select coalesce(array_agg(pid), '{}') "+notifiers)
}

func (b *bundle) killNotifier() {
	b.Helper()
	// that of a worker that has stopped may take a moment to leave
	b.eventually("one LISTEN backend", func() bool { return len(b.notifierPIDs()) == 1 })
	b.exec("select pg_terminate_backend(pid) " + notifiers)
}

// awaitNotifierIdle waits until the listen connection has been idle for 200 ms.
func (b *bundle) awaitNotifierIdle() {
	b.Helper()
	b.eventually("the notifier waits", func() bool {
		return one[bool](b, `select coalesce(bool_and(state = 'idle'
			and state_change < clock_timestamp() - interval '200 milliseconds'), false) `+notifiers)
	})
}

func dialedBy(s *sockets) func(*pgx.ConnConfig) {
	return func(c *pgx.ConnConfig) { c.DialFunc = s.dial }
}

// wantState waits for a state of the notifier with a reason that contains the given text.
func (l *testWorker) wantState(limit time.Duration, state notify.State, reason string) {
	l.Helper()
	deadline := time.NewTimer(limit)
	defer deadline.Stop()
	for {
		changed := l.Health().Changed()
		has, because := l.Health().Now()
		if has == state && strings.Contains(because, reason) {
			return
		}
		select {
		case <-changed:
		case <-deadline.C:
			l.Fatalf("the notifier is %s (%s) after %s, want %s (%s)", has, because, limit, state, reason)
		}
	}
}

type logBuffer struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (n *logBuffer) Write(p []byte) (int, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.text.Write(p)
}

func (n *logBuffer) count(text string) int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return strings.Count(n.text.String(), text)
}

func (n *logBuffer) match(pattern string) int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return len(regexp.MustCompile(pattern).FindAllString(n.text.String(), -1))
}

func (n *logBuffer) reset() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.text.Reset()
}

func logTo(n *logBuffer) slog.Handler { return slog.NewJSONHandler(n, nil) }

func address(t *testing.T, at string) string {
	t.Helper()
	u, err := url.Parse(at)
	must(t, err)
	return u.Host
}

// The workers override the login's settings. At REPEATABLE READ the dedup insert would raise 40001, with row_security
// off every policy would be an error, and in LATIN1 text would be garbled.
func TestLoginSettingsDoNotAffectWorkers(t *testing.T) {
	b := setup(t)
	login := pgtest.Login(t, b.url, "spectral_worker")
	b.directURL, b.poolURL = login, login
	u, err := url.Parse(login)
	must(t, err)
	for _, setting := range []string{
		"idle_session_timeout = '1s'", "statement_timeout = '100ms'", "lock_timeout = '10ms'",
		"idle_in_transaction_session_timeout = '100ms'", "default_transaction_read_only = on",
		"default_transaction_isolation = 'serializable'",
		"tcp_user_timeout = 0", "row_security = off", "client_encoding = 'LATIN1'", "search_path = nowhere",
		"DateStyle = German",
		"IntervalStyle = iso_8601", "TimeZone = 'Asia/Kolkata'", "bytea_output = escape", "extra_float_digits = 0",
		"standard_conforming_strings = off",
	} {
		b.exec("alter role " + u.User.Username() + " set " + setting)
	}
	settings := make(chan string, 1)
	b.uow.Pool = b.workersPool()
	l := b.startWorker(noPoll, subscription(handler("platform.one",
		func(ctx context.Context, tx events.Tx, e events.Envelope) error {
			var pid int
			var has string
			if err := tx.QueryRow(ctx, `select pg_backend_pid(), concat_ws(' ',
			current_setting('idle_in_transaction_session_timeout'),
			current_setting('tcp_user_timeout'), current_setting('statement_timeout'), current_setting('lock_timeout'))
			from pg_sleep(0.3)`).Scan(&pid, &has); err != nil {
				return err
			}
			settings <- has
			b.eventually("300 ms without a statement", func() bool {
				return one[bool](b, `select count(*) = 0 or bool_and(state_change < clock_timestamp() - interval '300 milliseconds')
				from pg_stat_activity where pid = $1`, pid)
			})
			return writeEffect("platform.one")(ctx, tx, e)
		})), projection())
	before := b.notifierPIDs()
	_, err = app.NewPublishCard(b.uow).Publish(b.ctx, newWorkspace(), card(t, "中é", "T中é"))
	must(t, err)
	l.awaitDelivered(1)
	if n := one[int](b, `select count(*)::int from platform.system_cards s
		join worlds.world_model_cards w on w.card::text = s.snapshot::text
		where s.card_id = $1 and s.title = $2`, "中é", "T中é"); n != 1 {
		t.Error("the projection differs from the published card")
	}
	b.publish(event(1))
	l.awaitDelivered(1)
	if got := <-settings; got != "1min 60000 0 0" {
		t.Fatalf("a handler's timeouts are %s", got)
	}
	b.eventually("a poll or ping after four seconds", func() bool {
		return one[bool](b, "select count(*) = 0 or bool_or(state_change > backend_start + interval '4 seconds') "+notifiers)
	})
	if after := b.notifierPIDs(); fmt.Sprint(after) != fmt.Sprint(before) {
		t.Fatalf("the listen backend was %v and is %v", before, after)
	}
}

func (b *bundle) acquireAll(pool *pgxpool.Pool) []*pgxpool.Conn {
	b.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, testTimeout)
	defer cancel()
	conns := make([]*pgxpool.Conn, pool.Stat().MaxConns())
	for i := range conns {
		conn, err := pool.Acquire(ctx)
		must(b.T, err)
		conns[i] = conn
	}
	return conns
}

// The state's reason says what to do. The worker polls through the pool, and recovers when it is done.
func aRefusedListenConnectionIsReportedAndRecovers(b *bundle) {
	for name, c := range map[string]struct{ refuse, reason, advice, restore string }{
		"login": {"alter role %s nologin", "not permitted to log in", "check the user", "alter role %s login"},
		"password": {"alter role %s password 'another'", "password authentication failed", "check the user",
			"alter role %s password 'test'"},
		"membership": {"revoke spectral_worker from %s", "permission denied to set role", "grant spectral_worker to",
			"grant spectral_worker to %s"},
	} {
		b.run(name, func(b *bundle) {
			b.directURL = pgtest.Login(b.T, b.url, "spectral_worker")
			u, err := url.Parse(b.directURL)
			must(b.T, err)
			name := u.User.Username()
			l := b.startWorker(50*time.Millisecond, subscription(effectHandler("platform.one")))
			b.exec(fmt.Sprintf(c.refuse, name))
			b.killNotifier()
			l.wantState(testTimeout, notify.Reconnecting, c.reason)
			b.publish(event(1))
			l.awaitDelivered(1) // the poll delivers it
			if _, reason := l.Health().Now(); !strings.Contains(reason, c.advice) {
				b.Errorf("the reason does not say what to do: %s", reason)
			}
			b.exec(fmt.Sprintf(c.restore, name))
			l.wantState(testTimeout, notify.Listening, "")
			b.publish(event(1))
			l.awaitDelivered(1)
		})
	}
}

func stopReturnsInAnyState(b *bundle) {
	start := func(b *bundle, poll time.Duration, s *sockets) *testWorker {
		b.Helper()
		l := b.newWorker(poll, subscription(effectHandler("platform.one")), dialedBy(s))
		must(b.T, l.Start(b.ctx))
		return l
	}
	b.run("while it connects to a host that does not answer", func(b *bundle) {
		s := &sockets{via: dialForever}
		l := start(b, 50*time.Millisecond, s)
		b.publish(event(1))
		l.awaitDelivered(1) // the poll delivers it
		l.eventually("a connection attempt", func() bool { return s.count() > 0 })
		l.stop() // without the stop the attempt would take 5 s
	})
	b.run("while it polls on a half-open connection", func(b *bundle) {
		s := &sockets{}
		l := start(b, time.Second, s)
		l.wantState(testTimeout, notify.Listening, "")
		l.awaitNotifierIdle()
		s.dropTraffic()
		l.eventually("a statement", func() bool { return s.dropped.Load() > 0 })
		l.stop()
	})
	b.run("while it waits before it reconnects", func(b *bundle) {
		l := start(b, noPoll, &sockets{via: refuseDial})
		l.wantState(testTimeout, notify.Reconnecting, errOnPurpose.Error())
		l.stop()
	})
}
