package embeddedpg

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

const freshAdvice = "if you do not need its data, start with the fresh option, which deletes them"

// prepare stops a leftover server, makes the data directory unless it exists, and reads the superuser's password. A new
// data directory gets its name when it is complete.
func (s *Server) prepare(ctx context.Context, c Config) error {
	made, password := filepath.Join(s.dir, "new"), filepath.Join(s.dir, "password")
	err := errors.Join(stopLeftover(ctx, s.dir, syscall.SIGINT), os.RemoveAll(made))
	if err == nil && c.Fresh {
		err = os.RemoveAll(s.data())
	}
	if _, statErr := os.Lstat(s.data()); err == nil && errors.Is(statErr, fs.ErrNotExist) {
		if err = s.initialise(ctx, made, password, c); err == nil {
			err = os.Rename(made, s.data())
		}
	}
	if err != nil {
		return err
	}
	text, err := os.ReadFile(password)
	if err != nil {
		return fmt.Errorf("the data in %s cannot be used; %s: %w", s.dir, freshAdvice, err)
	}
	s.password = string(text)
	return nil
}

// initialise makes a data directory and a password, by initdb or as copies of c.From. Only these two belong to the
// server's user, so that user cannot make a program of root write elsewhere.
func (s *Server) initialise(ctx context.Context, made, password string, c Config) error {
	secret := []byte(rand.Text())
	if c.From != "" {
		var err error
		if secret, err = os.ReadFile(filepath.Join(c.From, "password")); err != nil {
			return err
		}
	}
	err := errors.Join(os.Mkdir(made, 0o700), os.WriteFile(password, secret, 0o600), s.acct.own(password))
	if err == nil && c.From != "" {
		err = os.CopyFS(made, os.DirFS(filepath.Join(c.From, "data")))
	}
	if err = errors.Join(err, s.acct.own(made)); err != nil || c.From != "" {
		return err
	}
	args := []string{
		"--pgdata=" + made, "--username=postgres", "--pwfile=" + password, "--auth=scram-sha-256", "--encoding=UTF8",
		"--no-locale", "--no-instructions",
	}
	if c.NoSync || c.Ephemeral {
		args = append(args, "--no-sync", "--wal-segsize=1")
	}
	if out, err := s.acct.command(ctx, s.programs.path("initdb"), args...).CombinedOutput(); err != nil {
		return errors.Join(context.Cause(ctx), fmt.Errorf("initdb: %w\n%s", err, bytes.TrimSpace(out)), os.RemoveAll(made))
	}
	return nil
}

// stopLeftover stops the server that runs on the data of a locked folder. The process that started it was killed, since
// it would hold the lock otherwise.
func stopLeftover(ctx context.Context, dir string, how syscall.Signal) error {
	data := filepath.Join(dir, "data")
	pidFile := filepath.Join(data, "postmaster.pid")
	text, _ := os.ReadFile(pidFile)
	first, _, _ := strings.Cut(string(text), "\n")
	pid, _ := strconv.Atoi(strings.TrimSpace(first)) // zero if there is no file
	ctx, cancel := context.WithTimeout(ctx, stopGrace)
	defer cancel()
	for isPostmaster(pid, data) { // it is not our child, so we cannot wait for it
		if err := syscall.Kill(pid, how); err != nil && !errors.Is(err, syscall.ESRCH) {
			return err
		}
		select {
		case <-time.After(20 * time.Millisecond):
		case <-ctx.Done():
			return fmt.Errorf("process %d, the server of a killed program, still runs on %s: end it, or use another folder: %w",
				pid, data, context.Cause(ctx))
		}
	}
	// PostgreSQL would refuse to start if another process had the number in a leftover file.
	return os.RemoveAll(pidFile)
}

// isPostmaster reports whether the process is a PostgreSQL server on this data directory.
func isPostmaster(pid int, data string) bool {
	line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	if err != nil { // not Linux, or no such process
		line, err = exec.Command("ps", "-ww", "-o", "args=", "-p", strconv.Itoa(pid)).Output()
	}
	line = bytes.ReplaceAll(line, []byte{0}, []byte{' '})
	return err == nil && bytes.Contains(line, []byte("postgres -D "+data+" -c "))
}
