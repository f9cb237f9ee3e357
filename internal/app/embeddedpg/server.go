package embeddedpg

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// readyTimeout bounds the wait for the first connection when the caller's context has no deadline.
const readyTimeout = 60 * time.Second

// Server is a running PostgreSQL server. Its methods may be called concurrently.
type Server struct {
	cluster   cluster
	ephemeral bool
	lock      *os.File
	log       *slog.Logger

	proc     *process
	password string
	port     int

	stop    sync.Once
	stopErr error
}

// Start returns when the server answers. The context bounds the start only; without a deadline in it, the wait for
// the first answer ends after 60 s. A folder in use by another server gives a *BusyError. The caller owns the
// server and must Stop it.
func Start(ctx context.Context, c Config) (*Server, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	s, err := start(ctx, c)
	if err != nil {
		return nil, fmt.Errorf("start embedded PostgreSQL: %w", err)
	}
	return s, nil
}

func start(ctx context.Context, c Config) (*Server, error) {
	acct, err := serverAccount()
	if err != nil {
		return nil, err
	}
	bin, err := findBinaries(ctx, c, acct)
	if err != nil {
		return nil, err
	}
	root, lock, err := openFolder(ctx, c, acct)
	if err != nil {
		return nil, err
	}
	s := &Server{
		cluster:   cluster{root: root, bin: bin, acct: acct},
		ephemeral: c.Ephemeral,
		lock:      lock,
		log:       c.Log,
	}
	if err := s.bringUp(ctx, c); err != nil {
		return nil, errors.Join(err, s.release())
	}
	return s, nil
}

func findBinaries(ctx context.Context, c Config, acct account) (binaries, error) {
	if c.BinDir != "" {
		return override(ctx, acct, c.BinDir)
	}
	bin, installedErr := newest(ctx, acct, installedFolders(ctx, acct))
	if installedErr == nil || ctx.Err() != nil {
		return bin, installedErr
	}
	folder, err := defaultFolder(acct)
	if err == nil {
		c.Log.InfoContext(ctx, "no suitable PostgreSQL is installed, so one is downloaded unless that was done before", logVersion, downloadVersion, logFolder, folder)
		bin, err = download(ctx, acct, folder, downloadSite)
	}
	if err != nil {
		return bin, fmt.Errorf("install PostgreSQL (apt-get install postgresql, brew install postgresql@17) or set %s to the folder of its programs: %w",
			overrideName, errors.Join(installedErr, err))
	}
	return bin, nil
}

// openFolder returns the folder of the server, locked.
func openFolder(ctx context.Context, c Config, acct account) (string, *os.File, error) {
	if c.Ephemeral {
		sweep(ctx, os.TempDir(), c.Log)
		return newEphemeral(os.TempDir(), acct)
	}
	dir, err := c.Dir, error(nil)
	if dir == "" {
		if dir, err = defaultFolder(acct); err == nil {
			dir = filepath.Join(dir, "postgres")
		}
	} else {
		dir, err = filepath.Abs(dir)
	}
	if err == nil {
		err = makeFolder(dir, acct)
	}
	if err != nil {
		return "", nil, err
	}
	lock, err := lockFolder(dir)
	return dir, lock, err
}

// CacheFolder is where the program keeps its files, which PostgreSQL's user can enter.
func CacheFolder() (string, error) {
	acct, err := serverAccount()
	if err != nil {
		return "", err
	}
	return defaultFolder(acct)
}

// Version is that of the programs that Start would run.
func Version(ctx context.Context, c Config) (string, error) {
	acct, err := serverAccount()
	if err != nil {
		return "", err
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	bin, err := findBinaries(ctx, c, acct)
	return bin.version, err
}

func defaultFolder(acct account) (string, error) {
	cache, _ := os.UserCacheDir() // without HOME there is none, and the other folders are tried
	return programFolder(acct, programFolders(cache, os.TempDir()))
}

// bringUp leaves either a server that answers or none.
func (s *Server) bringUp(ctx context.Context, c Config) error {
	if err := stopLeftovers(ctx, s.cluster.root, s.log, syscall.SIGINT, syscall.SIGQUIT); err != nil {
		return err
	}
	password, err := s.cluster.prepare(ctx, c.Fresh, !c.Ephemeral && !c.NoSync, c.From)
	if err != nil {
		return err
	}
	s.password = password
	for attempt := 1; ; attempt++ {
		port, err := freePort()
		if err == nil {
			err = s.run(ctx, c, port)
		}
		if early := (*earlyExitError)(nil); attempt == 10 || !errors.As(err, &early) || !early.passing() {
			return err
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// run makes one attempt to start the server.
func (s *Server) run(ctx context.Context, c Config, port int) error {
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, readyTimeout)
		defer cancel()
	}
	out, err := s.cluster.openLog()
	if err != nil {
		return err
	}
	defer out.Close()
	cmd := s.cluster.acct.command(s.cluster.bin.path("postgres"), c.serverArgs(s.cluster.data(), port)...)
	cmd.Stdout, cmd.Stderr = out, out
	death := syscall.SIGINT
	if s.ephemeral {
		death = syscall.SIGQUIT // nothing to save
	}
	if s.proc, err = launch(cmd, death); err != nil {
		return err
	}
	s.port = port
	s.log.DebugContext(ctx, "PostgreSQL process started", logPID, cmd.Process.Pid, logData, s.cluster.data(), logPort, port)
	if err := s.awaitReady(ctx); err != nil {
		ended, cancel := context.WithCancel(ctx)
		cancel()
		s.proc.shutdown(ended)
		return err
	}
	return nil
}

// awaitReady waits until a connection succeeds, the server ends, or ctx does.
func (s *Server) awaitReady(ctx context.Context) error {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		if s.announced() {
			err := s.ping(ctx)
			if refused := (*pgconn.PgError)(nil); errors.As(err, &refused) {
				return fmt.Errorf("the server in %s does not let us in; %s: %w", s.cluster.dir(), freshAdvice, err)
			}
			if err == nil {
				return nil
			}
		}
		select {
		case <-s.proc.exited:
			return &earlyExitError{state: s.proc.err, dir: s.cluster.dir(), log: tail(s.cluster.logFile())}
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("the server in %s is not ready: %w. The end of its log:\n%s", s.cluster.dir(), context.Cause(ctx), tail(s.cluster.logFile()))
		}
	}
}

// announced reports whether our process has written that it takes connections, if only for reading (a hot standby).
// Before that, another server may be the one that listens on the port.
func (s *Server) announced() bool {
	text, err := os.ReadFile(filepath.Join(s.cluster.data(), "postmaster.pid"))
	lines := strings.Split(string(text), "\n") // the process comes first, its state eighth
	if err != nil || len(lines) < 8 || lines[0] != strconv.Itoa(s.proc.cmd.Process.Pid) {
		return false
	}
	state := strings.TrimSpace(lines[7])
	return state == "ready" || state == "standby"
}

func (s *Server) ping(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	conn, err := pgx.Connect(ctx, s.URL("postgres"))
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	_, err = conn.Exec(ctx, "select 1")
	return err
}

// earlyExitError says that the server ended before it answered.
type earlyExitError struct {
	state error
	dir   string
	log   string
}

func (e *earlyExitError) Error() string {
	return fmt.Sprintf("the server in %s ended at once (%v); %s. The end of its log:\n%s", e.dir, e.state, freshAdvice, e.log)
}

// passing reports whether another attempt may succeed: somebody took the port between our choice and the server's
// start, or the children of a killed server are still on their way out.
func (e *earlyExitError) passing() bool {
	return strings.Contains(e.log, "Address already in use") || strings.Contains(e.log, "pre-existing shared memory block")
}

// URL returns the address of a database of the server, for the superuser `postgres`. It contains the password.
func (s *Server) URL(database string) string {
	u := url.URL{
		Scheme:   "postgres",
		User:     url.UserPassword("postgres", s.password),
		Host:     net.JoinHostPort("127.0.0.1", strconv.Itoa(s.port)),
		Path:     "/" + database,
		RawQuery: "sslmode=disable",
	}
	return u.String()
}

// Done is closed when the server's process is over, whether Stop ended it or it ended by itself.
func (s *Server) Done() <-chan struct{} { return s.proc.exited }

// Describe says in one line what runs and how to reach it. It contains the password: show it to the person at the
// terminal, keep it out of logs.
func (s *Server) Describe() string {
	return fmt.Sprintf("PostgreSQL %s from %s as %s, data in %s, port %d: %s", s.cluster.bin.version, s.cluster.bin.dir,
		s.cluster.acct, s.cluster.data(), s.port, s.URL("postgres"))
}

// Stop ends the server, and with an ephemeral one its folder. It shuts down fast (clients are disconnected, data is
// written), or, once ctx is done or 15 s have passed, immediately; either way the process is gone when Stop
// returns. The error says that the server had ended by itself, or what could not be removed. Further calls wait for
// the first, and return the same.
func (s *Server) Stop(ctx context.Context) error {
	s.stop.Do(func() {
		select {
		case <-s.proc.exited:
			ended := s.proc.err
			if ended == nil {
				ended = errors.New("exit status 0")
			}
			s.stopErr = fmt.Errorf("the embedded PostgreSQL had ended by itself (%w). The end of its log:\n%s", ended, tail(s.cluster.logFile()))
		default:
			if s.ephemeral { // nothing to save
				s.proc.quit()
			} else if !s.proc.shutdown(ctx) {
				s.log.WarnContext(ctx, "PostgreSQL did not stop in time and was stopped immediately", logData, s.cluster.data())
			}
		}
		s.stopErr = errors.Join(s.stopErr, s.release())
	})
	return s.stopErr
}

// release gives the folder away, and removes it if it is ephemeral.
func (s *Server) release() error {
	var err error
	if s.ephemeral {
		err = os.RemoveAll(s.cluster.root)
	}
	_ = s.lock.Truncate(0) // the number in it is no longer true
	return errors.Join(err, s.lock.Close())
}
