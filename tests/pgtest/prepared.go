package pgtest

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"spectral/db"
	"spectral/internal/app"
	"spectral/internal/app/embeddedpg"
	"spectral/internal/core/events/infrastructure/postgres/publish"
)

// keptClusters is how many prepared clusters stay in the cache folder, for checkouts that differ.
const keptClusters = 6

// Prepared calls use with the folder of a prepared, stopped server, for [Copy], and the name of its migrated database.
// Of several test binaries one prepares it, and none removes it while use runs.
func Prepared(ctx context.Context, use func(from, database string) error) (err error) {
	cache, err := embeddedpg.CacheFolder()
	if err != nil {
		return err
	}
	name, err := preparedName(ctx)
	if err != nil {
		return err
	}
	lock, err := os.OpenFile(filepath.Join(cache, "pgtest.lock"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, lock.Close()) }()
	dir := filepath.Join(cache, name)
	for _, how := range []int{syscall.LOCK_SH, syscall.LOCK_EX} {
		if err := flock(ctx, lock, how); err != nil {
			return err
		}
		if _, err := os.Stat(dir); err == nil {
			break
		}
		if how == syscall.LOCK_EX {
			if err := prepare(ctx, cache, dir); err != nil {
				return fmt.Errorf("prepare a cluster: %w", err)
			}
		}
	}
	now := time.Now()
	if err := os.Chtimes(dir, now, now); err != nil {
		return err
	}
	return use(dir, templateName)
}

// preparedName names a cluster by the server's version, the contracts and the migrations.
func preparedName(ctx context.Context) (string, error) {
	version, err := embeddedpg.Version(ctx, config())
	if err != nil {
		return "", err
	}
	contracts, err := app.Contracts()
	if err != nil {
		return "", err
	}
	types, err := publish.EventTypes(contracts)
	if err != nil {
		return "", err
	}
	hash := sha256.New()
	hash.Write(types)
	err = fs.WalkDir(db.Migrations, ".", func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		text, err := fs.ReadFile(db.Migrations, path)
		fmt.Fprintf(hash, "%s %d\n%s", path, len(text), text)
		return err
	})
	return fmt.Sprintf("pgtest-%s-%.6x", version, hash.Sum(nil)), err
}

// prepare builds the cluster beside dir and renames it when it is complete.
func prepare(ctx context.Context, cache, dir string) error {
	temporary := filepath.Join(cache, "pgtest.new")
	if err := os.RemoveAll(temporary); err != nil { // of a killed test binary
		return err
	}
	c := config()
	c.Dir, c.Settings = temporary, maps.Clone(unsafe)
	c.Settings["autovacuum"] = "off" // keeps the template reproducible
	s, err := embeddedpg.Start(ctx, c)
	if err != nil {
		return err
	}
	err = administerAt(ctx, s.URL("postgres"), "create database "+templateName)
	if err == nil {
		err = Migrate(ctx, s.URL(templateName))
	}
	if err := errors.Join(err, s.Stop(ctx)); err != nil {
		return err
	}
	if err := os.Rename(temporary, dir); err != nil {
		return err
	}
	return removeOld(cache)
}

// removeOld removes all but the most recently used clusters.
func removeOld(cache string) error {
	dirs, err := filepath.Glob(filepath.Join(cache, "pgtest-*"))
	if err != nil || len(dirs) <= keptClusters {
		return err
	}
	used := func(dir string) time.Time {
		info, err := os.Stat(dir)
		if err != nil {
			return time.Time{}
		}
		return info.ModTime()
	}
	slices.SortFunc(dirs, func(a, b string) int { return cmp.Or(used(b).Compare(used(a)), cmp.Compare(a, b)) })
	for _, dir := range dirs[keptClusters:] {
		err = errors.Join(err, os.RemoveAll(dir))
	}
	return err
}

// flock waits for the lock of a file. Closing the file releases it.
func flock(ctx context.Context, f *os.File, how int) error {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		err := syscall.Flock(int(f.Fd()), how|syscall.LOCK_NB)
		if !errors.Is(err, syscall.EWOULDBLOCK) {
			return err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("another test binary keeps %s locked: %w", f.Name(), context.Cause(ctx))
		}
	}
}

const temporaryPrefix = "spectral-pg-"

// unsafe are the settings of a server that does not protect its data against a crash.
var unsafe = map[string]string{
	"max_connections": "200", "fsync": "off", "synchronous_commit": "off", "full_page_writes": "off",
}

// StartTemporary starts a server that does not protect its data, in a temporary folder, with a copy of the data of a
// stopped server unless from is empty. stop ends it and removes the folder.
func StartTemporary(ctx context.Context, from, binDir string) (s *embeddedpg.Server, stop func() error, err error) {
	removeLeftovers()
	dir, err := os.MkdirTemp("", temporaryPrefix)
	if err == nil {
		err = os.Chmod(dir, 0o755) //nolint:gosec // the server's own user must enter
	}
	if err == nil && from != "" {
		err = Copy(ctx, from, dir)
	}
	if err == nil {
		s, err = embeddedpg.Start(ctx, embeddedpg.Config{Dir: dir, Settings: unsafe, BinDir: binDir})
	}
	if err != nil {
		return nil, nil, errors.Join(err, os.RemoveAll(dir))
	}
	return s, func() error {
		ctx, cancel := context.WithCancel(context.Background())
		cancel() // the data need not be written
		return errors.Join(s.Stop(ctx), os.RemoveAll(dir))
	}, nil
}

// Copy copies the data of a stopped server into the folder of a new one.
func Copy(ctx context.Context, from, to string) error {
	return exec.CommandContext(ctx, "cp", "-Rp", filepath.Join(from, "data"), filepath.Join(from, "password"), to).Run()
}

// removeLeftovers removes the folders of killed test binaries, whose locks are free. A server ends within a minute when
// its folder is gone. A lock without a number belongs to a server that is just starting.
func removeLeftovers() {
	locks, _ := filepath.Glob(filepath.Join(os.TempDir(), temporaryPrefix+"*", "lock"))
	for _, path := range locks {
		lock, err := os.Open(path)
		if err != nil {
			continue
		}
		if text, _ := io.ReadAll(lock); len(text) > 0 &&
			syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) == nil {
			_ = os.RemoveAll(filepath.Dir(path))
		}
		_ = lock.Close()
	}
}
