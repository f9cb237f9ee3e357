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

	embeddedpostgres "github.com/fergusstrange/embedded-postgres"
)

const downloadVersion = embeddedpostgres.V17

// downloaded returns the programs that an earlier call left in the folder, or fetches them from the site, empty for the
// library's. The library cannot fetch without running a server, which PostgreSQL refuses to root.
func downloaded(ctx context.Context, acct account, folder, site string) (programs, error) {
	dir := filepath.Join(folder, "postgres-"+string(downloadVersion))
	if _, err := os.Stat(dir); err != nil {
		if acct.cred != nil {
			return programs{}, errors.New("it is not downloaded for root")
		}
		if err := download(ctx, dir, site); err != nil {
			return programs{}, fmt.Errorf("download PostgreSQL %s: %w", downloadVersion, err)
		}
	}
	return inspect(ctx, acct, filepath.Join(dir, "bin"))
}

// download leaves the programs in dir, complete or not at all. The library knows no context: when ctx ends first, the download
// goes on until the program ends.
func download(ctx context.Context, dir, site string) error {
	work, err := os.MkdirTemp(filepath.Dir(dir), "download-")
	if err != nil {
		return err
	}
	done := make(chan error, 1)
	go func() { done <- errors.Join(startOnce(work, site), os.RemoveAll(filepath.Join(work, "data"))) }()
	select {
	case err = <-done:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	defer os.RemoveAll(work) // best effort: what is left of it is not used
	if err != nil {
		return err
	}
	err = os.Rename(filepath.Join(work, "programs"), dir)
	if errors.Is(err, fs.ErrExist) { // another program was faster
		return nil
	}
	return err
}

// startOnce has the library fetch the programs, and starts and stops a server with them.
func startOnce(work, site string) error {
	l, err := net.Listen("tcp4", "127.0.0.1:0") // for a free port
	if err != nil {
		return err
	}
	port := l.Addr().(*net.TCPAddr).Port
	if err := l.Close(); err != nil {
		return err
	}
	config := embeddedpostgres.DefaultConfig().Version(downloadVersion).Port(uint32(port)).Logger(io.Discard).
		CachePath(filepath.Join(work, "cache")).RuntimePath(filepath.Join(work, "run")).
		DataPath(filepath.Join(work, "data")).BinariesPath(filepath.Join(work, "programs"))
	if site != "" {
		config = config.BinaryRepositoryURL(site)
	}
	server := embeddedpostgres.NewDatabase(config)
	if err := server.Start(); err != nil {
		return err
	}
	return server.Stop()
}
