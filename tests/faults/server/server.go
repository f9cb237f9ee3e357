// Package server starts a Postgres server for one test, which may stop it, crash it, restart it on the same data,
// demote it to a hot standby and promote it. Each start takes another port, so put a proxy in front of it, with Addr
// as its backend.
package server

import (
	"context"
	"maps"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"spectral/internal/app"
	"spectral/internal/app/embeddedpg"
	"spectral/tests/pgtest"
)

const startTimeout = 3 * time.Minute // for a loaded machine, and recovery after a crash

// Server is a Postgres server whose data outlive a crash: fsync is on. Control it from one goroutine; Addr and URL
// may be called concurrently.
type Server struct {
	dir string

	mu       sync.Mutex
	settings map[string]string
	running  *embeddedpg.Server // nil while it is stopped
	last     string             // the URL of the last start
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// New starts an empty server with settings besides those of package embeddedpg.
func New(t testing.TB, settings map[string]string) *Server {
	t.Helper()
	s := prepare(t, settings)
	s.Start(t)
	return s
}

// NewMigrated starts a server on a copy of the prepared cluster, with settings besides those of package embeddedpg. It
// returns the name of its migrated database.
func NewMigrated(t testing.TB, settings map[string]string) (s *Server, database string) {
	t.Helper()
	s = prepare(t, settings)
	err := pgtest.Prepared(t.Context(), func(from, migrated string) error {
		database = migrated
		return pgtest.Copy(t.Context(), from, s.dir)
	})
	must(t, err)
	s.Start(t)
	return s, database
}

func prepare(t testing.TB, settings map[string]string) *Server {
	t.Helper()
	dir, err := os.MkdirTemp("", "spectral-faults-")
	must(t, err)
	must(t, os.Chmod(dir, 0o755)) //nolint:gosec // the server's own user must enter
	s := &Server{dir: dir, settings: map[string]string{"max_connections": "200"}}
	maps.Copy(s.settings, settings)
	t.Cleanup(func() {
		s.Stop(t)
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return s
}

// Start starts a stopped server and waits until it answers.
func (s *Server) Start(t testing.TB) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	running, err := embeddedpg.Start(ctx, embeddedpg.Config{
		Dir: s.dir, Settings: s.settings, BinDir: os.Getenv(app.EnvPostgresBin),
	})
	must(t, err)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.running, s.last = running, running.URL("postgres")
}

// Stop shuts the server down in fast mode, if it runs.
func (s *Server) Stop(t testing.TB) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if running := s.takeDown(); running != nil {
		must(t, running.Stop(ctx))
	}
}

// Crash sends the server SIGINT (a fast shutdown), SIGQUIT (an immediate one, which it tells its clients) or SIGKILL.
// After the latter two the next start recovers from the log.
func (s *Server) Crash(t testing.TB, how syscall.Signal) {
	t.Helper()
	pid := s.postmaster(t)
	running := s.takeDown()
	must(t, syscall.Kill(pid, how))
	select {
	case <-running.Done():
	case <-time.After(time.Minute):
		t.Fatalf("the server has not ended within a minute of %s", how)
	}
	_ = running.Stop(context.Background()) // always an error: the server has ended
}

// Demote restarts the server as a hot standby without a primary: it refuses writes (SQLSTATE 25006), as a former
// primary does after a failover.
func (s *Server) Demote(t testing.TB) {
	t.Helper()
	s.Stop(t)
	signal := filepath.Join(s.dir, "data", "standby.signal")
	must(t, os.WriteFile(signal, nil, 0o644)) //nolint:gosec // an empty file, for the server's user
	s.Start(t)
}

// Promote makes a demoted server writable again, without a restart.
func (s *Server) Promote(t testing.TB) {
	t.Helper()
	var done bool
	err := pgtest.Conn(t, s.URL("postgres")).QueryRow(t.Context(), "select pg_catalog.pg_promote()").Scan(&done)
	if err != nil || !done {
		t.Fatalf("promote: %t %v", done, err)
	}
}

// Login creates a login that is a member of a role, and returns the URL at with that login.
func (s *Server) Login(t testing.TB, at, name, memberOf string) string {
	t.Helper()
	_, err := pgtest.Conn(t, s.URL("postgres")).Exec(t.Context(),
		"create role "+name+" login password 'test' in role "+memberOf)
	must(t, err)
	u, err := url.Parse(at)
	must(t, err)
	u.User = url.UserPassword(name, "test")
	return u.String()
}

// URL returns the superuser's URL of a database on the last start's port.
func (s *Server) URL(database string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	u, err := url.Parse(s.last)
	if err != nil {
		panic(err) // embeddedpg made it
	}
	u.Path = "/" + database
	return u.String()
}

// Addr returns the host and port of the last start.
func (s *Server) Addr() string {
	u, err := url.Parse(s.URL(""))
	if err != nil {
		panic(err) // embeddedpg made it
	}
	return u.Host
}

func (s *Server) takeDown() *embeddedpg.Server {
	s.mu.Lock()
	defer s.mu.Unlock()
	running := s.running
	s.running = nil
	return running
}

func (s *Server) postmaster(t testing.TB) int {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(s.dir, "data", "postmaster.pid"))
	must(t, err)
	first, _, _ := strings.Cut(string(text), "\n")
	pid, err := strconv.Atoi(first)
	must(t, err)
	return pid
}
