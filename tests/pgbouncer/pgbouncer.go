// Package pgbouncer starts a real PgBouncer in front of a test's database. It fails the test where
// none is installed. Any user gets in, and acts as the user of the backend's URL.
package pgbouncer

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"net/url"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// Mode is when a client gives its server connection back.
type Mode string

// The modes that tests are run in.
const (
	Session     Mode = "session"
	Transaction Mode = "transaction"
)

const patience = 30 * time.Second

// Bouncer is a running PgBouncer.
type Bouncer struct {
	// URL leads through it to the backend's database.
	URL string

	dir, port, database string
	mode                Mode
	output              bytes.Buffer // of the program
}

// Start returns when it takes connections. It ends with the test.
func Start(t testing.TB, mode Mode, backend string) *Bouncer {
	t.Helper()
	program, err := exec.LookPath("pgbouncer")
	if err != nil {
		program, err = exec.LookPath("/usr/sbin/pgbouncer") // not in everybody's PATH
	}
	if err != nil {
		t.Fatalf("install pgbouncer (apt-get install pgbouncer): %v", err)
	}
	// another user's process has to read it, which cannot enter t.TempDir
	dir, err := os.MkdirTemp("", "pgbouncer-")
	must(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	must(t, os.Chmod(dir, 0o755))
	u, err := url.Parse(backend)
	must(t, err)
	b := &Bouncer{dir: dir, mode: mode, database: strings.TrimPrefix(u.Path, "/")}
	b.port = freePort(t)
	u.Host = net.JoinHostPort("127.0.0.1", b.port)
	b.URL = u.String()
	b.configure(t, backend)

	output := &b.output
	cmd := exec.Command(program, b.file())
	cmd.Dir, cmd.Env = "/", []string{"LC_ALL=C"}
	cmd.Stdout, cmd.Stderr = output, output
	cmd.SysProcAttr = attributes(t)
	must(t, cmd.Start())
	ended := make(chan struct{})
	go func() {
		_ = cmd.Wait() // how it ended is of no interest: it is killed
		close(ended)
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		<-ended
	})
	deadline := time.NewTimer(patience)
	defer deadline.Stop()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		if b.console("show version") == nil {
			return b
		}
		select {
		case <-tick.C:
		case <-ended:
			t.Fatalf("pgbouncer ended at once: %s", output.String())
		case <-deadline.C:
			t.Fatalf("pgbouncer takes no connections after %s", patience)
		}
	}
}

// Turn makes it lead to the same database of another server. Clients stay connected.
func (b *Bouncer) Turn(t testing.TB, backend string) {
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

// console runs a command of PgBouncer's own.
func (b *Bouncer) console(command string) error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	conn, err := pgx.Connect(ctx, "postgres://console@127.0.0.1:"+b.port+"/pgbouncer?sslmode=disable&default_query_exec_mode=simple_protocol")
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(ctx) }()
	_, err = conn.Exec(ctx, command)
	return err
}

// attributes makes it an ordinary user's process, for it refuses to be root's.
func attributes(t testing.TB) *syscall.SysProcAttr {
	t.Helper()
	attributes := &syscall.SysProcAttr{Setpgid: true}
	if os.Geteuid() != 0 {
		return attributes
	}
	u, err := user.Lookup("postgres")
	if err != nil {
		if u, err = user.Lookup("nobody"); err != nil {
			t.Fatalf("pgbouncer refuses to run as root, and there is no user postgres or nobody: %v", err)
		}
	}
	uid, err := strconv.ParseUint(u.Uid, 10, 32)
	must(t, err)
	gid, err := strconv.ParseUint(u.Gid, 10, 32)
	must(t, err)
	attributes.Credential = &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
	return attributes
}

func freePort(t testing.TB) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	defer func() { _ = l.Close() }()
	_, port, err := net.SplitHostPort(l.Addr().String())
	must(t, err)
	return port
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
