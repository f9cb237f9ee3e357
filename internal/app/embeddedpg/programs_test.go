package embeddedpg

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	embeddedpostgres "github.com/fergusstrange/embedded-postgres"
)

// fakePrograms makes a folder whose programs print a version.
func fakePrograms(t *testing.T, version string, programs ...string) string {
	t.Helper()
	dir := folder(t)
	for _, p := range programs {
		script(t, filepath.Join(dir, p), "echo '"+p+" (PostgreSQL) "+version+"'")
	}
	return dir
}

// script writes a program. It prevents forks until then: a child would inherit the file open for writing, and the
// system refuses to run such a file.
func script(t *testing.T, path, text string) {
	t.Helper()
	syscall.ForkLock.RLock()
	err := os.WriteFile(path, []byte("#!/bin/sh\n"+text+"\n"), 0o755)
	syscall.ForkLock.RUnlock()
	check(t, err)
	check(t, os.Chmod(path, 0o755))
}

func TestNewestSuitableVersionIsChosen(t *testing.T) {
	t.Parallel()
	fake := func(version string) string { return fakePrograms(t, version, "initdb", "postgres") }
	tooOld, fifteen, sixteenNine, sixteenTen := fake("14.11"), fake("15.3"), fake("16.9"), fake("16.10 (Debian 16.10-1)")
	beta, noInitdb, closed := fake("18beta1"), fakePrograms(t, "19.1", "postgres"), fake("19.1")
	if os.Geteuid() == 0 { // root could run them, but not its server's user
		check(t, os.Chmod(closed, 0o700))
	} else {
		closed = noInitdb
	}
	for want, dirs := range map[string][]string{
		sixteenTen: {fifteen, sixteenTen, tooOld, sixteenNine},
		beta:       {sixteenTen, beta},
		fifteen:    {noInitdb, closed, "/missing", fifteen, fake("15.3")}, // the first of equal ones
	} {
		if got, err := newest(deadline(t), testAccount(t), dirs); err != nil || got.dir != want {
			t.Errorf("got %+v, %v, want that in %s", got, err, want)
		}
	}
	_, err := newest(deadline(t), testAccount(t), []string{tooOld})
	mustFail(t, err, "version 14.11, which is too old")
	mustFail(t, err, "no PostgreSQL 15 or newer was found")
}

func TestAUserWithoutAnEntryIsRefused(t *testing.T) {
	t.Parallel()
	_, err := serverAccount(t.Context(), 54321)
	mustFail(t, err, "user 54321, which has no entry in /etc/passwd")
}

// A container may run as root without the capabilities of root.
func TestRootThatMayNotChangeItsUserIsRefused(t *testing.T) {
	t.Parallel()
	setpriv, err := exec.LookPath("setpriv")
	if err != nil || os.Geteuid() != 0 {
		t.Skip("only root with setpriv (util-linux) can give up capabilities")
	}
	binary, err := os.Executable()
	check(t, err)
	child := exec.CommandContext(deadline(t), setpriv, "--bounding-set=-setuid,-setgid", "--inh-caps=-all", binary)
	child.Env = []string{childVariable + "=" + folder(t), "PATH=" + os.Getenv("PATH")}
	out, err := child.CombinedOutput()
	if err == nil || string(out) != "start embedded PostgreSQL: "+errNotAllowed.Error() {
		t.Errorf("%v: %s", err, out)
	}
}

func TestFoldersOfOthersAreRefused(t *testing.T) {
	t.Parallel()
	shared, link := filepath.Join(folder(t), "shared"), filepath.Join(folder(t), "link")
	check(t, errors.Join(makeFolder(shared), makeFolder(shared), os.Chmod(shared, 0o777), os.Symlink(folder(t), link)))
	for dir, want := range map[string]string{shared: "other users may write", link: "is a link"} {
		_, err := Start(deadline(t), Config{Dir: dir})
		mustFail(t, err, want)
	}
}

func TestBadOverrideNamesTheVariable(t *testing.T) {
	t.Parallel()
	for _, tc := range map[string]struct{ dir, want string }{
		"missing":    {filepath.Join(folder(t), "none"), "no such file"},
		"incomplete": {fakePrograms(t, "16.1", "postgres"), "initdb"},
		"not ours":   {fakePrograms(t, "unknown", "initdb", "postgres"), "does not print a version"},
	} {
		_, err := Start(deadline(t), Config{Dir: folder(t), BinDir: tc.dir})
		mustFail(t, err, "SPECTRAL_POSTGRES_BIN")
		mustFail(t, err, tc.want)
	}
	dir := fakePrograms(t, "15.0", "initdb", "postgres") // as old as what is installed, or older
	var s Server
	if err := s.findPrograms(deadline(t), Config{BinDir: dir}); err != nil || s.programs.dir != dir {
		t.Errorf("got %+v, %v", s.programs, err)
	}
}

func TestFailedDownloadLeavesNothing(t *testing.T) {
	t.Parallel()
	cache, missing := folder(t), httptest.NewServer(http.NotFoundHandler())
	t.Cleanup(missing.Close)
	config := embeddedpostgres.DefaultConfig().BinaryRepositoryURL(missing.URL)
	mustFail(t, download(filepath.Join(cache, "postgres"), config), "no version found")
	mustContainFiles(t, cache, 0)
}
