package embeddedpg

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"net/url"
	"os"
	"os/user"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5"
)

func TestEphemeralServer(t *testing.T) {
	t.Parallel()
	s := startServer(t, Config{Ephemeral: true, Settings: map[string]string{"jit": "off"}})
	mustContain(t, ask(t, s.URL("postgres"), "select version()"), "PostgreSQL "+strconv.Itoa(s.cluster.bin.major))
	for setting, want := range map[string]string{
		"max_connections": "200", "fsync": "off", "full_page_writes": "off", "synchronous_commit": "off", "jit": "off",
		"listen_addresses": "127.0.0.1", "unix_socket_directories": "", "server_encoding": "UTF8",
	} {
		if got := ask(t, s.URL("template1"), "show "+setting); got != want {
			t.Errorf("%s is %q, want %q", setting, got, want)
		}
	}
	for _, part := range []string{s.cluster.bin.version, s.cluster.bin.dir, s.cluster.data(), strconv.Itoa(s.port), s.URL("postgres")} {
		mustContain(t, s.Describe(), part)
	}
	if strings.Contains(s.Describe(), "\n") {
		t.Error("more than one line:", s.Describe())
	}
	mustContain(t, s.cluster.root, filepath.Join(os.TempDir(), "spectral-pg-"))

	// Twice, at once, and again.
	var stops sync.WaitGroup
	for range 2 {
		stops.Go(func() {
			if err := s.Stop(deadline(t)); err != nil {
				t.Error(err)
			}
		})
	}
	stops.Wait()
	stopServer(t, s)
	if running(s.proc.cmd.Process.Pid) {
		t.Error("the server still runs")
	}
	if _, err := os.Lstat(s.cluster.root); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("its folder is still there: %v", err)
	}
}

func TestPasswordIsNeeded(t *testing.T) {
	t.Parallel()
	s := startServer(t, Config{Ephemeral: true})
	u, err := url.Parse(s.URL("postgres"))
	check(t, err)
	u.User = url.UserPassword("postgres", "guess")
	if conn, err := pgx.Connect(deadline(t), u.String()); err == nil {
		conn.Close(deadline(t))
		t.Error("a wrong password is accepted")
	}
	info, err := os.Stat(s.cluster.passwordFile())
	check(t, err)
	if info.Mode().Perm() != 0o600 {
		t.Errorf("the password's file has mode %v", info.Mode())
	}
}

func TestDataSurvivesRestartAndFreshWipesIt(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(openFolderFor(t, nil), "made", "by us")
	s := startServer(t, Config{Dir: dir})
	if got := ask(t, s.URL("postgres"), "show fsync"); got != "on" {
		t.Errorf("fsync is %s", got)
	}
	ask(t, s.URL("postgres"), putNote)
	stopServer(t, s)

	s = startServer(t, Config{Dir: dir})
	if got := ask(t, s.URL("postgres"), getNote); got != "kept" {
		t.Errorf("read %q", got)
	}
	stopServer(t, s)

	s = startServer(t, Config{Dir: dir, Fresh: true})
	if got := ask(t, s.URL("postgres"), "select to_regclass('note') is null"); got != "t" {
		t.Error("the table is still there")
	}
	stopServer(t, s)
	entries, err := os.ReadDir(dir)
	check(t, err)
	if len(entries) != 2 {
		t.Errorf("want the lock and the cluster, got %v", entries)
	}
}

func TestFolderInUse(t *testing.T) {
	t.Parallel()
	dir := openFolderFor(t, nil)
	other := startChild(t, childConfig{Dir: dir}, nil)
	_, err := Start(deadline(t), Config{Dir: dir})
	busy := (*BusyError)(nil)
	if !errors.As(err, &busy) || busy.PID != other.cmd.Process.Pid || busy.Dir != dir {
		t.Fatalf("got %v, want a BusyError for process %d", err, other.cmd.Process.Pid)
	}
	mustContain(t, err.Error(), "stop that one, or use another folder (XDG_CACHE_HOME")
	if got := ask(t, other.URL, "select 'unharmed'"); got != "unharmed" {
		t.Error(got)
	}
	other.stop(t)

	s := startServer(t, Config{Dir: dir})
	if _, err := Start(deadline(t), Config{Dir: dir}); !errors.As(err, &busy) || busy.PID != os.Getpid() {
		t.Errorf("got %v, want a BusyError for this process", err)
	}
	stopServer(t, s)
}

func TestKilledProgramLosesNoDataAndLeavesNoServer(t *testing.T) {
	t.Parallel()
	dir := openFolderFor(t, nil)
	other := startChild(t, childConfig{Dir: dir}, nil)
	ask(t, other.URL, putNote)
	other.crash(t)
	if runtime.GOOS == "linux" {
		eventually(t, "the server of the killed program is gone", func() bool { return !running(other.PID) })
	}
	s := startServer(t, Config{Dir: dir})
	if got := ask(t, s.URL("postgres"), getNote); got != "kept" {
		t.Errorf("read %q", got)
	}
	if running(other.PID) {
		t.Error("the server of the killed program still runs")
	}
}

// orphan starts a server that nobody owns on a stopped cluster, and returns its process once it answers.
func orphan(t *testing.T, c cluster, password string) *process {
	t.Helper()
	log, err := slog.New(slog.DiscardHandler), error(nil)
	s := &Server{cluster: c, password: password, log: log}
	port, err := freePort()
	check(t, err)
	check(t, s.run(deadline(t), Config{}, port))
	t.Cleanup(s.proc.kill)
	return s.proc
}

func TestServerOfCrashedProgramIsStopped(t *testing.T) {
	t.Parallel()
	dir := openFolderFor(t, nil)
	first := startServer(t, Config{Dir: dir})
	ask(t, first.URL("postgres"), putNote)
	stopServer(t, first)
	left := orphan(t, first.cluster, first.password)

	s := startServer(t, Config{Dir: dir})
	select {
	case <-left.exited:
	default:
		t.Error("the leftover server still runs")
	}
	if got := ask(t, s.URL("postgres"), getNote); got != "kept" {
		t.Errorf("read %q", got)
	}
}

func TestUnrelatedProcessIsNotSignalled(t *testing.T) {
	t.Parallel()
	dir := openFolderFor(t, nil)
	s := startServer(t, Config{Dir: dir})
	stopServer(t, s)
	// The number in the stale file now belongs to a server on other data.
	other := startServer(t, Config{Ephemeral: true})
	pidFile := filepath.Join(s.cluster.data(), "postmaster.pid")
	check(t, os.WriteFile(pidFile, []byte(strconv.Itoa(other.proc.cmd.Process.Pid)+"\n"+s.cluster.data()+"\n"), 0o600))
	check(t, s.cluster.acct.own(pidFile))

	startServer(t, Config{Dir: dir})
	if got := ask(t, other.URL("postgres"), "select 'unharmed'"); got != "unharmed" {
		t.Error(got)
	}
}

func TestHalfMadeClusterIsRedone(t *testing.T) {
	t.Parallel()
	dir := openFolderFor(t, nil)
	bin, err := findBinaries(deadline(t), Config{}, testAccount(t))
	check(t, err)
	major := strconv.Itoa(bin.major)
	for _, half := range []string{major + ".new-1", major + ".old-2"} {
		check(t, os.MkdirAll(filepath.Join(dir, half, "data", "base"), 0o700))
	}
	s := startServer(t, Config{Dir: dir})
	ask(t, s.URL("postgres"), "select 1")
	entries, err := os.ReadDir(dir)
	check(t, err)
	if len(entries) != 2 {
		t.Errorf("want the lock and the cluster, got %v", entries)
	}
}

func TestDamagedClusterNeedsFresh(t *testing.T) {
	t.Parallel()
	for name, damaged := range map[string]string{
		"format unknown":       "PG_VERSION",
		"control file missing": "global/pg_control",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := openFolderFor(t, nil)
			s := startServer(t, Config{Dir: dir})
			stopServer(t, s)
			check(t, os.Remove(filepath.Join(s.cluster.data(), damaged)))
			_, err := Start(deadline(t), Config{Dir: dir})
			if err == nil {
				t.Fatal("started")
			}
			mustContain(t, err.Error(), "fresh option")
			mustContain(t, err.Error(), filepath.Base(damaged))
			s = startServer(t, Config{Dir: dir, Fresh: true})
			ask(t, s.URL("postgres"), "select 1")
		})
	}
}

func TestFolderOfAnotherProgramIsLeftAlone(t *testing.T) {
	t.Parallel()
	dir := openFolderFor(t, nil)
	bin, err := findBinaries(deadline(t), Config{}, testAccount(t))
	check(t, err)
	precious := filepath.Join(dir, strconv.Itoa(bin.major), "main") // as in Debian's /var/lib/postgresql
	check(t, os.MkdirAll(precious, 0o755))
	for _, fresh := range []bool{false, true} {
		_, err := Start(deadline(t), Config{Dir: dir, Fresh: fresh})
		if err == nil {
			t.Fatal("used")
		}
		mustContain(t, err.Error(), "was not made by this program")
	}
	_, err = os.Stat(precious)
	check(t, err)
}

func TestLostPortIsRecognised(t *testing.T) {
	t.Parallel()
	winner := startServer(t, Config{Ephemeral: true})
	s := startServer(t, Config{Dir: openFolderFor(t, nil)})
	stopServer(t, s)
	loser := &Server{cluster: s.cluster, password: s.password, log: s.log}
	err := loser.run(deadline(t), Config{}, winner.port)
	early := (*earlyExitError)(nil)
	if !errors.As(err, &early) || !early.passing() {
		t.Errorf("not worth another attempt: %v", err)
	}
}

func TestStopReportsServerThatEnded(t *testing.T) {
	t.Parallel()
	s := startServer(t, Config{Ephemeral: true})
	s.proc.kill()
	err := s.Stop(deadline(t))
	if err == nil {
		t.Fatal("no error")
	}
	mustContain(t, err.Error(), "had ended by itself")
	if _, err := os.Lstat(s.cluster.root); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("its folder is still there: %v", err)
	}
}

func TestStopWithEndedContext(t *testing.T) {
	t.Parallel()
	s := startServer(t, Config{Ephemeral: true})
	ctx, cancel := context.WithCancel(deadline(t))
	cancel()
	check(t, s.Stop(ctx))
	if running(s.proc.cmd.Process.Pid) {
		t.Error("the server still runs")
	}
}

func TestServerThatDoesNotStopFastIsStoppedImmediately(t *testing.T) {
	t.Parallel()
	out, err := os.Create(filepath.Join(t.TempDir(), "out"))
	check(t, err)
	defer out.Close()
	cmd := testAccount(t).command("/bin/sh", "-c", "trap '' INT; sleep 600 & trap \"kill $!; exit 7\" QUIT; echo up; wait")
	cmd.Stdout = out
	p, err := launch(cmd, syscall.SIGKILL)
	check(t, err)
	t.Cleanup(p.kill)
	eventually(t, "the traps are set", func() bool { return tail(out.Name()) == "up" })
	ctx, cancel := context.WithCancel(deadline(t))
	cancel()
	if p.shutdown(ctx) {
		t.Error("called a fast shutdown")
	}
	if code := p.cmd.ProcessState.ExitCode(); code != 7 {
		t.Errorf("exit code %d, want that of the immediate shutdown's signal", code)
	}
}

func TestLeftoverEphemeralServersAreSwept(t *testing.T) {
	t.Parallel()
	temp := openFolderFor(t, nil)
	ctx, log := deadline(t), slog.New(slog.DiscardHandler)
	gone := startChild(t, childConfig{Ephemeral: true}, nil, "TMPDIR="+temp)
	alive := startChild(t, childConfig{Ephemeral: true}, nil, "TMPDIR="+temp)
	gone.crash(t)
	// Whether or not its server went along, leave one.
	acct := testAccount(t)
	check(t, stopLeftovers(ctx, gone.Root, log, syscall.SIGQUIT))
	bin, err := findBinaries(ctx, Config{}, acct)
	check(t, err)
	c := cluster{root: gone.Root, bin: bin, acct: acct}
	password, err := os.ReadFile(c.passwordFile())
	check(t, err)
	left := orphan(t, c, string(password))

	sweep(ctx, temp, log)
	select {
	case <-left.exited:
	default:
		t.Error("the leftover server still runs")
	}
	if _, err := os.Lstat(gone.Root); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the leftover folder is still there: %v", err)
	}
	if got := ask(t, alive.URL, "select 'unharmed'"); got != "unharmed" {
		t.Error(got)
	}
	alive.stop(t)
}

func TestHomeThatTheServersUserCannotEnter(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("only root's server runs as another user")
	}
	home := t.TempDir()
	check(t, os.Chmod(home, 0o700))
	c := startChild(t, childConfig{}, nil, "HOME="+home)
	folder := filepath.Dir(c.Root) // of the program, with a name of its own for each home
	t.Cleanup(func() {
		check(t, os.RemoveAll(folder))
		_ = os.Remove("/var/cache/spectral") // if we were alone
	})
	if filepath.Dir(folder) != "/var/cache/spectral" {
		t.Errorf("runs in %s", folder)
	}
	mustContain(t, c.Describe, c.Data)
	mustContain(t, ask(t, c.URL, "select version()"), "PostgreSQL")
	c.stop(t)

	info, err := os.Stat(home)
	check(t, err)
	entries, err := os.ReadDir(home)
	check(t, err)
	if info.Mode().Perm() != 0o700 || len(entries) != 0 {
		t.Errorf("the home was changed: %v, %v", info.Mode(), entries)
	}
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
	nobody := &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}

	for name, variable := range map[string]string{"with a home": "HOME", "without a home": "TMPDIR"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			place := openFolderFor(t, nobody)
			check(t, os.Chmod(place, 0o700))
			c := startChild(t, childConfig{}, nobody, variable+"="+place)
			mustContain(t, ask(t, c.URL, "select version()"), "PostgreSQL")
			mustContain(t, c.Describe, "as this user")
			mustContain(t, c.Data, place)
			info, err := os.Stat(c.Data)
			check(t, err)
			if info.Sys().(*syscall.Stat_t).Uid != nobody.Uid {
				t.Error("the data is not the user's")
			}
			c.stop(t)
		})
	}
}

// cancelWhen is a log that cancels a context at a message, and keeps the process number in it.
type cancelWhen struct {
	slog.Handler
	message string
	cancel  context.CancelFunc
	pid     int64
}

func (h *cancelWhen) Enabled(context.Context, slog.Level) bool { return true }

func (h *cancelWhen) Handle(_ context.Context, r slog.Record) error {
	if r.Message != h.message {
		return nil
	}
	r.Attrs(func(a slog.Attr) bool {
		if a.Key == "pid" {
			h.pid = a.Value.Int64()
		}
		return true
	})
	h.cancel()
	return nil
}

func TestCancelledWaitLeavesNothing(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(deadline(t))
	at := &cancelWhen{Handler: slog.DiscardHandler, message: "PostgreSQL process started", cancel: cancel}
	dir := openFolderFor(t, nil)
	_, err := Start(ctx, Config{Dir: dir, Log: slog.New(at)})
	if !errors.Is(err, context.Canceled) {
		t.Fatalf("got %v", err)
	}
	if at.pid == 0 || running(int(at.pid)) {
		t.Errorf("process %d still runs", at.pid)
	}
	s := startServer(t, Config{Dir: dir}) // and the folder is free
	ask(t, s.URL("postgres"), "select 1")
}

func TestCancelledInitdbLeavesNothing(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(deadline(t))
	acct := testAccount(t)
	bin := fakePrograms(t, "15.1", "postgres")
	notes := openFolderFor(t, acct.cred)
	script(t, filepath.Join(bin, "initdb"), `
if [ "$1" = --version ]; then echo 'initdb (PostgreSQL) 15.1'; exit; fi
sleep 600 &
echo $$ $! >`+notes+`/unfinished
mv `+notes+`/unfinished `+notes+`/pids
wait`)
	dir := openFolderFor(t, nil)
	failed := make(chan error, 1)
	go func() {
		_, err := Start(ctx, Config{Dir: dir, BinDir: bin})
		failed <- err
	}()
	var pids []string
	eventually(t, "initdb runs", func() bool {
		text, err := os.ReadFile(filepath.Join(notes, "pids"))
		pids = strings.Fields(string(text))
		return err == nil
	})
	cancel()
	if err := <-failed; !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	for _, text := range pids {
		pid, err := strconv.Atoi(text)
		check(t, err)
		eventually(t, "process "+text+" is gone", func() bool { return !running(pid) })
	}
	entries, err := os.ReadDir(dir)
	check(t, err)
	if len(entries) != 1 {
		t.Errorf("want only the lock, got %v", entries)
	}
}
