package integration_test

import (
	"bytes"
	"context"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"spectral/tests/pgtest"
)

// The interleavings that the doorbell must survive, each forced: the poll is out of reach, so a
// row that the protocol strands stays behind.

// producer publishes and makes the trigger decide now; its commit is the test's to make.
func (b *bundle) producer() *pgx.Conn { return b.producerOf(happenedType) }

func (b *bundle) producerOf(eventType string) *pgx.Conn {
	b.Helper()
	conn := pgtest.Conn(b.T, b.url)
	_, err := conn.Exec(b.ctx, `begin; select core.outbox_publish('`+eventType+`', 'worlds', '{"n": 1}'); set constraints all immediate`)
	must(b.T, err)
	return conn
}

func (b *bundle) commit(conn *pgx.Conn) {
	b.Helper()
	_, err := conn.Exec(b.ctx, "commit")
	must(b.T, err)
}

// before runs do, once, before the listener's connection first sends a statement with this text.
func before(text string, do func()) func(*pgx.ConnConfig) {
	return func(c *pgx.ConnConfig) {
		c.DefaultQueryExecMode = pgx.QueryExecModeExec // the text goes over the wire each time
		dial := c.DialFunc
		var once sync.Once
		c.DialFunc = func(ctx context.Context, network, address string) (net.Conn, error) {
			conn, err := dial(ctx, network, address)
			return &watchedConn{conn, []byte(text), func() { once.Do(do) }}, err
		}
	}
}

type watchedConn struct {
	net.Conn
	text []byte
	do   func()
}

func (c *watchedConn) Write(p []byte) (int, error) {
	if bytes.Contains(p, c.text) {
		c.do()
	}
	return c.Conn.Write(p)
}

// The elected notifier commits and is drained while a silent one is still in its commit.
func TestASilentProducerIsWaitedFor(t *testing.T) {
	b := setup(t)
	l := b.listen(never, subscription(leaving("platform.one")))
	elected, silent := b.producer(), b.producer()
	b.commit(elected)
	l.delivered(1)
	b.commit(silent)
	l.delivered(1)
}

// The silent one commits after the last look and before the question whether all is quiet.
func TestOneMoreLookFollowsQuiet(t *testing.T) {
	b := setup(t)
	elected, silent := b.producer(), b.producer()
	l := b.newListener(never, pgtest.Generation, subscription(leaving("platform.one")),
		before("outbox_quiet", func() { b.commit(silent) }))
	b.commit(elected)
	l.start()
	l.delivered(2)
}

// Postgres lets a transaction's locks go one by one: S may be free while A is still held, and a
// producer that comes then stays silent.
func TestTheNotifiersLockIsWaitedFor(t *testing.T) {
	b := setup(t)
	holder := pgtest.Conn(t, b.url)
	_, err := holder.Exec(b.ctx, "begin; select pg_advisory_xact_lock(hashtextextended('outbox_gen_1', 2891336453310961517))")
	must(t, err)
	l := b.listen(never, subscription(leaving("platform.one")))
	silent := b.producer()
	b.commit(silent)
	l.delivered(1)
}

// A row is committed before LISTEN takes effect: the first look comes after it and finds the row.
func TestListenComesBeforeTheFirstLook(t *testing.T) {
	b := setup(t)
	producer := b.producer()
	l := b.newListener(never, pgtest.Generation, subscription(leaving("platform.one")),
		before("listen ", func() { b.commit(producer) }))
	l.start()
	l.delivered(1)
}

// A listener at its barrier holds S alone: a producer that finds it so notifies, whoever else does.
func TestAProducerThatMeetsTheBarrierNotifies(t *testing.T) {
	b := setup(t)
	raw := pgtest.Conn(t, b.url)
	_, err := raw.Exec(b.ctx, "listen outbox_gen_1")
	must(t, err)
	barrier := pgtest.Conn(t, b.url)
	_, err = barrier.Exec(b.ctx, "begin; select pg_advisory_xact_lock(hashtextextended('outbox_gen_1', 7310579632010148197))")
	must(t, err)
	first, second := b.producer(), b.producer()
	b.commit(second)
	b.commit(first)
	ctx, cancel := context.WithTimeout(b.ctx, patience)
	defer cancel()
	for range 2 {
		if _, err := raw.WaitForNotification(ctx); err != nil {
			t.Fatal(err)
		}
	}
}

// A notifier that aborts after its decision leaves whoever was silent beside it to the poll.
func TestWhatASilentProducersNotifierLeavesIsPolled(t *testing.T) {
	b := setup(t)
	l := b.listen(500*time.Millisecond, subscription(leaving("platform.one")))
	elected := b.producerOf(happenedType)
	silent := b.producerOf(happenedType)
	b.commit(silent)
	_, err := elected.Exec(b.ctx, "rollback")
	must(t, err)
	l.delivered(1)
}
