package embeddedpg

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// cluster is one major version's part of a locked folder.
type cluster struct {
	root string // the locked folder
	bin  binaries
	acct account
}

func (c cluster) dir() string          { return filepath.Join(c.root, strconv.Itoa(c.bin.major)) }
func (c cluster) data() string         { return filepath.Join(c.dir(), "data") }
func (c cluster) logFile() string      { return filepath.Join(c.dir(), "server.log") }
func (c cluster) passwordFile() string { return filepath.Join(c.dir(), "password") }

// halfMade are the names of clusters that a crashed program was making or deleting.
var halfMade = regexp.MustCompile(`^\d+\.(new|old)-`)

// prepare makes the cluster unless there is one, and returns the superuser's password.
func (c cluster) prepare(ctx context.Context, fresh, sync bool, from string) (password string, err error) {
	entries, err := os.ReadDir(c.root)
	if err != nil {
		return "", err
	}
	for _, e := range entries {
		if halfMade.MatchString(e.Name()) {
			_ = os.RemoveAll(filepath.Join(c.root, e.Name())) // if not now, then at another start: new ones have new names
		}
	}
	if fresh {
		if err := c.discard(); err != nil {
			return "", err
		}
	}
	if _, err := os.Lstat(c.dir()); errors.Is(err, fs.ErrNotExist) {
		if err := c.create(ctx, sync, from); err != nil {
			return "", err
		}
	}
	if err := c.checkOurs(); err != nil {
		return "", err
	}
	format, err := os.ReadFile(filepath.Join(c.data(), "PG_VERSION"))
	if err == nil && strings.TrimSpace(string(format)) != strconv.Itoa(c.bin.major) {
		err = fmt.Errorf("its format is %q", strings.TrimSpace(string(format)))
	}
	if err != nil {
		return "", fmt.Errorf("the cluster in %s is damaged; %s: %w", c.dir(), freshAdvice, err)
	}
	text, err := os.ReadFile(c.passwordFile())
	return string(text), err
}

const freshAdvice = "if its data may go, start with the fresh option, which makes a new cluster"

// checkOurs keeps us from using, or deleting, somebody else's folder that happens to be named after a version.
func (c cluster) checkOurs() error {
	if _, err := os.Lstat(c.passwordFile()); err != nil {
		return fmt.Errorf("%s was not made by this program; move it away, or use another folder: %w", c.dir(), err)
	}
	return nil
}

// discard deletes the cluster. It is renamed first, so that a crash never leaves half of one under its name.
func (c cluster) discard() error {
	if _, err := os.Lstat(c.dir()); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err := c.checkOurs(); err != nil {
		return err
	}
	old, err := os.MkdirTemp(c.root, filepath.Base(c.dir())+".old-")
	if err != nil {
		return err
	}
	if err := os.Rename(c.dir(), filepath.Join(old, "cluster")); err != nil {
		return err
	}
	return os.RemoveAll(old)
}

// create makes the cluster in a folder beside its own, and renames that when it is complete. Of the files only the data
// directory and the password belong to the server's account, so that the account cannot lure a root program into
// writing elsewhere.
func (c cluster) create(ctx context.Context, sync bool, from string) error {
	made, err := os.MkdirTemp(c.root, filepath.Base(c.dir())+".new-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(made) // renamed by then, or failed
	if err := os.Chmod(made, 0o711); err != nil {
		return err
	}
	if from == "" {
		err = c.initialise(ctx, made, sync)
	} else {
		err = c.copyFiles(filepath.Join(from, filepath.Base(c.dir())), made)
	}
	if err != nil {
		return err
	}
	return os.Rename(made, c.dir())
}

// copyFiles copies the data directory and the password of a stopped server.
func (c cluster) copyFiles(from, to string) error {
	for _, top := range []string{"data", "password"} {
		err := filepath.WalkDir(filepath.Join(from, top), func(path string, e fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			target := filepath.Join(to, strings.TrimPrefix(path, from))
			if e.IsDir() {
				err = os.Mkdir(target, 0o700)
			} else {
				err = copyFile(path, target)
			}
			return errors.Join(err, c.acct.own(target))
		})
		if err != nil {
			return err
		}
	}
	return nil
}

func copyFile(from, to string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in) // by the system, which shares the blocks where it can
	return errors.Join(err, out.Close())
}

// initialise runs initdb.
func (c cluster) initialise(ctx context.Context, made string, sync bool) error {
	data, password := filepath.Join(made, "data"), filepath.Join(made, "password")
	if err := errors.Join(
		os.Mkdir(data, 0o700),
		os.WriteFile(password, []byte(rand.Text()), 0o600),
		c.acct.own(data),
		c.acct.own(password),
	); err != nil {
		return err
	}
	args := []string{
		"--pgdata=" + data, "--username=postgres", "--pwfile=" + password, "--auth=scram-sha-256", "--encoding=UTF8", "--no-instructions",
	}
	if !sync {
		args = append(args, "--no-sync", "--wal-segsize=1")
	}
	for _, locale := range []string{"C.UTF-8", "C"} { // not every system has the first
		out, err := c.runInitdb(ctx, made, append(args, "--locale="+locale))
		if !strings.Contains(out, "invalid locale name") {
			return err
		}
	}
	return errors.New("initdb knows no locale C")
}

func (c cluster) runInitdb(ctx context.Context, dir string, args []string) (output string, err error) {
	out, err := os.OpenFile(filepath.Join(dir, "initdb.log"), os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return "", err
	}
	defer out.Close()
	cmd := c.acct.command(c.bin.path("initdb"), args...)
	cmd.Stdout, cmd.Stderr = out, out
	p, err := launch(cmd, syscall.SIGKILL)
	if err != nil {
		return "", err
	}
	select {
	case <-p.exited:
	case <-ctx.Done():
		p.kill()
		return "", context.Cause(ctx)
	}
	output = tail(out.Name())
	if p.err != nil {
		return output, fmt.Errorf("initdb: %w\n%s", p.err, output)
	}
	return output, nil
}

// openLog empties the server's log.
func (c cluster) openLog() (*os.File, error) {
	return os.OpenFile(c.logFile(), os.O_CREATE|os.O_TRUNC|os.O_APPEND|os.O_WRONLY, 0o600)
}

// tail is the end of a text file, or what keeps us from reading it.
func tail(path string) string {
	const most = 2000 // bytes
	f, err := os.Open(path)
	if err != nil {
		return err.Error()
	}
	defer f.Close()
	if info, err := f.Stat(); err == nil && info.Size() > most {
		_, _ = f.Seek(-most, io.SeekEnd)
	}
	text, err := io.ReadAll(f)
	if err != nil {
		return err.Error()
	}
	return string(bytes.TrimSpace(text))
}

// stopLeftovers ends the servers that run on a locked folder, of any major version: the program that started them is
// gone, or it would hold the lock. It tries the signals in turn.
func stopLeftovers(ctx context.Context, root string, log *slog.Logger, signals ...syscall.Signal) error {
	entries, err := os.ReadDir(root)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if err := stopLeftover(ctx, filepath.Join(root, e.Name(), "data"), log, signals); err != nil {
			return err
		}
	}
	return nil
}

func stopLeftover(ctx context.Context, data string, log *slog.Logger, signals []syscall.Signal) error {
	pidFile := filepath.Join(data, "postmaster.pid")
	text, err := os.ReadFile(pidFile)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) {
		return nil
	}
	if err != nil {
		return err
	}
	first, _, _ := strings.Cut(string(text), "\n")
	if pid, err := strconv.Atoi(strings.TrimSpace(first)); err == nil && pid > 0 {
		for _, signal := range signals {
			if err := stopPostmaster(ctx, pid, data, log, signal); err != nil {
				return err
			}
		}
		if isPostmaster(pid, data) {
			return fmt.Errorf("a server of a crashed program (process %d) still runs on %s and does not stop: end it, or use another folder", pid, data)
		}
	}
	// The number in a file that outlived its server may be another process's by now; PostgreSQL would then refuse to start.
	if err := os.Remove(pidFile); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// stopPostmaster signals the server, if it is one, and waits a while for its end.
func stopPostmaster(ctx context.Context, pid int, data string, log *slog.Logger, signal syscall.Signal) error {
	p, err := os.FindProcess(pid) // before the check: where the system has process handles, this one stays the same process
	if err != nil {
		return err
	}
	defer func() { _ = p.Release() }()
	if !isPostmaster(pid, data) {
		return nil
	}
	log.WarnContext(ctx, "stopping the server of a crashed program", logPID, pid, logData, data)
	if err := p.Signal(signal); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	// It is not our child, so there is nothing to wait on but its disappearance.
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	grace := time.After(fastGrace)
	for isPostmaster(pid, data) {
		select {
		case <-tick.C:
		case <-grace:
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}

// sweep removes the ephemeral servers of this user whose program is gone. What cannot be removed is left for later.
func sweep(ctx context.Context, temp string, log *slog.Logger) {
	entries, _ := os.ReadDir(temp)
	for _, e := range entries {
		if !e.IsDir() || !strings.HasPrefix(e.Name(), ephemeralPrefix) {
			continue
		}
		dir := filepath.Join(temp, e.Name())
		info, err := e.Info()
		if err != nil || info.Sys().(*syscall.Stat_t).Uid != uint32(os.Geteuid()) {
			continue
		}
		if err := removeLeftover(ctx, dir, log); err != nil {
			log.WarnContext(ctx, "cannot remove a leftover server", logFolder, dir, logError, err)
		}
	}
}

func removeLeftover(ctx context.Context, dir string, log *slog.Logger) error {
	lock, err := os.OpenFile(filepath.Join(dir, lockName), os.O_RDWR|syscall.O_NOFOLLOW, 0)
	switch {
	case errors.Is(err, fs.ErrNotExist): // somebody's removal got that far
	case err != nil:
		return err
	default:
		if err := flock(lock, dir); err != nil {
			if busy := (*BusyError)(nil); errors.As(err, &busy) {
				return nil // in use
			}
			return err
		}
		defer lock.Close()
	}
	if err := stopLeftovers(ctx, dir, log, syscall.SIGQUIT); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return os.RemoveAll(dir)
}
