package worker

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"spectral/internal/core/events"
	"spectral/internal/core/events/infrastructure/postgres/notify"
	"spectral/internal/core/events/infrastructure/postgres/pgtx"
)

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// In a long outage a worker makes a bounded number of attempts, however short its poll interval, and logs the reason
// once for each state. The clock is the bubble's.
func TestALongOutageCostsFewAttempts(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var listens, polls atomic.Int64
		refuse := func(n *atomic.Int64) func(context.Context, string, string) (net.Conn, error) {
			return func(context.Context, string, string) (net.Conn, error) {
				n.Add(1)
				return nil, errors.New("connection refused")
			}
		}
		const url = "postgres://u@127.0.0.1:1/d?sslmode=disable"
		direct, err := pgtx.DirectConfig(url)
		must(t, err)
		direct.DialFunc = refuse(&listens)
		config, err := pgtx.PoolConfig(url, 2, false)
		must(t, err)
		config.ConnConfig.DialFunc = refuse(&polls)
		pool, err := pgxpool.NewWithConfig(t.Context(), config)
		must(t, err)
		defer pool.Close()
		contracts, err := events.NewContracts()
		must(t, err)
		var log bytes.Buffer
		l, err := New(Config{
			Generation: 1, Direct: direct, Pool: pool, Contracts: contracts, Log: slog.New(slog.NewTextHandler(&log, nil)),
			Worker: uuid.New(), Name: "test", PollInterval: 50 * time.Millisecond,
		})
		must(t, err)
		must(t, l.Start(t.Context()))
		synctest.Wait()
		state, reason := l.Health().Now()
		if state != notify.Reconnecting || !strings.Contains(reason, "connection refused") || listens.Load() != 1 {
			t.Fatalf("after %d attempts it is %s: %s", listens.Load(), state, reason)
		}
		time.Sleep(time.Second) //nolint:forbidigo // of the bubble's clock, which does not wait
		synctest.Wait()
		if listens.Load() != 2 {
			t.Fatalf("%d attempts in the first second", listens.Load())
		}
		time.Sleep(time.Minute) //nolint:forbidigo // as above
		synctest.Wait()
		if state, _ := l.Health().Now(); state != notify.Polling {
			t.Fatalf("after a minute it is %s", state)
		}
		time.Sleep(59 * time.Minute) //nolint:forbidigo // as above
		synctest.Wait()
		// every 30 s less jitter, on either way
		if a, b := listens.Load(), polls.Load(); a > 200 || b > 200 || a < 100 || b < 100 {
			t.Fatalf("%d attempts to listen and %d to poll in an hour", a, b)
		}
		must(t, l.Stop(t.Context()))
		if n := strings.Count(log.String(), "level=WARN"); n != 2 {
			t.Fatalf("%d warnings: %s", n, log.String())
		}
	})
}
