package embeddedpg

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

// programFolder creates and returns the first of the folders that the account can use.
func programFolder(acct account, folders []string) (string, error) {
	var tried []error
	for _, dir := range folders {
		err := checkPrivate(dir)
		if err == nil {
			err = makeFolder(dir, acct)
		}
		if err == nil {
			return dir, nil
		}
		tried = append(tried, err)
	}
	return "", fmt.Errorf("no folder for the embedded PostgreSQL (set HOME, or name a folder): %w", errors.Join(tried...))
}

// programFolders lists where the program may keep its files: the cache folder (may be empty) and, since root's
// server cannot enter most homes and a service may have none, two places outside of it.
func programFolders(cache, temp string) []string {
	id := fmt.Sprintf("%x", sha256.Sum256(fmt.Appendf(nil, "%d %s", os.Geteuid(), cache)))[:12]
	var folders []string
	if cache != "" {
		folders = append(folders, filepath.Join(cache, "spectral"))
	}
	return append(folders, filepath.Join("/var/cache/spectral", id), filepath.Join(temp, "spectral-"+id))
}

// checkPrivate refuses a folder that is, or would be made, in another user's place: under sudo HOME may be that of
// the user who called it, and in the temporary folder anybody may have made one with our name.
func checkPrivate(dir string) error {
	parent := existing(dir)
	info, err := os.Lstat(parent)
	if err != nil {
		return err
	}
	ours := info.Sys().(*syscall.Stat_t).Uid == uint32(os.Geteuid())
	switch {
	case parent != dir && (ours || info.Mode()&fs.ModeSticky != 0):
		return nil
	case parent == dir && ours && info.IsDir() && info.Mode().Perm()&0o022 == 0:
		return nil
	}
	return fmt.Errorf("%s is not private to this user", parent)
}

// makeFolder creates dir if needed, unless the account cannot enter what is there already.
func makeFolder(dir string, acct account) error {
	if err := acct.enter(existing(dir)); err != nil {
		return err
	}
	return makeOpen(dir)
}

// existing is the nearest parent of dir, or dir itself, that exists.
func existing(dir string) string {
	for {
		if _, err := os.Lstat(dir); err == nil || dir == filepath.Dir(dir) {
			return dir
		}
		dir = filepath.Dir(dir)
	}
}

// makeOpen is os.MkdirAll with modes that let the account through whatever the umask is.
func makeOpen(dir string) error {
	if info, err := os.Stat(dir); err == nil && info.IsDir() {
		return nil
	}
	if err := makeOpen(filepath.Dir(dir)); err != nil {
		return err
	}
	err := os.Mkdir(dir, 0o755)
	if errors.Is(err, fs.ErrExist) { // made by another program meanwhile, or not a folder
		if info, statErr := os.Stat(dir); statErr == nil && info.IsDir() {
			return nil
		}
	}
	if err != nil {
		return err
	}
	return os.Chmod(dir, 0o755)
}

const (
	ephemeralPrefix = "spectral-pg-"
	unlockedPrefix  = "spectral-new-" // not yet locked, so not yet under the name that sweep looks for
)

// newEphemeral creates and locks a temporary folder. It appears under its final name already locked, so that sweep
// never takes it for a leftover.
func newEphemeral(temp string, acct account) (string, *os.File, error) {
	if err := acct.enter(temp); err != nil {
		return "", nil, err
	}
	made, err := os.MkdirTemp(temp, unlockedPrefix)
	if err != nil {
		return "", nil, err
	}
	dir := filepath.Join(temp, ephemeralPrefix+strings.TrimPrefix(filepath.Base(made), unlockedPrefix))
	lock, err := lockFolder(made)
	if err == nil {
		if err = errors.Join(os.Chmod(made, 0o711), os.Rename(made, dir)); err == nil {
			return dir, lock, nil
		}
		lock.Close()
	}
	return "", nil, errors.Join(err, os.RemoveAll(made))
}
