package embeddedpg

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// BusyError says that another program, or another server of this one, uses the folder.
type BusyError struct {
	Dir string
	PID int // of the program that started the server; 0 if it could not be read
}

func (e *BusyError) Error() string {
	by := "another process"
	if e.PID != 0 {
		by = fmt.Sprintf("process %d", e.PID)
	}
	return fmt.Sprintf("an embedded PostgreSQL in %s is run by %s: stop that one, or use another folder (XDG_CACHE_HOME moves the default one)", e.Dir, by)
}

const lockName = "lock"

// lockFolder takes the folder for this process until the file is closed, which the system does for a killed
// process. It returns a *BusyError when the folder is taken.
func lockFolder(dir string) (*os.File, error) {
	f, err := os.OpenFile(filepath.Join(dir, lockName), os.O_RDWR|os.O_CREATE|syscall.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, err
	}
	if err := flock(f, dir); err != nil {
		return nil, err
	}
	pid := fmt.Appendln(nil, os.Getpid())
	_, err = f.WriteAt(pid, 0)
	if err = errors.Join(err, f.Truncate(int64(len(pid)))); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// flock locks an open lock file, or closes it.
func flock(f *os.File, dir string) error {
	err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	if err == nil {
		return nil
	}
	defer f.Close()
	if !errors.Is(err, syscall.EWOULDBLOCK) {
		return fmt.Errorf("lock %s: %w", f.Name(), err)
	}
	text, _ := io.ReadAll(io.LimitReader(f, 32))
	pid, _ := strconv.Atoi(strings.TrimSpace(string(text)))
	return &BusyError{Dir: dir, PID: pid}
}
