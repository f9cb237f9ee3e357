package embeddedpg

import (
	"bufio"
	"context"
	"errors"
	"io"
	"io/fs"
	"net/url"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// childVariable makes the test binary a program that runs a server until its standard input ends: its value is the Dir.
const childVariable = "EMBEDDEDPG_TEST_CHILD"

func TestMain(m *testing.M) {
	dir, is := os.LookupEnv(childVariable)
	if !is {
		os.Exit(m.Run())
	}
	s, err := Start(context.Background(), Config{Dir: strings.TrimPrefix(dir, "ephemeral"), Ephemeral: dir == "ephemeral"})
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
	child = exec.CommandContext(deadline(t), binary)
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
	acct, err := serverAccount()
	check(t, err)
	return acct
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

func putNote(t *testing.T, url string) {
	t.Helper()
	conn, err := pgx.Connect(deadline(t), url)
	check(t, err)
	defer conn.Close(deadline(t))
	_, err = conn.Exec(deadline(t), "create table note (body text); insert into note values ('kept')")
	check(t, err)
}

func TestEphemeralServer(t *testing.T) {
	t.Parallel()
	s := startServer(t, Config{Ephemeral: true, Settings: map[string]string{"jit": "off", "port": "1"}})
	for setting, want := range map[string]string{
		"max_connections": "200", "fsync": "off", "full_page_writes": "off", "synchronous_commit": "off", "jit": "off",
		"listen_addresses": "127.0.0.1", "unix_socket_directories": "", "server_encoding": "UTF8", "port": strconv.Itoa(s.port),
	} {
		mustSay(t, s.URL("template1"), "select setting from pg_settings where name = '"+setting+"'", want)
	}
	u, err := url.Parse(s.URL("postgres"))
	check(t, err)
	u.User = url.UserPassword("postgres", "guess")
	_, err = pgx.Connect(deadline(t), u.String())
	mustFail(t, err, "password authentication failed")
	if d := s.Describe(); strings.Contains(d, "\n") || !strings.Contains(d, s.URL("postgres")) || !strings.Contains(d, s.data()) {
		t.Error(d)
	}
	var stops sync.WaitGroup
	for range 2 {
		stops.Go(func() {
			if err := s.Stop(deadline(t)); err != nil {
				t.Error(err)
			}
		})
	}
	stops.Wait()
	if _, err := os.Lstat(s.dir); isPostmaster(s.cmd.Process.Pid, s.data()) || !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the server or its folder is still there: %v", err)
	}
}

func TestDataSurviveRestartsAndCopiesAndFreshWipesThem(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(folder(t), "made by us")
	s := startServer(t, Config{Dir: dir})
	mustSay(t, s.URL("postgres"), "show fsync", "on")
	putNote(t, s.URL("postgres"))
	_, err := Start(deadline(t), Config{Dir: dir})
	mustFail(t, err, "is run by process "+strconv.Itoa(os.Getpid())+": stop that one, or use another folder (XDG_CACHE_HOME")
	check(t, s.Stop(deadline(t)))

	mustSay(t, startServer(t, Config{Ephemeral: true, From: dir}).URL("postgres"), "select body from note", "kept")
	check(t, os.Mkdir(filepath.Join(dir, "new"), 0o700)) // a killed initdb leaves it
	s = startServer(t, Config{Dir: dir})
	mustSay(t, s.URL("postgres"), "select body from note", "kept")
	check(t, s.Stop(deadline(t)))

	version := filepath.Join(s.data(), "PG_VERSION")
	check(t, os.WriteFile(version, []byte("14\n"), 0o600))
	_, err = Start(deadline(t), Config{Dir: dir})
	mustFail(t, err, "PostgreSQL 14 made it")
	mustFail(t, err, "fresh option")
	check(t, os.Remove(filepath.Join(s.data(), "global/pg_control")))
	check(t, os.WriteFile(version, []byte(strconv.Itoa(s.programs.major)), 0o600))
	_, err = Start(deadline(t), Config{Dir: dir})
	mustFail(t, err, "pg_control")
	mustFail(t, err, "fresh option")

	s = startServer(t, Config{Dir: dir, Fresh: true})
	mustSay(t, s.URL("postgres"), "select (to_regclass('note') is null)::text", "true")
	mustContainFiles(t, dir, 4)
}

func TestServerOfKilledProgramIsStoppedByTheNextStart(t *testing.T) {
	t.Parallel()
	dir := folder(t)
	child, url, _ := startChild(t, dir, nil)
	putNote(t, url)
	crash(t, child)
	mustSay(t, url, "select body from note", "kept") // it still runs
	s := startServer(t, Config{Dir: dir})
	mustSay(t, s.URL("postgres"), "select body from note", "kept")
	if conn, err := pgx.Connect(deadline(t), url); err == nil {
		conn.Close(deadline(t))
		t.Error("the server of the killed program still runs")
	}
	check(t, s.Stop(deadline(t)))

	// the number in a stale file now belongs to a server on other data
	other := startServer(t, Config{Ephemeral: true})
	pidFile := filepath.Join(s.data(), "postmaster.pid")
	check(t, os.WriteFile(pidFile, []byte(strconv.Itoa(other.cmd.Process.Pid)+"\n"+s.data()+"\n"), 0o600))
	check(t, s.acct.own(pidFile))
	startServer(t, Config{Dir: dir})
	mustSay(t, other.URL("postgres"), "select 'unharmed'", "unharmed")
}

func TestLeftoverEphemeralServersAreSwept(t *testing.T) {
	t.Parallel()
	temp := folder(t)
	gone, _, left := startChild(t, "ephemeral", nil, "TMPDIR="+temp)
	_, alive, _ := startChild(t, "ephemeral", nil, "TMPDIR="+temp)
	crash(t, gone)
	sweep(deadline(t), temp)
	if _, err := os.Lstat(left); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the leftover folder is still there: %v", err)
	}
	mustSay(t, alive, "select 'unharmed'", "unharmed")
}

func TestStopReportsServerThatEnded(t *testing.T) {
	t.Parallel()
	s := startServer(t, Config{Ephemeral: true})
	check(t, s.cmd.Process.Kill())
	<-s.Done()
	mustFail(t, s.Stop(deadline(t)), "had ended by itself")
}

func TestCancelledStartLeavesNothing(t *testing.T) {
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
	startServer(t, Config{Dir: dir})
}

func TestOrdinaryUser(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("already run by one, as all other tests are")
	}
	u, err := user.Lookup("nobody")
	check(t, err)
	uid, err := strconv.ParseUint(u.Uid, 10, 32)
	check(t, err)
	gid, err := strconv.ParseUint(u.Gid, 10, 32)
	check(t, err)
	for _, variable := range []string{"HOME", "TMPDIR"} { // with a home, without a home
		place := folder(t)
		check(t, os.Chown(place, int(uid), int(gid)))
		check(t, os.Chmod(place, 0o700))
		_, url, used := startChild(t, "", &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}, variable+"="+place)
		mustSay(t, url, "select 'up'", "up")
		if !strings.HasPrefix(used, place) {
			t.Errorf("runs in %s", used)
		}
	}
}
