package cli_test

import (
	"context"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"spectral/tests/faults/process"
	"spectral/tests/pgtest"
)

// Signals within a second are one, and the command finishes its transaction; a signal after a second kills it.
func TestASecondSignalKills(t *testing.T) {
	t.Parallel()
	at := pgtest.New(t)
	conn, operator := pgtest.Conn(t, at), pgtest.Login(t, at, "spectral_operator")

	p, lock := blocked(t, conn, operator)
	together, end := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer end()
	repeat(t, p, together.Done())
	if err := lock.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if code := p.AwaitExit(t, testTimeout); code != 0 {
		t.Errorf("after signals that came together it exits with %d", code)
	}

	p, _ = blocked(t, conn, operator)
	first := repeat(t, p, p.Exited())
	if took := time.Since(first); took < time.Second {
		t.Errorf("it was killed after %s", took)
	}
	if code := p.AwaitExit(t, testTimeout); code != -1 {
		t.Errorf("it exits with %d, and was not killed", code)
	}
}

// blocked starts a command, and returns when it waits for a lock. Told to stop, the command finishes its transaction.
func blocked(t *testing.T, conn *pgx.Conn, operator string) (p *process.Process, lock pgx.Tx) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
	t.Cleanup(cancel)
	if _, err := conn.Exec(ctx, `insert into core.outbox (event_type, event_version, source, content_class, generation,
		payload, idempotency_key, status, attempts, last_error, claimed_at) values ('a.b', 1, 'worlds', 'operational', 1,
		'{}', 'k', 'failed', 6, 'E: a.b: no', now())`); err != nil {
		t.Fatal(err)
	}
	lock, err := conn.Begin(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := lock.Exec(ctx, "lock table core.operator_actions"); err != nil {
		t.Fatal(err)
	}
	workers, err := exec.LookPath("workers") // this test's binary, see TestMain
	if err != nil {
		t.Fatal(err)
	}
	p = process.Start(t, process.Command{Path: workers, Args: []string{"events", "discard", "--all", "--yes"},
		Env: []string{"DATABASE_URL=" + operator}})
	for waits := false; !waits; {
		if err := lock.QueryRow(ctx, `select exists (select from pg_locks where not granted
			and relation = 'core.operator_actions'::regclass
			and database = (select oid from pg_database where datname = current_database())), pg_sleep(0.02)`,
		).Scan(&waits, nil); err != nil {
			t.Fatal(err)
		}
	}
	return p, lock
}

// repeat signals a process again and again until a channel is closed. It returns after the first signal.
func repeat(t *testing.T, p *process.Process, over <-chan struct{}) (first time.Time) {
	t.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	deadline := time.After(testTimeout)
	first = time.Now()
	for i := 0; ; i++ {
		p.Signal([]syscall.Signal{syscall.SIGTERM, syscall.SIGINT}[i%2])
		select {
		case <-over:
			return first
		case <-deadline:
			t.Fatalf("it goes on after %d signals", i)
		case <-tick.C:
		}
	}
}
