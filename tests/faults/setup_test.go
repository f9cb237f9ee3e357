package faults_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"spectral/internal/app"
	"spectral/internal/core/events/infrastructure/postgres/publish"
	"spectral/tests/faults/ledger"
	"spectral/tests/faults/process"
	"spectral/tests/faults/proxy"
	"spectral/tests/faults/server"
	"spectral/tests/pgtest"
)

const testTimeout = 30 * time.Second

const listening = "listening"

// bundle is a migrated database that records effects (ledger.Prepare), and the URLs to reach it.
type bundle struct {
	*testing.T
	direct    func() string // as the superuser, past any proxy
	worker    string        // as a login of the role spectral_worker
	publisher string        // as a login of the role spectral_worlds

	mu     sync.Mutex
	reader *pgx.Conn // used by one, under mu
}

func setup(t *testing.T) *bundle {
	t.Helper()
	t.Parallel()
	at := pgtest.New(t)
	b := &bundle{
		T: t, direct: func() string { return at },
		worker: pgtest.Login(t, at, "spectral_worker"), publisher: pgtest.Login(t, at, "spectral_worlds"),
	}
	ledger.Prepare(t, at)
	return b
}

// setupServer starts a server for this test alone, behind a proxy that the URLs of worker and publisher lead through.
func setupServer(t *testing.T) (*bundle, *server.Server) {
	t.Helper()
	return setupServerWith(t, nil)
}

func setupServerWith(t *testing.T, settings map[string]string) (*bundle, *server.Server) {
	t.Helper()
	t.Parallel()
	s, database := server.NewMigrated(t, settings)
	p := proxy.New(t, s.Addr)
	at := s.URL(database)
	b := &bundle{
		T: t, direct: func() string { return s.URL(database) },
		worker:    p.URL(t, s.Login(t, at, "worker", "spectral_worker")),
		publisher: p.URL(t, s.Login(t, at, "publisher", "spectral_worlds")),
	}
	ledger.Prepare(t, at)
	return b, s
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// command returns how to run the real worker. pool may be empty.
func (b *bundle) command(direct, pool string) process.Command {
	b.Helper()
	return process.Command{
		Path: workers.Path(b.T), Args: []string{"run"},
		Env: []string{app.EnvDatabaseURL + "=" + direct, app.EnvPoolURL + "=" + pool,
			app.EnvGeneration + "=" + strconv.Itoa(pgtest.Generation)},
	}
}

func (b *bundle) run(direct, pool string) *process.Process {
	b.Helper()
	p := process.Start(b.T, b.command(direct, pool))
	p.Await(b.T, listening, 1, testTimeout)
	return p
}

func (b *bundle) runAll(n int, direct, pool string) []*process.Process {
	b.Helper()
	command := b.command(direct, pool)
	all := make([]*process.Process, n)
	for i := range all {
		all[i] = process.Start(b.T, command)
	}
	for _, p := range all {
		p.Await(b.T, listening, 1, 2*testTimeout)
	}
	return all
}

func wantRunning(t testing.TB, all []*process.Process) {
	t.Helper()
	for _, p := range all {
		select {
		case <-p.Exited():
			t.Errorf("worker %d has ended with code %d", p.PID(), p.AwaitExit(t))
		default:
		}
	}
}

// restartPause is how long a supervisor waits before it restarts a worker.
const restartPause = 200 * time.Millisecond

// testCommand returns how to run the test binary as a worker of test events. kind is a value of workerVariable.
func (b *bundle) testCommand(kind string) process.Command {
	b.Helper()
	path, err := os.Executable()
	must(b.T, err)
	return process.Command{Path: path, Env: []string{workerVariable + "=" + kind, app.EnvDatabaseURL + "=" + b.worker,
		app.EnvGeneration + "=" + strconv.Itoa(pgtest.Generation)}}
}

// register registers the contracts of the test events before any worker has started.
func (b *bundle) register() {
	b.Helper()
	contracts, err := testContracts()
	must(b.T, err)
	must(b.T, publish.Register(b.Context(), pgtest.Conn(b.T, b.direct()), pgtest.Generation, contracts))
}

// seed returns the start of the random sequence, from SPECTRAL_FAULTS_SEED if it is set.
func seed(t testing.TB) uint64 {
	t.Helper()
	value := rand.Uint64()
	if text := os.Getenv("SPECTRAL_FAULTS_SEED"); text != "" {
		var err error
		value, err = strconv.ParseUint(text, 10, 64)
		must(t, err)
	}
	t.Logf("SPECTRAL_FAULTS_SEED=%d", value)
	return value
}

// pass lets the load or the fault go on for d.
func pass(t testing.TB, d time.Duration) {
	t.Helper()
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-t.Context().Done():
		t.Fatal("the test has ended")
	}
}

func (b *bundle) eventually(what string, within time.Duration, condition func() bool) {
	b.Helper()
	if !pgtest.Eventually(within, condition) {
		b.Fatalf("%s did not happen within %s", what, within)
	}
}

// one reads a single value. It connects again if the server was restarted.
func one[T any](b *bundle, sql string, args ...any) (v T) {
	b.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), testTimeout)
	defer cancel()
	if b.reader != nil {
		err := b.reader.QueryRow(ctx, sql, args...).Scan(&v)
		if err == nil || !b.reader.IsClosed() {
			must(b.T, err)
			return v
		}
	}
	b.reader = pgtest.Conn(b.T, b.direct())
	must(b.T, b.reader.QueryRow(ctx, sql, args...).Scan(&v))
	return v
}

// cardLock is a lock that the projector of one card waits for.
type cardLock struct {
	*bundle
	key  string
	conn *pgx.Conn
}

// lockCard takes the lock of a card, whose key begins with ledger.LockedPrefix.
func (b *bundle) lockCard(key string) *cardLock {
	b.Helper()
	if !strings.HasPrefix(key, ledger.LockedPrefix) {
		b.Fatalf("key %q does not begin with %s", key, ledger.LockedPrefix)
	}
	h := &cardLock{bundle: b, key: key, conn: pgtest.Conn(b.T, b.direct())}
	_, err := h.conn.Exec(b.Context(), "select pg_advisory_lock($1, hashtext($2))", ledger.LockClass, key)
	must(b.T, err)
	return h
}

// awaitHandler waits until a projector waits for the lock, and returns the pid of its backend.
func (h *cardLock) awaitHandler() (backend int) {
	h.Helper()
	h.eventually("the handler of "+h.key+" runs", testTimeout, func() bool {
		backend = one[int](h.bundle, `select coalesce(max(pid), 0) from pg_locks
			where locktype = 'advisory' and database = (select oid from pg_database where datname = current_database())
			and classid = $1::int and objid::bigint = hashtext($2)::bigint & 4294967295 and not granted`,
			ledger.LockClass, h.key)
		return backend != 0
	})
	return backend
}

func (h *cardLock) release() {
	h.Helper()
	_, err := h.conn.Exec(h.Context(), "select pg_advisory_unlock($1, hashtext($2))", ledger.LockClass, h.key)
	must(h.T, err)
}

// card returns the status and the attempts of a card's event.
func (b *bundle) card(key string) string {
	b.Helper()
	return one[string](b, "select status || ' ' || attempts from core.outbox where payload ->> 'title' = $1", key)
}

// workers is the real binary, built when a test first needs it.
var workers process.Binary

func TestMain(m *testing.M) {
	if os.Getenv(workerVariable) != "" {
		os.Exit(runWorker())
	}
	code := pgtest.Run(m)
	if err := workers.Remove(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}
