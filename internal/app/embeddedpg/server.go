package embeddedpg

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
)

// readyTimeout bounds the wait for the first connection.
const readyTimeout = 60 * time.Second

// Keys of log entries.
const (
	logData    = "data"
	logFolder  = "folder"
	logVersion = "version"
)

// Config of a server; the zero value is the demo's server.
type Config struct {
	// Dir is the folder of the server; PostgreSQL's user must be able to enter it. Empty means postgres in CacheFolder.
	Dir string
	// Fresh deletes the data first.
	Fresh bool
	// NoSync makes a server that does not protect its data against a crash, with small log files.
	NoSync bool
	// Ephemeral is for tests: NoSync, in a new temporary folder that Stop removes. Dir is ignored.
	Ephemeral bool
	// From is the Dir of a server that was stopped: where there are no data yet, they are copied from there.
	From string
	// Settings are PostgreSQL settings by name. They win over this package's choices, except for those that say
	// where the server is found.
	Settings map[string]string
	// BinDir is the folder of PostgreSQL's programs, normally the value of SPECTRAL_POSTGRES_BIN. Empty means the
	// newest installed version, or a download when none is suitable.
	BinDir string
	// Log may be nil. The password is never logged.
	Log *slog.Logger
}

func (c Config) log() *slog.Logger {
	if c.Log == nil {
		return slog.New(slog.DiscardHandler)
	}
	return c.Log
}

// serverArgs are the arguments of the postgres program. Data comes first: isPostmaster looks for it.
func (c Config) serverArgs(data string, port int) []string {
	settings := map[string]string{"max_connections": "100"}
	if c.Ephemeral || c.NoSync {
		settings = map[string]string{"max_connections": "200", "fsync": "off", "synchronous_commit": "off", "full_page_writes": "off"}
	}
	maps.Copy(settings, c.Settings)
	maps.Copy(settings, map[string]string{
		"listen_addresses":        "127.0.0.1",
		"port":                    strconv.Itoa(port),
		"unix_socket_directories": "",    // the path of a socket is limited to 107 bytes, a folder's is not
		"logging_collector":       "off", // the log is the output, so that an early exit can be explained
	})
	args := []string{"-D", data}
	for _, name := range slices.Sorted(maps.Keys(settings)) {
		args = append(args, "-c", name+"="+settings[name])
	}
	return args
}

// Server is a running PostgreSQL server. Its methods may be called concurrently.
type Server struct {
	dir       string
	acct      account
	programs  programs
	ephemeral bool
	lock      *os.File
	log       *slog.Logger
	password  string
	port      int

	cmd     *exec.Cmd
	exited  chan struct{}
	exitErr error // of Wait; read it after exited is closed

	stop    sync.Once
	stopErr error
}

// Start returns when the server answers, at the latest after 60 s once its cluster is there. The context bounds the
// start only. A folder in use by another server is an error. The caller owns the server and must Stop it.
func Start(ctx context.Context, c Config) (*Server, error) {
	s := &Server{ephemeral: c.Ephemeral, log: c.log()}
	if err := s.start(ctx, c); err != nil {
		if s.lock != nil {
			err = errors.Join(err, s.release())
		}
		return nil, fmt.Errorf("start embedded PostgreSQL: %w", err)
	}
	return s, nil
}

// Version is that of the programs that Start would run.
func Version(ctx context.Context, c Config) (string, error) {
	acct, err := serverAccount()
	if err != nil {
		return "", err
	}
	p, err := findPrograms(ctx, c, acct)
	return p.version, err
}

func (s *Server) start(ctx context.Context, c Config) (err error) {
	if s.acct, err = serverAccount(); err != nil {
		return err
	}
	if s.programs, err = findPrograms(ctx, c, s.acct); err != nil {
		return err
	}
	if err := s.openFolder(ctx, c); err != nil {
		return err
	}
	if err := stopLeftover(ctx, s.dir, syscall.SIGINT); err != nil {
		return err
	}
	if err := s.prepare(ctx, c); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	for {
		err := s.run(ctx, c)
		// another program took the port since it was chosen, or the children of a killed server still end
		if err == nil || ctx.Err() != nil ||
			!strings.Contains(err.Error(), "Address already in use") && !strings.Contains(err.Error(), "pre-existing shared memory block") {
			return err
		}
		select {
		case <-ctx.Done():
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// openFolder chooses, creates and locks the server's folder.
func (s *Server) openFolder(ctx context.Context, c Config) (err error) {
	switch {
	case c.Ephemeral:
		sweep(ctx, os.TempDir())
		s.dir, s.lock, err = newEphemeral(os.TempDir())
		return err
	case c.Dir == "":
		s.dir, err = CacheFolder()
		s.dir = filepath.Join(s.dir, "postgres")
	default:
		s.dir, err = filepath.Abs(c.Dir)
	}
	if err == nil {
		err = openFolder(s.dir)
	}
	if err == nil {
		s.lock, err = lockFolder(s.dir)
	}
	return err
}

// run makes one attempt to start the server.
func (s *Server) run(ctx context.Context, c Config) error {
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		return err
	}
	s.port = l.Addr().(*net.TCPAddr).Port
	if err := l.Close(); err != nil {
		return err
	}
	out, err := os.Create(s.logFile())
	if err != nil {
		return err
	}
	defer out.Close()
	s.cmd = s.acct.command(context.Background(), s.programs.path("postgres"), c.serverArgs(s.data(), s.port)...)
	s.cmd.Stdout, s.cmd.Stderr = out, out
	if err := s.cmd.Start(); err != nil {
		return err
	}
	s.exited = make(chan struct{})
	go func() {
		s.exitErr = s.cmd.Wait()
		close(s.exited)
	}()
	if err := s.awaitReady(ctx); err != nil {
		s.quit()
		return err
	}
	return nil
}

// awaitReady waits until a connection succeeds, the server ends, or ctx does.
func (s *Server) awaitReady(ctx context.Context) error {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		conn, err := pgx.Connect(ctx, s.URL("postgres"))
		if err == nil { // the password is known to no other server
			return conn.Close(ctx)
		}
		select {
		case <-s.exited:
			return fmt.Errorf("the server in %s ended at once (%w); %s. The end of its log:\n%s", s.dir, s.exitErr, freshAdvice, tail(s.logFile()))
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("the server in %s is not ready: %w: %w. The end of its log:\n%s", s.dir, context.Cause(ctx), err, tail(s.logFile()))
		}
	}
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
func (s *Server) Done() <-chan struct{} { return s.exited }

// Describe says in one line what runs and how to reach it. It contains the password: show it to the person at the
// terminal, keep it out of logs.
func (s *Server) Describe() string {
	return fmt.Sprintf("PostgreSQL %s from %s as %s, data in %s, port %d: %s",
		s.programs.version, s.programs.dir, s.acct.name, s.data(), s.port, s.URL("postgres"))
}

// Stop ends the server, and with an ephemeral one its folder. It shuts down fast (clients are disconnected, data is
// written), or, once ctx is done or 15 s have passed, immediately; either way the process is gone when Stop
// returns. The error says that the server had ended by itself, or what could not be removed. Further calls wait for
// the first, and return the same.
func (s *Server) Stop(ctx context.Context) error {
	s.stop.Do(func() {
		select {
		case <-s.exited:
			s.stopErr = fmt.Errorf("the embedded PostgreSQL had ended by itself (%v). The end of its log:\n%s", s.cmd.ProcessState, tail(s.logFile()))
		default:
			s.shutdown(ctx)
		}
		s.stopErr = errors.Join(s.stopErr, s.release())
	})
	return s.stopErr
}

func (s *Server) shutdown(ctx context.Context) {
	if s.ephemeral { // nothing to save
		s.quit()
		return
	}
	_ = s.cmd.Process.Signal(syscall.SIGINT)
	select {
	case <-s.exited:
		return
	case <-ctx.Done():
	case <-time.After(stopGrace):
	}
	s.log.WarnContext(ctx, "PostgreSQL did not stop in time and is stopped immediately", logData, s.data())
	s.quit()
}

// quit ends the server without saving anything (the next start recovers), and waits for it.
func (s *Server) quit() {
	_ = s.cmd.Process.Signal(syscall.SIGQUIT)
	select {
	case <-s.exited:
	case <-time.After(quitGrace):
		_ = syscall.Kill(-s.cmd.Process.Pid, syscall.SIGKILL)
		<-s.exited
	}
}

// release gives the folder away, and removes it if it is ephemeral.
func (s *Server) release() error {
	var err error
	if s.ephemeral {
		err = os.RemoveAll(s.dir)
	}
	_ = s.lock.Truncate(0) // the number in it is no longer true
	return errors.Join(err, s.lock.Close())
}
