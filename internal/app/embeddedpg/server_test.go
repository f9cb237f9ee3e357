package embeddedpg

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// childVariable makes the test binary a program that runs a server until its standard input ends: its value is the Dir.
const childVariable = "EMBEDDEDPG_TEST_CHILD"

// made is a stopped server that others are copied from, because initdb is slow.
var made string

func TestMain(m *testing.M) {
	if dir, is := os.LookupEnv(childVariable); is {
		runChild(dir)
		return
	}
	code := 1
	var err error
	if made, err = os.MkdirTemp("", "embeddedpg-test-"); err == nil {
		err = os.Chmod(made, 0o755)
	}
	if err == nil {
		var s *Server
		if s, err = Start(context.Background(), Config{Dir: made}); err == nil {
			if err = s.Stop(context.Background()); err == nil {
				code = m.Run()
			}
		}
	}
	if err := errors.Join(err, os.RemoveAll(made)); err != nil {
		_, _ = os.Stderr.WriteString(err.Error())
		code = 1
	}
	os.Exit(code)
}

func runChild(dir string) {
	s, err := Start(context.Background(), Config{Dir: dir})
	if err == nil {
		_, _ = os.Stdout.WriteString(s.URL("postgres") + " " + s.dir + "\n")
		_, _ = io.Copy(io.Discard, os.Stdin)
		err = s.Stop(context.Background())
	}
	if err != nil {
		_, _ = os.Stderr.WriteString(err.Error())
		os.Exit(1)
	}
}

// startChild runs a server in another program, as cred if given.
func startChild(t *testing.T, dir string, cred *syscall.Credential, env ...string) (child *exec.Cmd, url, used string) {
	t.Helper()
	binary, err := os.Executable()
	check(t, err)
	if cred != nil { // it cannot enter the folder that `go test` builds in
		content, err := os.ReadFile(binary)
		check(t, err)
		binary = filepath.Join(folder(t), "child")
		check(t, os.WriteFile(binary, content, 0o755))
		check(t, os.Chmod(binary, 0o755))
	}
	// t.Context ends before the cleanups run: that would kill the child, and leave its server running
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), 2*time.Minute)
	t.Cleanup(cancel)
	child = exec.CommandContext(ctx, binary)
	child.Dir, child.Env = "/", append([]string{childVariable + "=" + dir, "PATH=" + os.Getenv("PATH")}, env...)
	child.SysProcAttr = &syscall.SysProcAttr{Credential: cred}
	child.Stderr = os.Stderr
	stdin, err := child.StdinPipe()
	check(t, err)
	stdout, err := child.StdoutPipe()
	check(t, err)
	check(t, child.Start())
	t.Cleanup(func() {
		_ = stdin.Close()
		_ = child.Wait()
	})
	line, err := bufio.NewReader(stdout).ReadString('\n')
	check(t, err)
	url, used, _ = strings.Cut(strings.TrimSpace(line), " ")
	return child, url, used
}

// crash kills the child, which leaves it no time to stop its server.
func crash(t *testing.T, child *exec.Cmd) {
	t.Helper()
	check(t, child.Process.Kill())
	_ = child.Wait()
}

func deadline(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	t.Cleanup(cancel)
	return ctx
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func mustFail(t *testing.T, err error, part string) {
	t.Helper()
	if err == nil || !strings.Contains(err.Error(), part) {
		t.Errorf("want an error with %q, got %v", part, err)
	}
}

func mustContainFiles(t *testing.T, dir string, want int) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	check(t, err)
	if len(entries) != want {
		t.Errorf("want %d files in %s, got %v", want, dir, entries)
	}
}

// folder makes a temporary folder that the server's user can enter, which t.TempDir is not for root's.
func folder(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "embeddedpg-test-")
	check(t, err)
	t.Cleanup(func() { check(t, os.RemoveAll(dir)) })
	check(t, os.Chmod(dir, 0o755))
	return dir
}

func testAccount(t *testing.T) account {
	t.Helper()
	acct, err := serverAccount(t.Context(), os.Geteuid())
	check(t, err)
	return acct
}

// copied returns the folder of a stopped server.
func copied(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(folder(t), "with a space")
	check(t, exec.CommandContext(deadline(t), "cp", "-Rp", made, dir).Run())
	return dir
}

func startServer(t *testing.T, c Config) *Server {
	t.Helper()
	s, err := Start(deadline(t), c)
	check(t, err)
	t.Cleanup(func() { _ = s.Stop(context.Background()) })
	return s
}

func mustSay(t *testing.T, url, sql, want string) {
	t.Helper()
	conn, err := pgx.Connect(deadline(t), url)
	check(t, err)
	defer conn.Close(deadline(t))
	var have string
	check(t, conn.QueryRow(deadline(t), sql).Scan(&have))
	if have != want {
		t.Errorf("%s: %q, want %q", sql, have, want)
	}
}

func insertNote(t *testing.T, url string) {
	t.Helper()
	conn, err := pgx.Connect(deadline(t), url)
	check(t, err)
	defer conn.Close(deadline(t))
	_, err = conn.Exec(deadline(t), "create table note (body text); insert into note values ('kept')")
	check(t, err)
}

func TestDataSurviveARestartAndFreshDeletesThem(t *testing.T) {
	t.Parallel()
	dir := copied(t)
	s := startServer(t, Config{Dir: dir, Settings: map[string]string{"jit": "off", "port": "1"}})
	mustBeSet(t, s)
	insertNote(t, s.URL("postgres"))
	_, err := Start(deadline(t), Config{Dir: dir})
	mustFail(t, err, "process "+strconv.Itoa(os.Getpid())+" runs an embedded PostgreSQL in "+dir+": stop that process, or")
	check(t, s.Stop(deadline(t)))
	if isPostmaster(s.cmd.Process.Pid, s.data()) {
		t.Error("the server still runs")
	}
	s = startServer(t, Config{Dir: dir})
	mustSay(t, s.URL("postgres"), "select body from note", "kept")
	check(t, s.Stop(deadline(t)))

	version := filepath.Join(s.data(), "PG_VERSION")
	check(t, os.WriteFile(version, []byte("14\n"), 0o600))
	_, err = Start(deadline(t), Config{Dir: dir})
	mustFail(t, err, "initialized by PostgreSQL version 14")
	mustFail(t, err, "fresh option")
	check(t, os.Remove(filepath.Join(s.data(), "global/pg_control")))
	check(t, os.WriteFile(version, []byte(strconv.Itoa(s.programs.number/10_000)), 0o600))
	_, err = Start(deadline(t), Config{Dir: dir})
	mustFail(t, err, "pg_control")
	mustFail(t, err, "fresh option")

	check(t, os.Mkdir(filepath.Join(dir, "new"), 0o700)) // a killed initdb leaves it
	s = startServer(t, Config{Dir: dir, Fresh: true})
	mustSay(t, s.URL("postgres"), "select (to_regclass('note') is null)::text", "true")
	mustContainFiles(t, dir, 4)
}

func mustBeSet(t *testing.T, s *Server) {
	t.Helper()
	mustSay(t, s.URL("postgres"), `select string_agg(setting, ' ' order by name) from pg_settings where name in
		('fsync', 'jit', 'listen_addresses', 'unix_socket_directories', 'server_encoding', 'port')`,
		"on off 127.0.0.1 "+strconv.Itoa(s.port)+" UTF8 ")
	u, err := url.Parse(s.URL("postgres"))
	check(t, err)
	u.User = url.UserPassword("postgres", "guess")
	_, err = pgx.Connect(deadline(t), u.String())
	mustFail(t, err, "password authentication failed")
	d := s.Describe()
	if strings.Contains(d, "\n") || !strings.Contains(d, s.URL("postgres")) || !strings.Contains(d, s.data()) {
		t.Error(d)
	}
}

func TestNextStartStopsTheServerOfAKilledProgram(t *testing.T) {
	t.Parallel()
	dir := copied(t)
	child, url, _ := startChild(t, dir, nil)
	insertNote(t, url)
	crash(t, child)
	mustSay(t, url, "select body from note", "kept") // it still runs
	s := startServer(t, Config{Dir: dir})
	mustSay(t, s.URL("postgres"), "select body from note", "kept")
	if conn, err := pgx.Connect(deadline(t), url); err == nil {
		conn.Close(deadline(t))
		t.Error("the server of the killed program still runs")
	}
	check(t, s.Stop(deadline(t)))

	// the number in a leftover file is now of a server on other data
	other := startServer(t, Config{Dir: copied(t)})
	pidFile := filepath.Join(s.data(), "postmaster.pid")
	check(t, os.WriteFile(pidFile, []byte(strconv.Itoa(other.cmd.Process.Pid)+"\n"+s.data()+"\n"), 0o600))
	check(t, s.acct.own(pidFile))
	startServer(t, Config{Dir: dir})
	mustSay(t, other.URL("postgres"), "select 'unharmed'", "unharmed")

	check(t, other.cmd.Process.Kill())
	<-other.Done()
	mustFail(t, other.Stop(deadline(t)), "had ended before")
}

func TestCancelledStartLeavesNoProcess(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(deadline(t))
	bin, dir, notes := fakePrograms(t, "15.1", "postgres"), folder(t), folder(t)
	check(t, testAccount(t).own(notes))
	fifo := filepath.Join(notes, "fifo")
	check(t, syscall.Mkfifo(fifo, 0o666))
	check(t, os.Chmod(fifo, 0o666))
	script(t, filepath.Join(bin, "initdb"), `
if [ "$1" = --version ]; then echo 'initdb (PostgreSQL) 15.1'; exit; fi
sleep 600 >`+fifo+` &
wait`)
	failed := make(chan error, 1)
	go func() {
		_, err := Start(ctx, Config{Dir: dir, BinDir: bin})
		failed <- err
	}()
	open, err := os.Open(fifo) // when initdb's child has opened it
	check(t, err)
	cancel()
	if err := <-failed; !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	_, err = io.ReadAll(open) // until the child is gone
	check(t, err)
	lock, err := lockFolder(dir)
	for limit := deadline(t); err != nil && limit.Err() == nil; lock, err = lockFolder(dir) {
		runtime.Gosched() // a program that another test starts has our files open until it runs
	}
	check(t, err)
	check(t, lock.Close())
	mustContainFiles(t, dir, 2) // the lock, and a password that the next start replaces
}
