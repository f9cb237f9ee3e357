package embeddedpg

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
)

const (
	readyTimeout = 60 * time.Second
	stopGrace    = 15 * time.Second // a fast shutdown writes a checkpoint
	quitGrace    = 10 * time.Second // in an immediate shutdown the server kills its own children after 5 s
)

// Keys of log entries.
const (
	logData    = "data"
	logFolder  = "folder"
	logVersion = "version"
)

// Config describes a server. The zero value is the demo's server.
type Config struct {
	// Dir is the server's folder. Empty means postgres in CacheFolder.
	Dir string
	// Fresh deletes the data first.
	Fresh bool
	// Settings are PostgreSQL settings by name.
	Settings map[string]string
	// BinDir is the folder of PostgreSQL's programs, normally the value of SPECTRAL_POSTGRES_BIN. Empty means the
	// newest installed version, or a download if none is suitable.
	BinDir string
	// Log may be nil. The password is never logged.
	Log *slog.Logger
}

// serverArgs returns the arguments of the postgres program. Data comes first, because isPostmaster looks for it.
func (c Config) serverArgs(data string, port int) []string {
	args := []string{"-D", data}
	for name, value := range c.Settings {
		args = append(args, "-c", name+"="+value)
	}
	return append(args, "-c", "listen_addresses=127.0.0.1", "-c", "port="+strconv.Itoa(port),
		"-c", "unix_socket_directories=", // a socket's path is limited to 107 bytes
		"-c", "logging_collector=off") // errors quote the log, which is the server's output
}

// Server is a running PostgreSQL server.
type Server struct {
	dir      string
	acct     account
	programs programs
	lock     *os.File
	log      *slog.Logger
	password string
	port     int

	cmd    *exec.Cmd
	exited chan struct{} // closed when cmd has ended
}

// Start returns a server that answers, at most 60 s after its data directory is complete. The context bounds the start
// only. It fails if another server uses the folder. The caller must Stop the server.
func Start(ctx context.Context, c Config) (*Server, error) {
	s := &Server{log: cmp.Or(c.Log, slog.New(slog.DiscardHandler))}
	if err := s.start(ctx, c); err != nil {
		if s.lock != nil {
			err = errors.Join(err, s.release())
		}
		return nil, fmt.Errorf("start embedded PostgreSQL: %w", err)
	}
	return s, nil
}

// Version returns the version of the programs that Start would run.
func Version(ctx context.Context, c Config) (string, error) {
	s := Server{log: slog.New(slog.DiscardHandler)}
	err := s.findPrograms(ctx, c)
	return s.programs.version, err
}

func (s *Server) start(ctx context.Context, c Config) error {
	for _, step := range []func(context.Context, Config) error{s.findPrograms, s.openFolder, s.prepare} {
		if err := step(ctx, c); err != nil {
			return err
		}
	}
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	for {
		err := s.run(ctx, c)
		// Retry if another program took the port since we chose it, or if children of a killed server are still ending.
		if err == nil || ctx.Err() != nil || !strings.Contains(err.Error(), "Address already in use") &&
			!strings.Contains(err.Error(), "pre-existing shared memory block") {
			return err
		}
		select {
		case <-ctx.Done():
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// run tries once to start the server.
func (s *Server) run(ctx context.Context, c Config) (err error) {
	if s.port, err = freePort(); err != nil {
		return err
	}
	out, err := os.Create(s.logFile())
	if err != nil {
		return err
	}
	defer out.Close()
	s.cmd = s.acct.command(context.Background(), s.programs.path("postgres"), c.serverArgs(s.data(), s.port)...)
	s.cmd.Stdout, s.cmd.Stderr = out, out
	if err = s.cmd.Start(); err != nil {
		return err
	}
	s.exited = make(chan struct{})
	go func() {
		_ = s.cmd.Wait() // ProcessState has the result
		close(s.exited)
	}()
	if err = s.awaitReady(ctx); err != nil {
		s.quit()
	}
	return err
}

func freePort() (int, error) {
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	return l.Addr().(*net.TCPAddr).Port, l.Close()
}

// awaitReady waits until a connection succeeds, the server exits, or ctx ends.
func (s *Server) awaitReady(ctx context.Context) error {
	for {
		conn, err := pgx.Connect(ctx, s.URL("postgres"))
		if err == nil { // this is our server: no other knows the password
			return conn.Close(ctx)
		}
		select {
		case <-s.exited:
			return fmt.Errorf("the server in %s exited at once (%s); %s. The end of its log:\n%s",
				s.dir, s.cmd.ProcessState, freshAdvice, s.logTail())
		case <-time.After(20 * time.Millisecond):
		case <-ctx.Done():
			return fmt.Errorf("the server in %s is not ready: %w: %w. The end of its log:\n%s",
				s.dir, context.Cause(ctx), err, s.logTail())
		}
	}
}

// URL returns the URL of one of the server's databases for the superuser postgres. It contains the password.
func (s *Server) URL(database string) string {
	return fmt.Sprintf("postgres://postgres:%s@127.0.0.1:%d/%s?sslmode=disable",
		s.password, s.port, url.PathEscape(database))
}

// Done is closed when the server's process has ended, by Stop or otherwise.
func (s *Server) Done() <-chan struct{} { return s.exited }

// Describe returns one line about the server, with its URL. It contains the password: print it, do not log it.
func (s *Server) Describe() string {
	return fmt.Sprintf("PostgreSQL %s from %s as %s, data in %s, port %d: %s",
		s.programs.version, s.programs.dir, s.acct.name, s.data(), s.port, s.URL("postgres"))
}

// Stop ends the server. It disconnects clients and writes the data. When ctx ends or after 15 s it stops the server at
// once. In both cases the process has ended when Stop returns. The error says that the server had ended before.
func (s *Server) Stop(ctx context.Context) (err error) {
	select {
	case <-s.exited:
		err = fmt.Errorf("the embedded PostgreSQL had ended before (%s). The end of its log:\n%s",
			s.cmd.ProcessState, s.logTail())
	default:
		if !s.endsAfter(ctx, syscall.SIGINT, stopGrace) {
			s.log.WarnContext(ctx, "PostgreSQL did not stop in time and is stopped at once", logData, s.data())
		}
		s.quit()
	}
	return errors.Join(err, s.release())
}

// endsAfter sends the server a signal, and reports whether it has ended when grace is over or ctx ends.
func (s *Server) endsAfter(ctx context.Context, signal os.Signal, grace time.Duration) bool {
	_ = s.cmd.Process.Signal(signal)
	ctx, cancel := context.WithTimeout(ctx, grace)
	defer cancel()
	select {
	case <-s.exited:
		return true
	case <-ctx.Done():
		return false
	}
}

// quit ends the server, if it still runs, without saving anything, and waits for it. The next start recovers the data.
func (s *Server) quit() {
	if !s.endsAfter(context.Background(), syscall.SIGQUIT, quitGrace) {
		_ = syscall.Kill(-s.cmd.Process.Pid, syscall.SIGKILL)
		<-s.exited
	}
}

// release unlocks the folder.
func (s *Server) release() error { return errors.Join(s.lock.Truncate(0), s.lock.Close()) }

func (s *Server) data() string    { return filepath.Join(s.dir, "data") }
func (s *Server) logFile() string { return filepath.Join(s.dir, "server.log") }

// logTail returns the end of the server's log, or why it cannot be read.
func (s *Server) logTail() string {
	text, err := os.ReadFile(s.logFile())
	if err != nil {
		return err.Error()
	}
	return strings.TrimSpace(string(text[max(0, len(text)-2000):]))
}
