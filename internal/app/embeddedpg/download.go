package embeddedpg

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"

	embeddedpostgres "github.com/fergusstrange/embedded-postgres"
)

const (
	downloadVersion = embeddedpostgres.V17
	downloadSite    = "https://repo1.maven.org/maven2"
)

// download returns the programs that an earlier call left in the folder, or fetches them.
//
// The library has no call that only fetches. Its Start fetches, and then runs pg_ctl on what looks like a cluster of
// that version but is not one, so that no server comes up; that it fails there, and not earlier, means that the
// programs are complete. It knows no context: when ctx ends first, its goroutine ends with the request, or with the program.
func download(ctx context.Context, acct account, folder, site string) (binaries, error) {
	dir := filepath.Join(folder, "postgres-"+string(downloadVersion))
	if _, err := os.Stat(dir); err == nil {
		return inspect(ctx, acct, filepath.Join(dir, "bin"))
	}
	work, err := os.MkdirTemp(folder, "download-")
	if err != nil {
		return binaries{}, err
	}
	fetched := make(chan error, 1)
	go func() {
		err := fetch(work, dir, site)
		fetched <- errors.Join(err, os.RemoveAll(work))
	}()
	select {
	case err = <-fetched:
	case <-ctx.Done():
		err = context.Cause(ctx)
	}
	if err != nil {
		return binaries{}, fmt.Errorf("download PostgreSQL %s: %w", downloadVersion, err)
	}
	return inspect(ctx, acct, filepath.Join(dir, "bin"))
}

// fetch leaves the programs in dir, complete or not at all.
func fetch(work, dir, site string) error {
	data, unpacked := filepath.Join(work, "data"), filepath.Join(work, "unpacked")
	for _, d := range []string{data, unpacked} {
		if err := makeOpen(d); err != nil {
			return err
		}
	}
	if err := os.WriteFile(filepath.Join(data, "PG_VERSION"), []byte(downloadVersion[:2]), 0o600); err != nil {
		return err
	}
	port, err := freePort()
	if err != nil {
		return err
	}
	startErr := embeddedpostgres.NewDatabase(embeddedpostgres.DefaultConfig().
		Version(downloadVersion).
		BinaryRepositoryURL(site).
		Port(uint32(port)).
		CachePath(filepath.Join(work, "cache")).
		RuntimePath(filepath.Join(work, "run")).
		DataPath(data).
		BinariesPath(unpacked).
		Logger(io.Discard)).Start()
	if startErr == nil || !strings.HasPrefix(startErr.Error(), "could not start postgres") {
		return fmt.Errorf("fetch and unpack: %w", startErr)
	}
	if err := openUp(unpacked); err != nil {
		return err
	}
	err = os.Rename(unpacked, dir)
	if errors.Is(err, fs.ErrExist) { // another program was faster
		return nil
	}
	return err
}

// openUp lets other users read and run the files: the archive allows it, but the umask may have taken it away.
func openUp(dir string) error {
	return filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.Type()&fs.ModeSymlink != 0 {
			return err
		}
		info, err := e.Info()
		if err != nil {
			return err
		}
		mode := info.Mode().Perm() | 0o044
		if mode&0o100 != 0 {
			mode |= 0o011
		}
		return os.Chmod(path, mode)
	})
}

// freePort asks the system for a port that nobody listens on.
func freePort() (int, error) {
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	return l.Addr().(*net.TCPAddr).Port, l.Close()
}
