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

// dialHidingStandby dials address and hides that the server reports a hot standby, as an old pooler would.
func dialHidingStandby(address string) func(context.Context, string, string) (net.Conn, error) {
	return func(ctx context.Context, network, _ string) (net.Conn, error) {
		conn, err := new(net.Dialer).DialContext(ctx, network, address)
		return &standbyHidingConn{conn}, err
	}
}

type standbyHidingConn struct{ net.Conn }

func (c *standbyHidingConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	copy(p[:n], bytes.ReplaceAll(p[:n], []byte("in_hot_standby\x00on"), []byte("in_hot_standby\x00??")))
	return n, err
}

// Connecting to a standby fails, or goes to the URL's next host.
func TestStandbyIsRefusedUntilPromoted(t *testing.T) {
	b := setup(t)
	standby := pgtest.NewStandby(t)
	standbyURL := standby.Of(t, b.url)
	s := subscription(effectHandler("platform.one"))

	// A standby that is the first of several hosts.
	u, err := url.Parse(b.url)
	must(t, err)
	u.Host = standby.Address() + "," + u.Host
	for _, attributes := range []string{"any", "read-write", "prefer-standby"} {
		b.directURL = u.String() + "&target_session_attrs=" + attributes
		b.poolURL = b.directURL
		l := b.startWorker(noPoll, s)
		b.publish(event(1))
		l.awaitDelivered(1)
		l.stop()
	}

	// The URL demands a standby.
	config, err := pgtx.DirectConfig(b.url + "&target_session_attrs=standby")
	must(t, err)
	if err := config.ValidateConnect(b.ctx, b.conn().PgConn()); err == nil ||
		!strings.Contains(err.Error(), "not in hot standby") {
		t.Fatalf("target_session_attrs of the URL is ignored: %v", err)
	}

	// A standby that is the only host.
	b.directURL, b.poolURL = standbyURL, standbyURL
	l := b.newWorker(50*time.Millisecond, s)
	must(t, l.Start(b.ctx))
	t.Cleanup(l.stop)
	l.wantState(testTimeout, notify.Reconnecting, "hot standby")
	if _, err := l.workers.Acquire(b.ctx); err == nil || !strings.Contains(err.Error(), "hot standby") {
		t.Fatalf("the pool says %v", err)
	}

	// A standby that does not report itself as one.
	wire := &sockets{via: dialHidingStandby(standby.Address())}
	hidden := b.newWorker(noPoll, s, dialedBy(wire))
	must(t, hidden.Start(b.ctx))
	t.Cleanup(hidden.stop)
	hidden.wantState(testTimeout, notify.Reconnecting, "hot standby")
	hidden.stop()

	standby.Promote(t)
	l.wantState(2*testTimeout, notify.Listening, "")
	_, err = pgtest.Conn(t, standbyURL).Exec(b.ctx,
		"select core.outbox_publish('worlds.test.happened', 'worlds', '{\"n\": 1}')")
	must(t, err)
	l.awaitDelivered(1)
}
