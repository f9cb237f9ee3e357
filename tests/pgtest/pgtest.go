package pgtest

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"spectral/internal/app"
	"spectral/internal/app/embeddedpg"
)

// Generation is what the template registers and tests publish under unless they say otherwise.
const Generation = 1

const (
	startTimeout = 3 * time.Minute // a cold, shared machine
	templateName = "spectral_template"
)

var (
	once     sync.Once
	server   *embeddedpg.Server
	errStart error
	sequence atomic.Int64
	cloning  sync.Mutex // Postgres clones a template only while nobody else is cloning it
)

// Main runs the tests and stops the server they started.
func Main(m *testing.M) { os.Exit(Stop(m.Run())) }

// Stop stops the server, if one was started, and returns code, or 1 if that fails. For a TestMain
// that cannot be Main.
func Stop(code int) int {
	if server == nil {
		return code
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := server.Stop(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "stop the test server:", err)
		return 1
	}
	return code
}

// Server starts the server if need be and returns it.
func Server(t testing.TB) *embeddedpg.Server {
	t.Helper()
	once.Do(func() {
		ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
		defer cancel()
		server, errStart = embeddedpg.Start(ctx, embeddedpg.Config{Ephemeral: true, BinDir: os.Getenv(app.EnvPostgresBin)})
		if errStart == nil {
			errStart = createTemplate(ctx)
		}
	})
	if errStart != nil {
		t.Fatalf("test server: %v", errStart)
	}
	return server
}

func createTemplate(ctx context.Context) error {
	if err := administer(ctx, "create database "+templateName); err != nil {
		return err
	}
	return Migrate(ctx, server.URL(templateName))
}

// Migrate migrates the database at url and registers Generation: for a server other than the
// shared one.
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

func administer(ctx context.Context, sql string) error {
	return administerAt(ctx, server.URL("postgres"), sql)
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

// New returns the URL of a migrated database of the test's own, as the superuser. It is dropped
// when the test ends.
func New(t testing.TB) string {
	t.Helper()
	return clone(t, " template "+templateName)
}

// NewEmpty is New without the migrations.
func NewEmpty(t testing.TB) string {
	t.Helper()
	return clone(t, "")
}

func clone(t testing.TB, template string) string {
	t.Helper()
	Server(t)
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	name := fmt.Sprintf("test_%d", sequence.Add(1))
	cloning.Lock()
	err := administer(ctx, "create database "+name+template)
	cloning.Unlock()
	if err != nil {
		t.Fatalf("create the test's database: %v", err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := administer(ctx, "drop database "+name+" with (force)"); err != nil {
			t.Errorf("drop the test's database: %v", err)
		}
	})
	return server.URL(name)
}

// Pool connects to url with an empty search_path, so that unqualified SQL fails.
func Pool(t testing.TB, url string) *pgxpool.Pool {
	t.Helper()
	config, err := pgxpool.ParseConfig(url)
	if err != nil {
		t.Fatal(err)
	}
	config.ConnConfig.RuntimeParams["search_path"] = ""
	config.MaxConns = 16
	pool, err := pgxpool.NewWithConfig(context.Background(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return pool
}

// Conn opens one connection to url, closed when the test ends.
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

// Login creates a login that is a member of the given roles, and returns url as that login. It is
// dropped when the test ends.
func Login(t testing.TB, at string, memberOf ...string) string {
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
	u, err := url.Parse(at)
	if err != nil {
		t.Fatal(err)
	}
	u.User = url.UserPassword(name, "test")
	return u.String()
}
