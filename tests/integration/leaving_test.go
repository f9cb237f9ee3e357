package integration_test

import (
	"bytes"
	"context"
	"net"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"

	"spectral/tests/pgtest"
)

// registering is a LISTEN connection that tells when the worker is about to register.
type registering struct {
	net.Conn
	once sync.Once
	now  chan struct{}
}

func (r *registering) Write(p []byte) (int, error) {
	if bytes.Contains(p, []byte("worker_register")) {
		r.once.Do(func() { close(r.now) })
	}
	return r.Conn.Write(p)
}

// A worker that is stopped as it registers leaves nothing behind that looks like one that died.
func TestAWorkerStoppedAsItRegistersLeavesNothing(t *testing.T) {
	b := setup(t)
	for range 20 {
		now := make(chan struct{})
		l := b.newListener(never, pgtest.Generation, subscription(leaving("platform.x")), func(config *pgx.ConnConfig) {
			dial := config.DialFunc
			config.DialFunc = func(ctx context.Context, network, address string) (net.Conn, error) {
				conn, err := dial(ctx, network, address)
				if err != nil {
					return nil, err
				}
				return &registering{Conn: conn, now: now}, nil
			}
		})
		must(t, l.Start(b.ctx))
		select {
		case <-now:
		case <-b.ctx.Done():
			t.Fatal("it does not register")
		}
		must(t, l.Stop(b.ctx))
	}
	if left := one[int](b, "select count(*) from core.workers"); left != 0 {
		t.Errorf("%d workers are left that nobody runs", left)
	}
}
