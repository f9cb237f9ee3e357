package embeddedpg

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

func TestProgramFolders(t *testing.T) {
	t.Parallel()
	with, without := programFolders("/home/ada/.cache", "/tmp"), programFolders("", "/tmp")
	if len(with) != 3 || with[0] != "/home/ada/.cache/spectral" || len(without) != 2 {
		t.Fatal(with, without)
	}
	if with[1] == without[0] {
		t.Error("two homes share a folder:", with[1])
	}
	for i, prefix := range []string{"/var/cache/spectral/", "/tmp/spectral-"} {
		if !strings.HasPrefix(without[i], prefix) {
			t.Errorf("%s does not begin with %s", without[i], prefix)
		}
	}
}

func TestFolderOfOthersIsPassedOver(t *testing.T) {
	t.Parallel()
	shared, usable := openFolderFor(t, nil), filepath.Join(openFolderFor(t, nil), "a", "b")
	check(t, os.Chmod(shared, 0o777))
	folders := []string{shared, usable}
	if os.Geteuid() == 0 {
		theirs := openFolderFor(t, &syscall.Credential{Uid: 12345, Gid: 12345})
		folders = append([]string{theirs, filepath.Join(theirs, "spectral")}, folders...)
	}
	got, err := programFolder(testAccount(t), folders)
	check(t, err)
	if got != usable {
		t.Errorf("chose %s", got)
	}
	if _, err := programFolder(testAccount(t), folders[:len(folders)-1]); err == nil {
		t.Error("chose a folder of others")
	}
}

func TestDirThatTheServersUserCannotEnterIsRefused(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("only root's server runs as another user")
	}
	closed := t.TempDir() // mode 0700 above it
	dir := filepath.Join(closed, "x")
	_, err := Start(deadline(t), Config{Dir: dir})
	if err == nil {
		t.Fatal("accepted")
	}
	mustContain(t, err.Error(), "cannot enter "+closed)
	if _, err := os.Lstat(dir); err == nil {
		t.Error("the folder was made all the same")
	}
}
