package pgtest

import (
	"bytes"
	"context"
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

// Standby is a hot standby of the test server.
type Standby struct{ address string }

// NewStandby copies the server and waits until the copy answers. It ends with the test.
func NewStandby(t testing.TB) *Standby {
	t.Helper()
	primary, err := url.Parse(Server(t).URL("postgres"))
	fatal(t, err)
	var programs string
	conn := Conn(t, primary.String())
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	fatal(t, conn.QueryRow(ctx, "select setting from pg_config where name = 'BINDIR'").Scan(&programs))
	// The folder belongs to another user, who cannot enter t.TempDir.
	dir, err := os.MkdirTemp("", "standby-")
	fatal(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	attributes := Unprivileged(t, dir)
	var output bytes.Buffer
	command := func(ctx context.Context, program string, args ...string) *exec.Cmd {
		cmd := exec.CommandContext(ctx, filepath.Join(programs, program), args...)
		password, _ := primary.User.Password()
		cmd.Dir, cmd.Env, cmd.SysProcAttr = "/", []string{"LC_ALL=C", "PGPASSWORD=" + password}, attributes
		cmd.Stdout, cmd.Stderr = &output, &output
		return cmd
	}
	data := filepath.Join(dir, "data")
	cloning.Lock() // a copy of a template would make the backup larger
	err = command(ctx, "pg_basebackup", "-D", data, "-h", primary.Hostname(), "-p", primary.Port(), "-U",
		primary.User.Username(), "-R", "-X", "stream", "--checkpoint=fast", "--no-sync").Run()
	cloning.Unlock()
	if err != nil {
		t.Fatalf("copy the server: %v: %s", err, output.String())
	}
	s := &Standby{FreeAddress(t)}
	_, port, err := net.SplitHostPort(s.address)
	fatal(t, err)
	server := command(context.Background(), "postgres", "-D", data, "-p", port, "-c", "listen_addresses=127.0.0.1",
		"-c", "unix_socket_directories=", "-c", "fsync=off", "-c", "max_connections=200")
	fatal(t, server.Start())
	ended := make(chan struct{})
	go func() {
		_ = server.Wait() // always an error: it is stopped by SIGQUIT
		close(ended)
	}()
	t.Cleanup(func() {
		_ = server.Process.Signal(syscall.SIGQUIT)
		<-ended
	})
	s.await(t, "select pg_is_in_recovery()", &output)
	return s
}

// Unprivileged returns attributes for a process that refuses to run as root, and gives it the folder dir.
func Unprivileged(t testing.TB, dir string) *syscall.SysProcAttr {
	t.Helper()
	attributes := &syscall.SysProcAttr{Setpgid: true}
	if os.Geteuid() != 0 {
		return attributes
	}
	u, err := user.Lookup("postgres")
	if err != nil {
		u, err = user.Lookup("nobody")
	}
	fatal(t, err)
	uid, err := strconv.Atoi(u.Uid)
	fatal(t, err)
	gid, err := strconv.Atoi(u.Gid)
	fatal(t, err)
	attributes.Credential = &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
	fatal(t, os.Chown(dir, uid, gid))
	return attributes
}

// FreeAddress returns a host and port where no server listens.
func FreeAddress(t testing.TB) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	fatal(t, err)
	fatal(t, l.Close())
	return l.Addr().String()
}

// Of returns the URL of the same database and user on the standby.
func (s *Standby) Of(t testing.TB, databaseURL string) string {
	t.Helper()
	u, err := url.Parse(databaseURL)
	fatal(t, err)
	u.Host = s.address
	return u.String()
}

// Address returns the host and port.
func (s *Standby) Address() string { return s.address }

// Promote makes the standby a primary.
func (s *Standby) Promote(t testing.TB) {
	t.Helper()
	s.await(t, "select pg_promote(true, 60)", new(bytes.Buffer))
}

func (s *Standby) await(t testing.TB, query string, output *bytes.Buffer) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	var err error
	if !Eventually(time.Minute, func() (yes bool) {
		var conn *pgx.Conn
		if conn, err = pgx.Connect(ctx, s.Of(t, server.URL("postgres"))); err != nil {
			return false
		}
		defer func() { _ = conn.Close(ctx) }()
		err = conn.QueryRow(ctx, query).Scan(&yes)
		return yes
	}) {
		t.Fatalf("the standby does not return true for %s: %v: %s", query, err, output.String())
	}
}

func fatal(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
