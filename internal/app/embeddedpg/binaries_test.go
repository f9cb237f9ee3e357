package embeddedpg

import (
	"archive/zip"
	"bytes"
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// fakePrograms makes a folder whose programs print a version, and returns it.
func fakePrograms(t *testing.T, version string, programs ...string) string {
	t.Helper()
	dir := openFolderFor(t, nil)
	for _, p := range programs {
		script(t, filepath.Join(dir, p), "echo '"+p+" (PostgreSQL) "+version+"'")
	}
	return dir
}

func script(t *testing.T, path, text string) {
	t.Helper()
	writeProgram(t, path, []byte("#!/bin/sh\n"+text+"\n"))
}

func TestNewestSuitableVersionIsChosen(t *testing.T) {
	t.Parallel()
	fake := func(version string) string { return fakePrograms(t, version, "initdb", "postgres") }
	tooOld, fifteen, sixteenNine, sixteenTen := fake("14.11"), fake("15.3"), fake("16.9"), fake("16.10 (Debian 16.10-1)")
	beta, noInitdb := fake("18beta1"), fakePrograms(t, "19.1", "postgres")
	missing := filepath.Join(fifteen, "missing")

	for name, tc := range map[string]struct {
		dirs                 []string
		want, version, wrong string
	}{
		"newest":                    {dirs: []string{fifteen, sixteenTen, tooOld, sixteenNine}, want: sixteenTen, version: "16.10"},
		"newest, other order":       {dirs: []string{sixteenNine, sixteenTen, fifteen}, want: sixteenTen, version: "16.10"},
		"beta":                      {dirs: []string{sixteenTen, beta}, want: beta, version: "18beta1"},
		"first among equals":        {dirs: []string{fifteen, fake("15.3")}, want: fifteen, version: "15.3"},
		"incomplete is passed over": {dirs: []string{noInitdb, missing, fifteen}, want: fifteen, version: "15.3"},
		"too old":                   {dirs: []string{tooOld}, wrong: "version 14.11, which is too old"},
		"nothing":                   {wrong: "no PostgreSQL 15 or newer is installed"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := newest(deadline(t), testAccount(t), tc.dirs)
			if tc.wrong != "" {
				if err == nil {
					t.Fatalf("found %+v", got)
				}
				mustContain(t, err.Error(), tc.wrong)
				return
			}
			check(t, err)
			if got.dir != tc.want || got.version != tc.version {
				t.Errorf("got %+v, want version %s in %s", got, tc.version, tc.want)
			}
		})
	}
}

func TestOverrideWins(t *testing.T) {
	t.Parallel()
	dir := fakePrograms(t, "15.0", "initdb", "postgres") // older than, or as old as, what is installed
	got, err := findBinaries(deadline(t), Config{BinDir: dir}, testAccount(t))
	check(t, err)
	if got.dir != dir {
		t.Errorf("got %+v", got)
	}
}

func TestBadOverrideNamesTheVariable(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct{ dir, want string }{
		"missing":    {filepath.Join(openFolderFor(t, nil), "none"), "no such file"},
		"incomplete": {fakePrograms(t, "16.1", "postgres"), "initdb"},
		"too old":    {fakePrograms(t, "13.2", "initdb", "postgres"), "version 13.2, which is too old"},
		"not ours":   {fakePrograms(t, "is what this is not", "initdb", "postgres"), "does not print a version"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := Start(deadline(t), Config{Ephemeral: true, BinDir: tc.dir})
			if err == nil {
				t.Fatal("accepted")
			}
			mustContain(t, err.Error(), "SPECTRAL_POSTGRES_BIN")
			mustContain(t, err.Error(), tc.want)
		})
	}
}

func TestProgramsClosedToTheServersUserAreNotChosen(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("only root's server runs as another user")
	}
	dir := fakePrograms(t, "17.1", "initdb", "postgres")
	check(t, os.Chmod(dir, 0o700))
	if got, err := newest(deadline(t), testAccount(t), []string{dir}); err == nil {
		t.Errorf("chose %+v", got)
	}
}

// archiveSite serves testdata/programs.txz the way the library expects it. The archive holds bin/initdb and
// bin/postgres, which print version 17.5, and bin/pg_ctl, which fails.
func archiveSite(t *testing.T) (site *httptest.Server, requests *int) {
	t.Helper()
	programs, err := os.ReadFile("testdata/programs.txz")
	check(t, err)
	var jar bytes.Buffer
	w := zip.NewWriter(&jar)
	f, err := w.Create("postgres.txz")
	check(t, err)
	_, err = f.Write(programs)
	check(t, err)
	check(t, w.Close())
	requests = new(int)
	site = httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		*requests++
		if filepath.Ext(r.URL.Path) != ".jar" {
			http.NotFound(rw, r)
			return
		}
		_, _ = rw.Write(jar.Bytes())
	}))
	t.Cleanup(site.Close)
	return site, requests
}

func TestDownloadedProgramsAreKept(t *testing.T) {
	t.Parallel()
	site, requests := archiveSite(t)
	folder := openFolderFor(t, nil)
	for range 2 {
		got, err := download(deadline(t), testAccount(t), folder, site.URL)
		check(t, err)
		if got.major != 17 {
			t.Errorf("got %+v", got)
		}
	}
	site.Close() // and so waits for its requests
	if *requests != 2 {
		t.Errorf("%d requests, want one for the archive and one for its checksum", *requests)
	}
	entries, err := os.ReadDir(folder)
	check(t, err)
	if len(entries) != 1 {
		t.Errorf("left behind: %v", entries)
	}
}

func TestFailedDownloadLeavesNothing(t *testing.T) {
	t.Parallel()
	site := httptest.NewServer(http.NotFoundHandler())
	t.Cleanup(site.Close)
	folder := openFolderFor(t, nil)
	_, err := download(deadline(t), testAccount(t), folder, site.URL)
	if err == nil {
		t.Fatal("succeeded")
	}
	mustContain(t, err.Error(), "no version found")
	entries, err := os.ReadDir(folder)
	check(t, err)
	if len(entries) != 0 {
		t.Errorf("left behind: %v", entries)
	}
}

func TestDownloadEndsWithItsContext(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(deadline(t))
	release := make(chan struct{})
	site := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		cancel()
		select {
		case <-release:
		case <-time.After(30 * time.Second): // the download did not end
		}
	}))
	folder := openFolderFor(t, nil)
	_, err := download(ctx, testAccount(t), folder, site.URL)
	close(release)
	site.Close()
	if !errors.Is(err, context.Canceled) {
		t.Fatalf("got %v", err)
	}
	eventually(t, "the download's folder is removed", func() bool {
		entries, err := os.ReadDir(folder)
		return err == nil && len(entries) == 0
	})
}
