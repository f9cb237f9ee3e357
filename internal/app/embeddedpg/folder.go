package embeddedpg

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
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
		info, err := os.Lstat(dir)
		file, fileErr := os.Lstat(path)
		if err != nil || fileErr != nil || file.Size() == 0 || !info.IsDir() ||
			info.Sys().(*syscall.Stat_t).Uid != uint32(os.Geteuid()) {
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
