package cli_test

import (
	"context"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"spectral/tests/faults/process"
	"spectral/tests/pgtest"
)

// Signals within a second are one, and the command finishes its transaction; a signal after a second kills it.
func TestASecondSignalKills(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 4*testTimeout)
	defer cancel()
	at := pgtest.New(t)
	conn, operator := pgtest.Conn(t, at), pgtest.Login(t, at, "spectral_operator")
	workers, err := exec.LookPath("workers") // this test's binary, see TestMain
	if err != nil {
		t.Fatal(err)
	}
	// undiscarding starts a command, and sends it signals, while it waits for a lock, until over is closed or it exits
	undiscarding := func(over func() <-chan struct{}) int {
		if _, err := conn.Exec(ctx, `insert into core.outbox (event_type, event_version, source, content_class, generation,
			payload, idempotency_key, status, attempts, last_error, claimed_at, discarded_at, deleted_at)
			values ('a.b', 1, 'worlds', 'operational', 1, '{}', 'k',
			'failed', 6, 'E: a.b: no', now(), now(), now())`); err != nil {
			t.Fatal(err)
		}
		if _, err := conn.Exec(ctx, "begin; lock table core.operator_actions"); err != nil {
			t.Fatal(err)
		}
		p := process.Start(t, process.Command{Path: workers, Args: []string{"events", "undiscard", "--all", "--yes"},
			Env: []string{"DATABASE_URL=" + operator}})
		for waits := false; !waits; {
			if err := conn.QueryRow(ctx, `select exists (select from pg_locks where not granted
				and relation = 'core.operator_actions'::regclass
				and database = (select oid from pg_database where datname = current_database())), pg_sleep(0.02)`,
			).Scan(&waits, nil); err != nil {
				t.Fatal(err)
			}
		}
		tick := time.NewTicker(10 * time.Millisecond)
		defer tick.Stop()
		for end, going := over(), true; going; {
			p.Signal(syscall.SIGTERM)
			p.Signal(syscall.SIGINT)
			select {
			case <-p.Exited():
				going = false
			case <-end:
				going = false
			case <-ctx.Done():
				t.Fatal("it goes on after many signals")
			case <-tick.C:
			}
		}
		if _, err := conn.Exec(ctx, "commit"); err != nil {
			t.Fatal(err)
		}
		return p.AwaitExit(t)
	}
	together := func() <-chan struct{} {
		short, end := context.WithTimeout(ctx, 300*time.Millisecond)
		t.Cleanup(end)
		return short.Done()
	}
	if code := undiscarding(together); code != 0 {
		t.Errorf("after signals that came together it exits with %d", code)
	}
	if code := undiscarding(func() <-chan struct{} { return nil }); code != -1 {
		t.Errorf("it exits with %d, and was not killed", code)
	}
}
