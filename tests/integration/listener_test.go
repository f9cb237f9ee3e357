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
	"spectral/internal/core/events/infrastructure/postgres"
	"spectral/tests/pgtest"
)

// The LISTEN connection under every fault that is known of, and what the listener says then.

const doorbells = "from pg_stat_activity where application_name = 'doorbell' and datname = current_database() and backend_type = 'client backend'"

// doorbellPIDs are the LISTEN backends of this test's database.
func (b *bundle) doorbellPIDs() []int32 {
	b.Helper()
	return one[[]int32](b, "select coalesce(array_agg(pid), '{}') "+doorbells)
}

func (b *bundle) killDoorbell() {
	b.Helper()
	if n := one[int](b, "select count(pg_terminate_backend(pid))::int "+doorbells); n != 1 {
		b.Fatalf("%d LISTEN backends", n)
	}
}

// waiting awaits that the LISTEN connection has nothing more to ask for now.
func (b *bundle) waiting() {
	b.Helper()
	b.eventually("the doorbell waits", func() bool {
		return one[bool](b, "select coalesce(bool_and(state = 'idle' and state_change < clock_timestamp() - interval '200 milliseconds'), false) "+doorbells)
	})
}

// through lets a listener's LISTEN connection go through s.
func through(s *sockets) func(*pgx.ConnConfig) {
	return func(c *pgx.ConnConfig) { c.DialFunc = s.dial }
}

// wantState awaits a state whose reason holds a text, and fails after limit.
func (l *listening) wantState(limit time.Duration, state postgres.State, reason string) {
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

// The self-test is for more than poolers: two URLs may lead to two databases.
func TestAListenConnectionToAnotherDatabaseIsSaid(t *testing.T) {
	b := setup(t)
	b.directURL = pgtest.New(t)
	wire := &sockets{}
	l := b.newListener(100*time.Millisecond, pgtest.Generation, subscription(leaving("platform.one")), through(wire))
	must(t, l.Start(b.ctx))
	t.Cleanup(l.stop)
	l.wantState(testTimeout, postgres.Polling, "or to another database than SPECTRAL_POOL_URL")
	b.publish(event(1))
	l.delivered(1)
	b.eventually("it has tried again", func() bool { return wire.count() >= 2 })
	there := &bundle{T: t, ctx: b.ctx, pool: pgtest.Pool(t, b.directURL)}
	if n := len(there.doorbellPIDs()); n > 1 {
		t.Fatalf("%d LISTEN backends", n)
	}
}

// Whatever a login's defaults are, LISTEN stays and handlers have their time.
func TestSettingsOfTheLoginChangeNothing(t *testing.T) {
	b := setup(t)
	login := pgtest.Login(t, b.url, "spectral_worker")
	b.directURL, b.poolURL = login, login
	u, err := url.Parse(login)
	must(t, err)
	for _, setting := range []string{
		"idle_session_timeout = '1s'", "statement_timeout = '100ms'", "lock_timeout = '10ms'",
		"idle_in_transaction_session_timeout = '100ms'", "default_transaction_read_only = on", "default_transaction_isolation = 'serializable'",
		"tcp_user_timeout = 0",
	} {
		b.exec("alter role " + u.User.Username() + " set " + setting)
	}
	settings := make(chan string, 1)
	l := b.listen(noPoll, subscription(handler("platform.one", func(ctx context.Context, tx events.Tx, e events.Envelope) error {
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
	before := b.doorbellPIDs()
	b.publish(event(1))
	l.delivered(1)
	if got := <-settings; got != "1min 60000 0 0" {
		t.Fatalf("a handler's timeouts are %s", got)
	}
	b.eventually("it was pinged after more than a second", func() bool {
		return one[bool](b, "select count(*) = 0 or bool_or(state_change > backend_start + interval '4 seconds') "+doorbells)
	})
	if after := b.doorbellPIDs(); fmt.Sprint(after) != fmt.Sprint(before) {
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
		"database":   {"revoke connect on database %[2]s from public", "permission denied for database", "", "grant connect on database %[2]s to public"},
	} {
		b.run(name, func(b *bundle) {
			b.directURL = pgtest.Login(b.T, b.url, "spectral_worker")
			u, err := url.Parse(b.directURL)
			must(b.T, err)
			name, database := u.User.Username(), strings.TrimPrefix(u.Path, "/")
			l := b.listen(noPoll, subscription(leaving("platform.one")))
			b.exec(fmt.Sprintf(c.refuse+"%.0[1]s%.0[2]s", name, database))
			b.killDoorbell()
			l.wantState(testTimeout, postgres.Reconnecting, c.reason)
			if _, reason := l.Health().Now(); !strings.Contains(reason, c.advice) {
				b.Errorf("what to do is not said: %s", reason)
			}
			b.exec(fmt.Sprintf(c.restore+"%.0[1]s%.0[2]s", name, database))
			l.wantState(testTimeout, postgres.Listening, "")
			b.publish(event(1))
			l.delivered(1)
		})
	}
}

func stopReturnsWhateverTheWorkerIsDoing(b *bundle) {
	start := func(b *bundle, poll time.Duration, s *sockets) *listening {
		b.Helper()
		l := b.newListener(poll, pgtest.Generation, subscription(leaving("platform.one")), through(s))
		must(b.T, l.Start(b.ctx))
		return l
	}
	b.run("connecting to a black hole", func(b *bundle) {
		s := &sockets{via: blackHole}
		l := start(b, noPoll, s)
		l.eventually("it connects", func() bool { return s.count() > 0 })
		l.stops() // by itself an attempt ends after 5 s
	})
	b.run("looking on a half-open connection", func(b *bundle) {
		s := &sockets{}
		l := start(b, time.Second, s)
		l.wantState(testTimeout, postgres.Listening, "")
		l.waiting()
		s.swallow()
		l.eventually("it asks", func() bool { return s.swallowed.Load() > 0 })
		l.stops()
	})
	b.run("backing off", func(b *bundle) {
		l := start(b, noPoll, &sockets{via: refusing})
		l.wantState(testTimeout, postgres.Reconnecting, errRefusing.Error())
		l.stops()
	})
}
