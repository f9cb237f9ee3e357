package pgtest

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"spectral/internal/app"
	"spectral/internal/app/embeddedpg"
	"spectral/internal/core/events/infrastructure/postgres/pgtx"
)

// Generation is the generation that the databases have and tests publish under.
const Generation = 1

const (
	startTimeout = 3 * time.Minute // for a loaded machine
	templateName = "spectral_template"
	fixturesName = "spectral_fixtures"
)

var (
	once     sync.Once
	server   *embeddedpg.Server
	stop     func() error
	errStart error
	sequence atomic.Int64
	cloning  sync.Mutex // Postgres allows one session at a time to copy a template

	fixtures func(ctx context.Context, url string) error // of this test binary; may be nil
	copied   = templateName                              // the database that New copies

	administrator struct {
		sync.Mutex
		conn *pgx.Conn
	}
)

// Main is Run for a TestMain that does nothing else.
func Main(m *testing.M) { os.Exit(Run(m)) }

// MainWith is Main for a package whose tests share tables, contracts or functions. fill adds them to the template
// once, so that each database has them.
func MainWith(m *testing.M, fill func(ctx context.Context, url string) error) {
	fixtures = fill
	Main(m)
}

// Run runs the tests, stops the server and returns the exit code. It runs twice as many parallel tests as go test
// does by default, since they mostly wait for Postgres.
func Run(m *testing.M) int {
	flag.Parse()
	given := false
	flag.Visit(func(f *flag.Flag) { given = given || f.Name == "test.parallel" })
	if !given {
		_ = flag.Set("test.parallel", strconv.Itoa(2*runtime.GOMAXPROCS(0)))
	}
	code := m.Run()
	stopBroker()
	if server == nil {
		return code
	}
	if err := stop(); err != nil {
		fmt.Fprintln(os.Stderr, "stop the test server:", err)
		return 1
	}
	return code
}

func config() embeddedpg.Config { return embeddedpg.Config{BinDir: os.Getenv(app.EnvPostgresBin)} }

// Server returns the server, and starts it at the first call.
func Server(t testing.TB) *embeddedpg.Server {
	t.Helper()
	once.Do(func() {
		ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
		defer cancel()
		errStart = start(ctx)
	})
	if errStart != nil {
		t.Fatalf("test server: %v", errStart)
	}
	return server
}

func start(ctx context.Context) error {
	err := Prepared(ctx, func(dir, _ string) (err error) {
		server, stop, err = StartTemporary(ctx, dir, config().BinDir)
		return err
	})
	if err != nil {
		return err
	}
	if os.Getenv(envPartitions) != "" {
		alsoFixtures(Partition)
	}
	if Relayed() {
		alsoFixtures(func(ctx context.Context, url string) error {
			return administerAt(ctx, url, "select core.relay_switch('"+pgtx.PathJetStream+"')")
		})
	}
	if fixtures != nil {
		if err := addFixtures(ctx); err != nil {
			return fmt.Errorf("add the fixtures: %w", err)
		}
	}
	return readTemplate(ctx, server.URL(copied))
}

// alsoFixtures adds to what is done to the template after its migrations.
func alsoFixtures(more func(ctx context.Context, url string) error) {
	fill := fixtures
	fixtures = func(ctx context.Context, url string) error {
		if fill != nil {
			if err := fill(ctx, url); err != nil {
				return err
			}
		}
		return more(ctx, url)
	}
}

func addFixtures(ctx context.Context) error {
	if err := administer(ctx, "create database "+fixturesName+" strategy file_copy template "+templateName); err != nil {
		return err
	}
	copied = fixturesName
	if err := fixtures(ctx, server.URL(copied)); err != nil {
		return err
	}
	return endSessions(ctx, copied) // a database with sessions cannot be copied
}

// Migrate migrates the database at url and registers Generation. Use it for other servers.
func Migrate(ctx context.Context, url string) error {
	migrator, err := app.NewMigrator(ctx, url, slog.New(slog.DiscardHandler))
	if err != nil {
		return err
	}
	_, err = migrator.Up(ctx, Generation)
	if err := errors.Join(err, migrator.Close()); err != nil {
		return err
	}
	return administerAt(ctx, url, fmt.Sprintf("select core.generation_announce(%d)", Generation))
}

// envPartitions, if set, makes every test run on a core.outbox of monthly partitions.
const envPartitions = "SPECTRAL_TEST_PARTITIONS"

// Partition makes core.outbox of the database at url a table of monthly partitions.
func Partition(ctx context.Context, url string) error {
	migrator, err := app.NewMigrator(ctx, url, slog.New(slog.DiscardHandler))
	if err != nil {
		return err
	}
	begin, quietly := func(app.Partitioning) error { return nil }, func(string, ...any) {}
	return errors.Join(migrator.Partition(ctx, begin, quietly), migrator.Close())
}

func administer(ctx context.Context, sql string) error {
	return asAdministrator(ctx, func(conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, sql)
		return err
	})
}

// asAdministrator calls use with the connection that creates and drops databases and logins.
func asAdministrator(ctx context.Context, use func(*pgx.Conn) error) (err error) {
	administrator.Lock()
	defer administrator.Unlock()
	if administrator.conn == nil || administrator.conn.IsClosed() {
		if administrator.conn, err = pgx.Connect(ctx, server.URL("postgres")); err != nil {
			return err
		}
	}
	return use(administrator.conn)
}

func administerAt(ctx context.Context, url, sql string) error {
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(ctx) }()
	_, err = conn.Exec(ctx, sql)
	return err
}

// New returns the superuser's URL of a migrated database for one test. It may be one that an earlier test used. When
// the test ends, all sessions in it are terminated.
func New(t testing.TB) string {
	t.Helper()
	Server(t)
	pool.Lock()
	var d database
	if last := len(pool.idle) - 1; last >= 0 {
		d, pool.idle = pool.idle[last], pool.idle[:last]
	}
	pool.Unlock()
	if d.name == "" {
		d.name = create(t, " strategy file_copy template "+copied)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		err := recycle(ctx, d)
		if err == nil {
			return
		}
		if !errors.Is(err, errChanged) {
			t.Logf("the test's database is dropped: %v", err)
		}
		drop(t, d.name)
	})
	return server.URL(d.name)
}

// NewEmpty returns the superuser's URL of a database without migrations.
func NewEmpty(t testing.TB) string {
	t.Helper()
	return NewEmptyWith(t, "")
}

// NewEmptyWith is NewEmpty with options of CREATE DATABASE.
func NewEmptyWith(t testing.TB, options string) string {
	t.Helper()
	Server(t)
	name := create(t, " strategy file_copy "+options)
	t.Cleanup(func() { drop(t, name) })
	return server.URL(name)
}

func newName() string { return fmt.Sprintf("test_%d", sequence.Add(1)) }

func create(t testing.TB, from string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	name := newName()
	cloning.Lock()
	err := administer(ctx, "create database "+name+from)
	cloning.Unlock()
	if err != nil {
		t.Fatalf("create the test's database: %v", err)
	}
	return name
}

func drop(t testing.TB, name string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := administer(ctx, "drop database "+name+" with (force)"); err != nil {
		t.Errorf("drop the test's database: %v", err)
	}
}

// Pool opens a pool with an empty search_path, so that unqualified names fail.
func Pool(t testing.TB, url string) *pgxpool.Pool {
	t.Helper()
	config, err := pgxpool.ParseConfig(url)
	fatal(t, err)
	config.ConnConfig.RuntimeParams["search_path"] = ""
	config.MaxConns = 16
	pool, err := pgxpool.NewWithConfig(context.Background(), config)
	fatal(t, err)
	t.Cleanup(pool.Close)
	return pool
}

// Eventually asks for a condition of which there is no signal until it is true, and reports whether that was in time.
func Eventually(within time.Duration, condition func() bool) bool {
	deadline := time.NewTimer(within)
	defer deadline.Stop()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for !condition() {
		select {
		case <-tick.C:
		case <-deadline.C:
			return false
		}
	}
	return true
}

// Conn opens a connection that is closed when the test ends.
func Conn(t testing.TB, url string) *pgx.Conn {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		t.Fatalf("connect: %v", err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		_ = conn.Close(ctx)
	})
	return conn
}

// Login creates a login that is a member of the given roles, and returns the URL with that login. The login is
// dropped when the test ends.
func Login(t testing.TB, databaseURL string, memberOf ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	name := fmt.Sprintf("login_%d_%d", os.Getpid(), sequence.Add(1))
	sql := fmt.Sprintf("create role %s login password 'test'", name)
	for _, role := range memberOf {
		sql += fmt.Sprintf("; grant %s to %s", role, name)
	}
	if err := administer(ctx, sql); err != nil {
		t.Fatalf("create login: %v", err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		if err := administer(ctx, "drop role "+name); err != nil {
			t.Errorf("drop login: %v", err)
		}
	})
	u, err := url.Parse(databaseURL)
	fatal(t, err)
	u.User = url.UserPassword(name, "test")
	return u.String()
}
