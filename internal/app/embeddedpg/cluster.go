package embeddedpg

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

const (
	freshAdvice = "if its data may go, start with the fresh option, which makes a new cluster"
	stopGrace   = 15 * time.Second // a fast shutdown writes a checkpoint
	quitGrace   = 10 * time.Second // in an immediate one the server kills its own stragglers after 5 s
)

func (s *Server) data() string    { return filepath.Join(s.dir, "data") }
func (s *Server) logFile() string { return filepath.Join(s.dir, "server.log") }

// prepare makes the cluster unless there is one, and reads the superuser's password. A new cluster gets its name when
// it is complete, and one that is to be deleted loses it first.
func (s *Server) prepare(ctx context.Context, c Config) error {
	made, password := filepath.Join(s.dir, "new"), filepath.Join(s.dir, "password")
	if err := os.RemoveAll(made); err != nil {
		return err
	}
	if c.Fresh {
		if err := os.Rename(s.data(), made); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		if err := os.RemoveAll(made); err != nil {
			return err
		}
	}
	if _, err := os.Lstat(s.data()); errors.Is(err, fs.ErrNotExist) {
		if c.From != "" {
			err = errors.Join(s.copyFile(filepath.Join(c.From, "password"), password), s.copyFolder(filepath.Join(c.From, "data"), made))
		} else {
			err = s.initialise(ctx, made, password, c.NoSync || c.Ephemeral)
		}
		if err != nil {
			return err
		}
		if err := os.Rename(made, s.data()); err != nil {
			return err
		}
	}
	format, err := os.ReadFile(filepath.Join(s.data(), "PG_VERSION"))
	if err == nil && strings.TrimSpace(string(format)) != strconv.Itoa(s.programs.major) {
		err = fmt.Errorf("PostgreSQL %s made it, and %s would run it (%s chooses another)", bytes.TrimSpace(format), s.programs.version, overrideName)
	}
	text, passwordErr := os.ReadFile(password)
	if err := errors.Join(err, passwordErr); err != nil {
		return fmt.Errorf("the cluster in %s cannot be used; %s: %w", s.dir, freshAdvice, err)
	}
	s.password = string(text)
	return nil
}

// initialise runs initdb. Only the data directory and the password belong to the server's account, so that the account
// cannot lure a root program into writing elsewhere.
func (s *Server) initialise(ctx context.Context, made, password string, noSync bool) error {
	if err := os.Remove(password); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := errors.Join(
		os.Mkdir(made, 0o700),
		os.WriteFile(password, []byte(rand.Text()), 0o600),
		s.acct.own(made),
		s.acct.own(password),
	); err != nil {
		return err
	}
	args := []string{
		"--pgdata=" + made, "--username=postgres", "--pwfile=" + password, "--auth=scram-sha-256", "--encoding=UTF8", "--no-instructions",
	}
	if noSync {
		args = append(args, "--no-sync", "--wal-segsize=1")
	}
	var failed error
	for _, locale := range []string{"C.UTF-8", "C"} { // not every system has the first
		out, err := s.acct.command(ctx, s.programs.path("initdb"), append(args, "--locale="+locale)...).CombinedOutput()
		if err == nil {
			return nil
		}
		if ctx.Err() != nil {
			return errors.Join(context.Cause(ctx), os.RemoveAll(made))
		}
		failed = fmt.Errorf("initdb: %w\n%s", err, bytes.TrimSpace(out))
		if !bytes.Contains(out, []byte("invalid locale name")) {
			break
		}
	}
	return failed
}

// copyFolder copies the data directory of a stopped server.
func (s *Server) copyFolder(from, to string) error {
	return filepath.WalkDir(from, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		target := to + strings.TrimPrefix(path, from)
		if e.IsDir() {
			return errors.Join(os.Mkdir(target, 0o700), s.acct.own(target))
		}
		return s.copyFile(path, target)
	})
}

func (s *Server) copyFile(from, to string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in) // by the system, which shares the blocks where it can
	return errors.Join(err, out.Close(), s.acct.own(to))
}

// stopLeftover ends the server that runs on the data in a locked folder: the program that started it is gone, or it
// would hold the lock.
func stopLeftover(ctx context.Context, dir string, how syscall.Signal) error {
	data := filepath.Join(dir, "data")
	pidFile := filepath.Join(data, "postmaster.pid")
	text, err := os.ReadFile(pidFile)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	first, _, _ := strings.Cut(string(text), "\n")
	pid, _ := strconv.Atoi(strings.TrimSpace(first))
	if pid > 0 && isPostmaster(pid, data) {
		if err := syscall.Kill(pid, how); err != nil && !errors.Is(err, syscall.ESRCH) {
			return err
		}
	}
	// It is not our child, so there is nothing to wait on but its disappearance.
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	grace := time.After(stopGrace)
	for pid > 0 && isPostmaster(pid, data) {
		select {
		case <-tick.C:
		case <-grace:
			return fmt.Errorf("a server of a killed program (process %d) still runs on %s and does not stop: end it, or use another folder", pid, data)
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	// The number in a file that outlived its server may be another process's by now; PostgreSQL would then refuse to start.
	if err := os.Remove(pidFile); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// isPostmaster reports whether the process is a PostgreSQL server on this data directory.
func isPostmaster(pid int, data string) bool {
	line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	if err != nil { // no Linux, or no such process
		line, err = exec.Command("ps", "-ww", "-o", "args=", "-p", strconv.Itoa(pid)).Output()
	}
	line = bytes.ReplaceAll(line, []byte{0}, []byte{' '})
	return err == nil && bytes.Contains(line, []byte("postgres -D "+data+" -c "))
}

// tail is the end of a text file, or what keeps us from reading it.
func tail(path string) string {
	text, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	return string(bytes.TrimSpace(text[max(0, len(text)-2000):]))
}
