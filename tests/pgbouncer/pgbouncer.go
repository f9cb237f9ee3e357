// Package pgbouncer starts PgBouncer in front of a test's Postgres, as an unprivileged user, which it
// insists on.
package pgbouncer

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/url"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

const startTimeout = 30 * time.Second

// places where the program is installed when it is not on PATH.
var places = []string{"/usr/sbin/pgbouncer", "/usr/local/sbin/pgbouncer"}

// Start starts a PgBouncer in a pool mode (session, transaction, statement) for the user and the
// server of backendURL, and returns the URL of the same database through it. It ends with the test,
// which is skipped where PgBouncer is not installed.
func Start(t testing.TB, backendURL, mode string) string {
	t.Helper()
	program := find(t)
	backend, err := url.Parse(backendURL)
	must(t, err)
	password, _ := backend.User.Password()
	dir, err := os.MkdirTemp("", "spectral-pgbouncer-")
	must(t, err)
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	port := freePort(t)
	files := map[string]string{
		"users": fmt.Sprintf("%q %q\n", backend.User.Username(), password),
		"pgbouncer.ini": fmt.Sprintf(`[databases]
* = host=%s port=%s
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = %d
unix_socket_dir =
auth_type = plain
auth_file = %s
pool_mode = %s
max_client_conn = 500
default_pool_size = 50
`, backend.Hostname(), backend.Port(), port, filepath.Join(dir, "users"), mode),
	}
	for name, text := range files {
		must(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	log, err := os.Create(filepath.Join(dir, "log"))
	must(t, err)
	defer log.Close()
	cmd := exec.Command(program, filepath.Join(dir, "pgbouncer.ini"))
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: unprivileged(t, dir)}
	must(t, cmd.Start())
	exited := make(chan struct{})
	go func() {
		_ = cmd.Wait() // ended by the cleanup, or said so in its log
		close(exited)
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		<-exited
	})
	through := *backend
	through.Host = net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
	awaitReady(t, through.String(), exited, log.Name())
	return through.String()
}

func find(t testing.TB) string {
	t.Helper()
	if program, err := exec.LookPath("pgbouncer"); err == nil {
		return program
	}
	for _, program := range places {
		if _, err := os.Stat(program); !errors.Is(err, fs.ErrNotExist) {
			return program
		}
	}
	t.Skip("PgBouncer is not installed (apt-get install pgbouncer)")
	return ""
}

// unprivileged is whom a root test runs PgBouncer as, who is given the folder; nil for others.
func unprivileged(t testing.TB, dir string) *syscall.Credential {
	t.Helper()
	if os.Geteuid() != 0 {
		return nil
	}
	var account *user.User
	for _, name := range []string{"postgres", "nobody"} {
		if found, err := user.Lookup(name); err == nil {
			account = found
			break
		}
	}
	if account == nil {
		t.Skip("PgBouncer refuses to run as root, and there is no user postgres or nobody")
	}
	uid, err := strconv.Atoi(account.Uid)
	must(t, err)
	gid, err := strconv.Atoi(account.Gid)
	must(t, err)
	entries, err := os.ReadDir(dir)
	must(t, err)
	must(t, os.Chown(dir, uid, gid))
	for _, e := range entries {
		must(t, os.Chown(filepath.Join(dir, e.Name()), uid, gid))
	}
	return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
}

func freePort(t testing.TB) int {
	t.Helper()
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	must(t, err)
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}

func awaitReady(t testing.TB, at string, exited <-chan struct{}, log string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), startTimeout)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		conn, err := pgx.Connect(ctx, at)
		if err == nil {
			_ = conn.Close(ctx)
			return
		}
		select {
		case <-tick.C:
			continue
		case <-exited:
		case <-ctx.Done():
		}
		text, _ := os.ReadFile(log)
		t.Fatalf("PgBouncer did not start: %v\n%s", err, text)
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
