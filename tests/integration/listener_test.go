package integration_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"spectral/internal/core/events"
	"spectral/internal/core/events/infrastructure/postgres/notify"
	"spectral/tests/pgtest"
)

// The LISTEN connection under every fault that is known of, and what the listener says then.

const notifiers = "from pg_stat_activity where application_name = 'notifier' and datname = current_database() and backend_type = 'client backend'"

// notifierPIDs are the LISTEN backends of this test's database.
func (b *bundle) notifierPIDs() []int32 {
	b.Helper()
	return one[[]int32](b, "select coalesce(array_agg(pid), '{}') "+notifiers)
}

func (b *bundle) killNotifier() {
	b.Helper()
	if n := one[int](b, "select count(pg_terminate_backend(pid))::int "+notifiers); n != 1 {
		b.Fatalf("%d LISTEN backends", n)
	}
}

// waiting awaits that the LISTEN connection has nothing more to ask for now.
func (b *bundle) waiting() {
	b.Helper()
	b.eventually("the notifier waits", func() bool {
		return one[bool](b, "select coalesce(bool_and(state = 'idle' and state_change < clock_timestamp() - interval '200 milliseconds'), false) "+notifiers)
	})
}

// through lets a listener's LISTEN connection go through s.
func through(s *sockets) func(*pgx.ConnConfig) {
	return func(c *pgx.ConnConfig) { c.DialFunc = s.dial }
}

// wantState awaits a state whose reason holds a text, and fails after limit.
func (l *listening) wantState(limit time.Duration, state notify.State, reason string) {
	l.Helper()
	deadline := time.NewTimer(limit)
	defer deadline.Stop()
	for {
		changed := l.Health().Changed()
		is, because := l.Health().Now()
		if is == state && strings.Contains(because, reason) {
			return
		}
		select {
		case <-changed:
		case <-deadline.C:
			l.Fatalf("the listener is %s (%s) after %s, want %s (%s)", is, because, limit, state, reason)
		}
	}
}

// stops stops the listener.
func (l *listening) stops() {
	l.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 4*testTimeout)
	defer cancel()
	must(l.T, l.Stop(ctx))
}

// notes is a log that a test reads.
type notes struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (n *notes) Write(p []byte) (int, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.text.Write(p)
}

func (n *notes) count(text string) int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return strings.Count(n.text.String(), text)
}

func (n *notes) reset() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.text.Reset()
}

func logTo(n *notes) slog.Handler { return slog.NewJSONHandler(n, nil) }

func address(t *testing.T, at string) string {
	t.Helper()
	u, err := url.Parse(at)
	must(t, err)
	return u.Host
}

// Whatever a login's defaults are, LISTEN stays, handlers have their time, and what is published is projected as it is: at
// REPEATABLE READ the dedup insert would raise 40001, with row_security off every policy would be an error, in LATIN1 text
// would be garbled.
func TestSettingsOfTheLoginChangeNothing(t *testing.T) {
	b := setup(t)
	login := pgtest.Login(t, b.url, "spectral_worker")
	b.directURL, b.poolURL = login, login
	u, err := url.Parse(login)
	must(t, err)
	for _, setting := range []string{
		"idle_session_timeout = '1s'", "statement_timeout = '100ms'", "lock_timeout = '10ms'",
		"idle_in_transaction_session_timeout = '100ms'", "default_transaction_read_only = on", "default_transaction_isolation = 'serializable'",
		"tcp_user_timeout = 0", "row_security = off", "client_encoding = 'LATIN1'", "search_path = nowhere", "DateStyle = German",
		"IntervalStyle = iso_8601", "TimeZone = 'Asia/Kolkata'", "bytea_output = escape", "extra_float_digits = 0", "standard_conforming_strings = off",
	} {
		b.exec("alter role " + u.User.Username() + " set " + setting)
	}
	settings := make(chan string, 1)
	b.uow.Pool = b.workersPool()
	l := b.newWorker(noPoll, pgtest.Generation, subscription(handler("platform.one", func(ctx context.Context, tx events.Tx, e events.Envelope) error {
		var pid int
		var has string
		if err := tx.QueryRow(ctx, `select pg_backend_pid(), concat_ws(' ', current_setting('idle_in_transaction_session_timeout'),
			current_setting('tcp_user_timeout'), current_setting('statement_timeout'), current_setting('lock_timeout'))
			from pg_sleep(0.3)`).Scan(&pid, &has); err != nil {
			return err
		}
		settings <- has
		b.eventually("it has been idle for a while", func() bool {
			return one[bool](b, "select count(*) = 0 or bool_and(state_change < clock_timestamp() - interval '300 milliseconds') from pg_stat_activity where pid = $1", pid)
		})
		return effect("platform.one")(ctx, tx, e)
	})))
	must(t, l.Listen(b.ctx, projection()))
	l.start()
	before := b.notifierPIDs()
	_, err = b.publishCard().Publish(b.ctx, aWorkspace(), card(t, "中é", "T中é"))
	must(t, err)
	l.delivered(1)
	if n := one[int](b, `select count(*)::int from platform.system_cards s join worlds.world_model_cards w on w.card::text = s.snapshot::text
		where s.card_id = $1 and s.title = $2`, "中é", "T中é"); n != 1 {
		t.Error("not projected as it was published")
	}
	b.publish(event(1))
	l.delivered(1)
	if got := <-settings; got != "1min 60000 0 0" {
		t.Fatalf("a handler's timeouts are %s", got)
	}
	b.eventually("it was pinged after more than a second", func() bool {
		return one[bool](b, "select count(*) = 0 or bool_or(state_change > backend_start + interval '4 seconds') "+notifiers)
	})
	if after := b.notifierPIDs(); fmt.Sprint(after) != fmt.Sprint(before) {
		t.Fatalf("the LISTEN backend was %v and is %v", before, after)
	}
}

// allOf acquires every connection of a pool.
func (b *bundle) allOf(pool *pgxpool.Pool) []*pgxpool.Conn {
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

// What keeps the listener out is said with what to do about it, and over as soon as its cause is.
func aRefusedListenConnectionIsSaidAndHeals(b *bundle) {
	for name, c := range map[string]struct{ refuse, reason, advice, restore string }{
		"login":      {"alter role %s nologin", "not permitted to log in", "check the user", "alter role %s login"},
		"membership": {"revoke spectral_worker from %s", "permission denied to set role", "grant spectral_worker to", "grant spectral_worker to %s"},
	} {
		b.run(name, func(b *bundle) {
			b.directURL = pgtest.Login(b.T, b.url, "spectral_worker")
			u, err := url.Parse(b.directURL)
			must(b.T, err)
			name := u.User.Username()
			l := b.listen(noPoll, subscription(leaving("platform.one")))
			b.exec(fmt.Sprintf(c.refuse, name))
			b.killNotifier()
			l.wantState(testTimeout, notify.Reconnecting, c.reason)
			if _, reason := l.Health().Now(); !strings.Contains(reason, c.advice) {
				b.Errorf("what to do is not said: %s", reason)
			}
			b.exec(fmt.Sprintf(c.restore, name))
			l.wantState(testTimeout, notify.Listening, "")
			b.publish(event(1))
			l.delivered(1)
		})
	}
}

func stopReturnsWhateverTheWorkerIsDoing(b *bundle) {
	start := func(b *bundle, poll time.Duration, s *sockets) *listening {
		b.Helper()
		l := b.newWorker(poll, pgtest.Generation, subscription(leaving("platform.one")), through(s))
		must(b.T, l.Start(b.ctx))
		return l
	}
	b.run("connecting to a black hole", func(b *bundle) {
		s := &sockets{via: blackHole}
		l := start(b, 50*time.Millisecond, s)
		b.publish(event(1))
		l.delivered(1) // the poll goes on
		l.eventually("it connects", func() bool { return s.count() > 0 })
		l.stops() // by itself an attempt ends after 5 s
	})
	b.run("polling on a half-open connection", func(b *bundle) {
		s := &sockets{}
		l := start(b, time.Second, s)
		l.wantState(testTimeout, notify.Listening, "")
		l.waiting()
		s.swallow()
		l.eventually("it asks", func() bool { return s.swallowed.Load() > 0 })
		l.stops()
	})
	b.run("backing off", func(b *bundle) {
		l := start(b, noPoll, &sockets{via: refusing})
		l.wantState(testTimeout, notify.Reconnecting, errRefusing.Error())
		l.stops()
	})
}
