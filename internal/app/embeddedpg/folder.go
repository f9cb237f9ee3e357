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

// CacheFolder creates and returns the folder where the program keeps its files: spectral in the user's cache folder.
// Root's is below /var/cache/spectral, since PostgreSQL's user cannot enter most homes, and has another name for each
// home. Without a home it is in the temporary folder.
func CacheFolder() (string, error) {
	cache, err := os.UserCacheDir()
	dir := filepath.Join(cache, "spectral")
	switch {
	case os.Geteuid() == 0:
		if err := openFolder("/var/cache/spectral"); err != nil {
			return "", err
		}
		dir = fmt.Sprintf("/var/cache/spectral/%.6x", sha256.Sum256([]byte(cache)))
	case err != nil:
		dir = filepath.Join(os.TempDir(), fmt.Sprintf("spectral-%d", os.Geteuid()))
	}
	if err := openFolder(dir); err != nil {
		return "", err
	}
	info, err := os.Lstat(dir)
	if err != nil {
		return "", err
	}
	if !info.IsDir() || info.Mode().Perm()&0o022 != 0 || info.Sys().(*syscall.Stat_t).Uid != uint32(os.Geteuid()) {
		return "", fmt.Errorf("%s is not private to this user: remove it, or set XDG_CACHE_HOME", dir)
	}
	return dir, nil
}

// openFolder creates a folder that every user can enter whatever the umask is.
func openFolder(dir string) error {
	if info, err := os.Stat(dir); err == nil && info.IsDir() {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return err
	}
	if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, os.ErrExist) {
		return err
	}
	return os.Chmod(dir, 0o755)
}

// lockFolder takes the folder for this process until the file is closed, which the system does for a killed process.
// The error is EWOULDBLOCK when another process, or another server of this one, has it.
func lockFolder(dir string) (*os.File, error) {
	f, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_RDWR|os.O_CREATE|syscall.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		pid, _ := io.ReadAll(io.LimitReader(f, 32))
		return nil, errors.Join(fmt.Errorf("an embedded PostgreSQL in %s is run by process %s: stop that one, or use another folder "+
			"(XDG_CACHE_HOME moves the default one): %w", dir, pid, err), f.Close())
	}
	if err := errors.Join(f.Truncate(0), write(f, strconv.Itoa(os.Getpid()))); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

func write(f *os.File, text string) error {
	_, err := f.WriteAt([]byte(text), 0)
	return err
}

const ephemeralPrefix = "spectral-pg-"

// newEphemeral creates and locks a temporary folder.
func newEphemeral(temp string) (dir string, lock *os.File, err error) {
	for {
		if dir, err = os.MkdirTemp(temp, ephemeralPrefix); err != nil {
			return "", nil, err
		}
		if err = os.Chmod(dir, 0o711); err == nil {
			lock, err = lockFolder(dir)
		}
		if !errors.Is(err, syscall.EWOULDBLOCK) && !errors.Is(err, os.ErrNotExist) { // a sweep was faster, and removes it
			return dir, lock, err
		}
	}
}

// sweep removes the ephemeral servers of this user whose program is gone. What cannot be removed is left for later.
func sweep(ctx context.Context, temp string) {
	locks, _ := filepath.Glob(filepath.Join(temp, ephemeralPrefix+"*", "lock"))
	for _, path := range locks {
		dir := filepath.Dir(path)
		info, err := os.Lstat(dir)
		if err != nil || !info.IsDir() || info.Sys().(*syscall.Stat_t).Uid != uint32(os.Geteuid()) {
			continue
		}
		lock, err := lockFolder(dir)
		if err != nil {
			continue
		}
		if stopLeftover(ctx, dir, syscall.SIGQUIT) == nil {
			_ = os.RemoveAll(dir)
		}
		_ = lock.Close()
	}
}
