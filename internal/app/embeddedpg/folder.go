package embeddedpg

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
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

const ephemeralPrefix = "spectral-pg-"

// CacheFolder creates and returns the folder for the program's files: spectral in the user's cache folder. Root's is
// below /var/cache/spectral, one for each home, because PostgreSQL's user cannot enter most homes.
func CacheFolder() (string, error) {
	cache, err := os.UserCacheDir()
	dir := filepath.Join(cache, "spectral")
	if os.Geteuid() == 0 {
		dir, err = fmt.Sprintf("/var/cache/spectral/%.6x", sha256.Sum256([]byte(cache))), makeFolder("/var/cache/spectral")
	}
	if err != nil {
		return "", err
	}
	return dir, makeFolder(dir)
}

// makeFolder creates a folder that every user can enter, whatever the umask is.
func makeFolder(dir string) error {
	if info, err := os.Stat(dir); err == nil && info.IsDir() {
		return nil
	}
	return errors.Join(os.MkdirAll(dir, 0o755), os.Chmod(dir, 0o755))
}

// openFolder chooses, creates and locks the server's folder.
func (s *Server) openFolder(ctx context.Context, c Config) (err error) {
	switch {
	case c.Ephemeral:
		removeLeftovers(ctx, os.TempDir())
		if s.dir, err = os.MkdirTemp("", ephemeralPrefix); err == nil {
			err = os.Chmod(s.dir, 0o755)
		}
	case c.Dir == "":
		s.dir, err = CacheFolder()
		s.dir = filepath.Join(s.dir, "postgres")
	default:
		s.dir, err = filepath.Abs(c.Dir)
	}
	if err != nil {
		return err
	}
	if err = makeFolder(s.dir); err == nil {
		s.lock, err = lockFolder(s.dir)
	}
	return err
}

// lockFolder locks the folder until the file is closed. The system closes it when the process is killed. The file holds
// the number of the process.
func lockFolder(dir string) (*os.File, error) {
	f, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_RDWR|os.O_CREATE|syscall.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, err
	}
	if err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		pid, _ := io.ReadAll(io.LimitReader(f, 32))
		err = fmt.Errorf("process %s runs an embedded PostgreSQL in %s: stop that process, or use another folder "+
			"(XDG_CACHE_HOME moves the default one): %w", pid, dir, err)
	} else if err = f.Truncate(0); err == nil {
		_, err = f.WriteString(strconv.Itoa(os.Getpid()))
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// removeLeftovers stops and removes the ephemeral servers of this user whose process was killed. A lock without a
// number belongs to a server that is just starting.
func removeLeftovers(ctx context.Context, temp string) {
	locks, _ := filepath.Glob(filepath.Join(temp, ephemeralPrefix+"*", "lock"))
	for _, path := range locks {
		dir := filepath.Dir(path)
		file, err := os.Lstat(path)
		if err != nil || file.Size() == 0 || file.Sys().(*syscall.Stat_t).Uid != uint32(os.Geteuid()) {
			continue
		}
		lock, err := lockFolder(dir)
		if err != nil {
			continue
		}
		if stopLeftover(ctx, dir, syscall.SIGQUIT) == nil {
			_ = os.RemoveAll(dir) // best effort: a later start removes the rest
		}
		_ = lock.Close()
	}
}

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
