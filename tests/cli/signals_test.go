package cli_test

import (
	"context"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"spectral/tests/faults/process"
	"spectral/tests/pgtest"
)

// busy starts a command that is in the middle of what it finishes also when it is told to stop, which it can as soon as the lock is let go.
func busy(t *testing.T) (p *process.Process, lock pgx.Tx) {
	t.Helper()
	ctx := t.Context()
	at := pgtest.New(t)
	conn := pgtest.Conn(t, at)
	if _, err := conn.Exec(ctx, `insert into core.outbox (event_type, event_version, source, content_class, generation, payload, idempotency_key, status, attempts,
		last_error, claimed_at) values ('a.b', 1, 'worlds', 'operational', 1, '{}', 'k', 'failed', 6, 'E: a.b: no', now())`); err != nil {
		t.Fatal(err)
	}
	lock, err := conn.Begin(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := lock.Exec(ctx, "lock table core.operator_actions"); err != nil {
		t.Fatal(err)
	}
	p = process.Start(t, process.Command{Path: binary.Path(t), Args: []string{"events", "discard", "--all", "--yes"},
		Env: []string{"DATABASE_URL=" + pgtest.Login(t, at, "spectral_operator")}})
	deadline, cancel := context.WithTimeout(ctx, testTimeout)
	defer cancel()
	for waits := false; !waits; {
		if err := lock.QueryRow(deadline, `select exists (select from pg_locks where relation = 'core.operator_actions'::regclass and not granted
			and database = (select oid from pg_database where datname = current_database()))`).Scan(&waits); err != nil {
			t.Fatal(err)
		}
	}
	return p, lock
}

// repeat signals a process every so often until something is over, and returns when the first signal was sent.
func repeat(t *testing.T, p *process.Process, signals []syscall.Signal, over <-chan struct{}) (first time.Time) {
	t.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	deadline := time.NewTimer(testTimeout)
	defer deadline.Stop()
	first = time.Now()
	for i := 0; ; i++ {
		p.Signal(signals[i%len(signals)])
		select {
		case <-over:
			return first
		case <-deadline.C:
			t.Fatalf("it goes on after %d signals", i)
		case <-tick.C:
		}
	}
}

// Signals that come together are one: what the command is at is finished.
func TestSignalsThatComeTogether(t *testing.T) {
	t.Parallel()
	p, lock := busy(t)
	together, end := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer end()
	repeat(t, p, []syscall.Signal{syscall.SIGTERM, syscall.SIGINT}, together.Done())
	if err := lock.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if code := p.AwaitExit(t, testTimeout); code != 0 {
		t.Errorf("it exits with %d", code)
	}
}

// A signal that comes a second after the first kills, and none before.
func TestASecondSignalKills(t *testing.T) {
	t.Parallel()
	p, _ := busy(t)
	first := repeat(t, p, []syscall.Signal{syscall.SIGTERM}, p.Exited())
	if took := time.Since(first); took < time.Second {
		t.Errorf("it was killed after %s", took)
	}
	if code := p.AwaitExit(t, testTimeout); code != -1 {
		t.Errorf("it exits with %d, and was not killed", code)
	}
}
