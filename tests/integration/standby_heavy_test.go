//go:build heavy

package integration_test

import (
	"bytes"
	"context"
	"net"
	"net/url"
	"strings"
	"testing"
	"time"

	"spectral/internal/core/events/infrastructure/postgres/notify"
	"spectral/internal/core/events/infrastructure/postgres/pgtx"
	"spectral/tests/pgtest"
)

// hidingStandby dials address and hides that the server says it is a hot standby, as an old pooler
// in between would.
func hidingStandby(address string) func(context.Context, string, string) (net.Conn, error) {
	return func(ctx context.Context, network, _ string) (net.Conn, error) {
		conn, err := new(net.Dialer).DialContext(ctx, network, address)
		return &hiding{conn}, err
	}
}

type hiding struct{ net.Conn }

func (c *hiding) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	copy(p[:n], bytes.ReplaceAll(p[:n], []byte("in_hot_standby\x00on"), []byte("in_hot_standby\x00??")))
	return n, err
}

// A standby is refused as we connect, in favour of the URL's next host, and taken once it is the primary.
func TestAStandbyIsRefused(t *testing.T) {
	b := setup(t)
	standby := pgtest.NewStandby(t)
	there := standby.Of(t, b.url)
	s := subscription(leaving("platform.one"))

	// the first of several hosts
	u, err := url.Parse(b.url)
	must(t, err)
	u.Host = standby.Address() + "," + u.Host
	for _, attributes := range []string{"any", "read-write", "prefer-standby"} {
		b.directURL = u.String() + "&target_session_attrs=" + attributes
		b.poolURL = b.directURL
		l := b.newWorker(noPoll, pgtest.Generation, s)
		l.start()
		b.publish(event(1))
		l.delivered(1)
		l.stop()
	}

	// a demand that we cannot meet
	config, err := pgtx.DirectConfig(b.url + "&target_session_attrs=standby")
	must(t, err)
	if err := config.ValidateConnect(b.ctx, b.conn().PgConn()); err == nil || !strings.Contains(err.Error(), "not in hot standby") {
		t.Fatalf("target_session_attrs of the URL counts no more: %v", err)
	}

	// alone
	b.directURL, b.poolURL = there, there
	l := b.newWorker(50*time.Millisecond, pgtest.Generation, s)
	must(t, l.Start(b.ctx))
	t.Cleanup(l.stop)
	l.wantState(testTimeout, notify.Reconnecting, "hot standby")
	if _, err := l.workers.Acquire(b.ctx); err == nil || !strings.Contains(err.Error(), "hot standby") {
		t.Fatalf("the pool says %v", err)
	}

	// hidden
	wire := &sockets{via: hidingStandby(standby.Address())}
	hidden := b.newWorker(noPoll, pgtest.Generation, s, through(wire))
	must(t, hidden.Start(b.ctx))
	t.Cleanup(hidden.stop)
	hidden.wantState(testTimeout, notify.Reconnecting, "hot standby")
	hidden.stop()

	standby.Promote(t)
	l.wantState(2*testTimeout, notify.Listening, "")
	_, err = pgtest.Conn(t, there).Exec(b.ctx, "select core.outbox_publish('worlds.test.happened', 'worlds', '{\"n\": 1}')")
	must(t, err)
	l.delivered(1)
}
