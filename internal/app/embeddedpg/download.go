package embeddedpg

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"

	embeddedpostgres "github.com/fergusstrange/embedded-postgres"
)

const downloadVersion = embeddedpostgres.V17

// downloaded returns the programs that an earlier call left in the cache folder, or downloads them. It fails for root:
// the library can only download by running a server, which PostgreSQL refuses to root.
func downloaded(ctx context.Context, acct account, log *slog.Logger) (programs, error) {
	folder, err := CacheFolder()
	if err != nil {
		return programs{}, err
	}
	dir := filepath.Join(folder, "postgres-"+string(downloadVersion))
	if _, err := os.Stat(dir); err != nil {
		if acct.cred != nil {
			return programs{}, errors.New("PostgreSQL is not downloaded for root")
		}
		log.InfoContext(ctx, "no suitable PostgreSQL is installed, so one is downloaded",
			logVersion, string(downloadVersion), logFolder, dir)
		done := make(chan error, 2)
		go func() { done <- download(dir, "") }() // the library takes no context: it goes on until the process ends
		defer context.AfterFunc(ctx, func() { done <- context.Cause(ctx) })()
		if err := <-done; err != nil {
			return programs{}, fmt.Errorf("download PostgreSQL %s: %w", downloadVersion, err)
		}
	}
	return inspect(ctx, acct, filepath.Join(dir, "bin"))
}

// download leaves the programs in dir, complete or not at all. To do so it starts and stops a server. An empty site is
// the library's.
func download(dir, site string) error {
	work, err := os.MkdirTemp(filepath.Dir(dir), "download-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(work) // best effort: the rest is not used
	port, err := freePort()
	if err != nil {
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
	if err := server.Stop(); err != nil {
		return err
	}
	if err := os.Rename(filepath.Join(work, "programs"), dir); !errors.Is(err, fs.ErrExist) {
		return err
	}
	return nil // another process was faster
}
