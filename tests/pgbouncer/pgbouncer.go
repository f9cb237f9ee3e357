// Package pgbouncer starts a PgBouncer in front of a test's database, and fails the test if it is not installed. It
// accepts any user, and connects to the backend as the user of the backend's URL.
package pgbouncer

import (
	"bytes"
	"context"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"spectral/tests/pgtest"
)

// Mode says when PgBouncer releases a client's server connection.
type Mode string

// The modes that tests use.
const (
	Session     Mode = "session"
	Transaction Mode = "transaction"
)

// startTimeout limits the start and each command of the console.
const startTimeout = 30 * time.Second

// Bouncer is a running PgBouncer.
type Bouncer struct {
	// URL leads through PgBouncer to the backend's database.
	URL string

	dir, port, database string
	mode                Mode
	output              bytes.Buffer
}

// Start starts a PgBouncer that ends with the test, and waits until it accepts connections.
func Start(t testing.TB, mode Mode, backend string) *Bouncer {
	t.Helper()
	program, err := exec.LookPath("pgbouncer")
	if err != nil {
		program, err = exec.LookPath("/usr/sbin/pgbouncer") // often not in PATH
	}
	if err != nil {
		t.Fatalf("install pgbouncer (apt-get install pgbouncer): %v", err)
	}
	// The process runs as another user, who cannot enter t.TempDir.
	dir, err := os.MkdirTemp("", "pgbouncer-")
	must(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	must(t, os.Chmod(dir, 0o755))
	u, err := url.Parse(backend)
	must(t, err)
	b := &Bouncer{dir: dir, mode: mode, database: strings.TrimPrefix(u.Path, "/")}
	u.Host = pgtest.FreeAddress(t)
	b.port = u.Port()
	b.URL = u.String()
	b.configure(t, backend)

	cmd := exec.Command(program, b.file())
	cmd.Dir, cmd.Env = "/", []string{"LC_ALL=C"}
	cmd.Stdout, cmd.Stderr = &b.output, &b.output
	cmd.SysProcAttr = pgtest.Unprivileged(t, dir)
	must(t, cmd.Start())
	ended := make(chan struct{})
	go func() {
		_ = cmd.Wait() // always an error: the process is killed
		close(ended)
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		<-ended
	})
	if !pgtest.Eventually(startTimeout, func() bool { return b.console("show version") == nil }) {
		t.Fatalf("pgbouncer accepts no connections after %s: %s", startTimeout, b.output.String())
	}
	return b
}

// Redirect changes the backend to the same database of another server. Clients stay connected.
func (b *Bouncer) Redirect(t testing.TB, backend string) {
	t.Helper()
	b.configure(t, backend)
	for _, command := range []string{"reload", "reconnect"} {
		if err := b.console(command); err != nil {
			t.Fatalf("%s: %v; pgbouncer said:\n%s", command, err, b.output.String())
		}
	}
}

func (b *Bouncer) file() string { return filepath.Join(b.dir, "pgbouncer.ini") }

func (b *Bouncer) configure(t testing.TB, backend string) {
	t.Helper()
	u, err := url.Parse(backend)
	must(t, err)
	password, _ := u.User.Password()
	text := fmt.Sprintf(`[databases]
%s = host=%s port=%s user='%s' password='%s'
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = %s
unix_socket_dir =
auth_type = any
admin_users = console
pool_mode = %s
default_pool_size = 30
max_client_conn = 200
server_lifetime = 3600
server_login_retry = 1
`, b.database, u.Hostname(), u.Port(), quoted(u.User.Username()), quoted(password), b.port, b.mode)
	must(t, os.WriteFile(b.file(), []byte(text), 0o644))
}

func quoted(s string) string { return strings.ReplaceAll(s, "'", "''") }

func (b *Bouncer) console(command string) error {
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	conn, err := pgx.Connect(ctx, "postgres://console@127.0.0.1:"+b.port+
		"/pgbouncer?sslmode=disable&default_query_exec_mode=simple_protocol")
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(ctx) }()
	_, err = conn.Exec(ctx, command)
	return err
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
