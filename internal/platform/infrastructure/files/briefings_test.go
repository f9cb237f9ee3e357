package files

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/uuid"

	"spectral/internal/platform/application"
)

func names(t *testing.T, dir string) (found []string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		found = append(found, e.Name())
	}
	return found
}

func TestRepeatedDeliveryLeavesOneBriefing(t *testing.T) {
	t.Parallel()
	dir, task := filepath.Join(t.TempDir(), "a"), uuid.New()
	for _, text := range []string{"first", "second"} {
		place, err := Briefings{Dir: dir}.Deliver(t.Context(), application.Briefing{Task: task, Text: text})
		if err != nil || place != filepath.Join(dir, task.String()+".md") {
			t.Fatalf("delivered to %s: %v", place, err)
		}
		content, err := os.ReadFile(place)
		if err != nil || string(content) != text {
			t.Fatalf("it says %q: %v", content, err)
		}
	}
	if got := names(t, dir); len(got) != 1 {
		t.Errorf("the folder has %v", got)
	}
	for path, mode := range map[string]os.FileMode{dir: 0o700, filepath.Join(dir, task.String()+".md"): 0o600} {
		info, err := os.Stat(path)
		if err != nil || info.Mode().Perm() != mode {
			t.Errorf("%s is open to %v: %v", path, info.Mode(), err)
		}
	}
}

func TestFailedDeliveryLeavesNoFile(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	task := uuid.New()
	if err := os.Mkdir(filepath.Join(dir, task.String()+".md"), 0o700); err != nil { // a folder with the briefing's name
		t.Fatal(err)
	}
	if place, err := (Briefings{Dir: dir}).Deliver(t.Context(), application.Briefing{Task: task}); err == nil {
		t.Errorf("delivered to %s", place)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := Briefings{Dir: dir}.Deliver(ctx, application.Briefing{Task: uuid.New()})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("delivered though it was to stop: %v", err)
	}
	if left := names(t, dir); len(left) != 1 { // the folder
		t.Errorf("left behind %v", left)
	}
}

func TestFoldersOfOthersAreRefused(t *testing.T) {
	t.Parallel()
	shared := filepath.Join(t.TempDir(), "shared")
	link := filepath.Join(t.TempDir(), "link")
	foreign := filepath.Join(t.TempDir(), "foreign")
	err := errors.Join(os.Mkdir(shared, 0o700), os.Chmod(shared, 0o777), os.Symlink(t.TempDir(), link),
		os.Mkdir(foreign, 0o700))
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{shared: "other users may write", link: "is a link"}
	if os.Geteuid() == 0 {
		want[foreign] = "belongs to user 65534"
		if err := os.Chown(foreign, 65534, -1); err != nil {
			t.Fatal(err)
		}
	}
	for dir, reason := range want {
		briefings := Briefings{Dir: dir}
		if err := briefings.Check(); err == nil || !strings.Contains(err.Error(), reason) {
			t.Errorf("%s: want %q, got %v", dir, reason, err)
		}
		if place, err := briefings.Deliver(t.Context(), application.Briefing{Task: uuid.New()}); err == nil {
			t.Errorf("delivered to %s", place)
		}
	}
	own := Briefings{Dir: filepath.Join(t.TempDir(), "a", "b")}
	if err := own.Check(); err != nil || len(names(t, own.Dir)) > 0 {
		t.Errorf("a new folder has %v: %v", names(t, own.Dir), err)
	}
}

// A file that is already there is not written to, and a folder that replaced the checked one is not used.
func TestPlantedFilesAndFoldersAreNotUsed(t *testing.T) { // not parallel: it decides the names of temporary files
	dir, other := t.TempDir(), t.TempDir()
	folder, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = folder.Close() }()
	defer uuid.SetRand(nil)
	for _, want := range []error{nil, fs.ErrExist} {
		uuid.SetRand(bytes.NewReader(make([]byte, 16)))
		if name, err := write(folder, ".a", "text"); !errors.Is(err, want) {
			t.Errorf("written to %q: %v, want %v", name, err, want)
		}
	}
	info, err := os.Lstat(dir)
	if err != nil {
		t.Fatal(err)
	}
	_, err = openChecked(other, info)
	if err == nil || !strings.HasSuffix(err.Error(), "was replaced while it was opened") {
		t.Errorf("a folder in place of the one that was checked: %v", err)
	}
}
