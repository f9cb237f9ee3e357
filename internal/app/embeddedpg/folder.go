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

	checks "spectral/internal/core/check"
)

// CacheFolder creates and returns the folder for the program's files: spectral in the user's cache folder. Root's is
// below /var/cache/spectral, one for each home, because PostgreSQL's user cannot enter most homes.
func CacheFolder() (string, error) {
	cache, err := os.UserCacheDir()
	dir := filepath.Join(cache, "spectral")
	if os.Geteuid() == 0 {
		dir, err = fmt.Sprintf("/var/cache/spectral/%.6x", sha256.Sum256([]byte(cache))), makeFolder("/var/cache/spectral")
	}
	if err == nil {
		err = makeFolder(dir)
	}
	if err != nil {
		return "", fmt.Errorf("cannot use the cache folder: %w; set XDG_CACHE_HOME to a folder that this user owns", err)
	}
	return dir, nil
}

// makeFolder creates a folder that every user can enter, whatever the umask is. It refuses one of another user.
func makeFolder(dir string) error {
	info, err := os.Lstat(dir)
	if errors.Is(err, fs.ErrNotExist) {
		if err = os.MkdirAll(dir, 0o755); err == nil {
			err = os.Chmod(dir, 0o755)
		}
		return err
	}
	if err != nil {
		return err
	}
	return checks.PrivateFolder(dir, info)
}

// openFolder chooses, creates and locks the server's folder.
func (s *Server) openFolder(_ context.Context, c Config) (err error) {
	if s.dir, err = filepath.Abs(c.Dir); c.Dir == "" {
		s.dir, err = CacheFolder()
		s.dir = filepath.Join(s.dir, "postgres")
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

const freshAdvice = "if you do not need its data, start with the fresh option, which deletes them"

// prepare stops a leftover server, makes the data directory unless it exists, and reads the superuser's password. A new
// data directory gets its name when it is complete.
func (s *Server) prepare(ctx context.Context, c Config) error {
	made, password := filepath.Join(s.dir, "new"), filepath.Join(s.dir, "password")
	err := errors.Join(s.stopLeftover(ctx), os.RemoveAll(made))
	if err == nil && c.Fresh {
		err = os.RemoveAll(s.data())
	}
	if _, statErr := os.Lstat(s.data()); err == nil && errors.Is(statErr, fs.ErrNotExist) {
		if err = s.initialise(ctx, made, password); err == nil {
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

// initialise makes a data directory and a password. Only these two belong to the server's user, so that user cannot
// make a program of root write elsewhere.
func (s *Server) initialise(ctx context.Context, made, password string) error {
	err := errors.Join(os.Mkdir(made, 0o700), os.WriteFile(password, []byte(rand.Text()), 0o600), s.acct.own(password))
	if err == nil {
		err = s.acct.own(made)
	}
	if err != nil {
		return err
	}
	initdb := s.acct.command(ctx, s.programs.path("initdb"), "--pgdata="+made, "--username=postgres",
		"--pwfile="+password, "--auth=scram-sha-256", "--encoding=UTF8", "--no-locale", "--no-instructions")
	if out, err := initdb.CombinedOutput(); err != nil {
		return errors.Join(context.Cause(ctx), fmt.Errorf("initdb: %w\n%s", err, bytes.TrimSpace(out)), os.RemoveAll(made))
	}
	return nil
}

// stopLeftover stops the server that runs on the data of the locked folder. The process that started it was killed,
// since it would hold the lock otherwise.
func (s *Server) stopLeftover(ctx context.Context) error {
	data := s.data()
	pidFile := filepath.Join(data, "postmaster.pid")
	text, _ := os.ReadFile(pidFile)
	first, _, _ := strings.Cut(string(text), "\n")
	pid, _ := strconv.Atoi(strings.TrimSpace(first)) // zero if there is no file
	ctx, cancel := context.WithTimeout(ctx, stopGrace)
	defer cancel()
	for isPostmaster(pid, data) { // it is not our child, so we cannot wait for it
		if err := syscall.Kill(pid, syscall.SIGINT); err != nil && !errors.Is(err, syscall.ESRCH) {
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
