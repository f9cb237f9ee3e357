package embeddedpg

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/xi2/xz"
)

const (
	downloadVersion = "17.5.0"
	downloadSite    = "https://repo1.maven.org/maven2" // has the archives of github.com/zonkyio/embedded-postgres-binaries
)

// downloaded returns the programs that an earlier call left in the folder, or fetches them.
func downloaded(ctx context.Context, acct account, folder, site string) (programs, error) {
	dir := filepath.Join(folder, "postgres-"+downloadVersion)
	if _, err := os.Stat(dir); err != nil {
		if err := download(ctx, dir, site); err != nil {
			return programs{}, fmt.Errorf("download PostgreSQL %s: %w", downloadVersion, err)
		}
	}
	return inspect(ctx, acct, filepath.Join(dir, "bin"))
}

// download leaves the programs in dir, complete or not at all.
func download(ctx context.Context, dir, site string) error {
	machine := strings.Replace(runtime.GOARCH, "arm64", "arm64v8", 1)
	if _, err := os.Stat("/etc/alpine-release"); err == nil {
		machine += "-alpine"
	}
	name := fmt.Sprintf("embedded-postgres-binaries-%s-%s", runtime.GOOS, machine)
	url := fmt.Sprintf("%s/io/zonky/test/postgres/%s/%s/%[2]s-%[3]s.jar", site, name, downloadVersion)
	jar, err := get(ctx, url)
	if err != nil {
		return err
	}
	sum, err := get(ctx, url+".sha256")
	if err != nil {
		return err
	}
	if have := fmt.Sprintf("%x", sha256.Sum256(jar)); have != strings.TrimSpace(string(sum)) {
		return fmt.Errorf("%s has checksum %s, not %s", url, have, sum)
	}
	made, err := os.MkdirTemp(filepath.Dir(dir), "download-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(made) // renamed by then, or failed
	if err := errors.Join(os.Chmod(made, 0o755), unpack(jar, made)); err != nil {
		return err
	}
	err = os.Rename(made, dir)
	if errors.Is(err, fs.ErrExist) { // another program was faster
		return nil
	}
	return err
}

func get(ctx context.Context, url string) ([]byte, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s: %s", url, response.Status)
	}
	return io.ReadAll(response.Body)
}

// unpack writes the files of the compressed tar in a jar to dir, for every user to read and run.
func unpack(jar []byte, dir string) error {
	files, err := zip.NewReader(bytes.NewReader(jar), int64(len(jar)))
	if err != nil {
		return err
	}
	names, err := fs.Glob(files, "*.txz")
	if err != nil || len(names) != 1 {
		return fmt.Errorf("the archive has %d compressed tars, want 1: %w", len(names), err)
	}
	packed, err := files.Open(names[0])
	if err != nil {
		return err
	}
	defer packed.Close()
	plain, err := xz.NewReader(packed, 0)
	if err != nil {
		return err
	}
	root, err := os.OpenRoot(dir) // nothing is written elsewhere, whatever the names are
	if err != nil {
		return err
	}
	defer root.Close()
	for reader := tar.NewReader(plain); ; {
		header, err := reader.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if err := unpackFile(root, header, reader); err != nil {
			return err
		}
	}
}

func unpackFile(root *os.Root, header *tar.Header, content io.Reader) error {
	name, mode := filepath.Clean(header.Name), fs.FileMode(0o644)
	if header.Mode&0o100 != 0 {
		mode = 0o755
	}
	dir := filepath.Dir(name)
	if header.Typeflag == tar.TypeDir {
		dir = name
	}
	err := errors.Join(root.MkdirAll(dir, 0o755), root.Chmod(dir, 0o755)) // whatever the umask is
	if err != nil || header.Typeflag == tar.TypeDir {
		return err
	}
	if header.Typeflag == tar.TypeSymlink {
		return root.Symlink(header.Linkname, name)
	}
	f, err := root.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, mode)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, content)
	return errors.Join(err, f.Chmod(mode), f.Close())
}
