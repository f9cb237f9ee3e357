package files_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/google/uuid"

	"spectral/internal/platform/application"
	"spectral/internal/platform/infrastructure/files"
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

// TestRepeatedDeliveryLeavesOneBriefing also checks that files of earlier runs are removed and those of others stay.
func TestRepeatedDeliveryLeavesOneBriefing(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "a", "[b") // not a valid pattern
	task, other := uuid.New(), uuid.New()
	briefings := files.NewBriefings(dir)
	deliver := func(run int64, text string) {
		t.Helper()
		place, err := briefings.Deliver(t.Context(), application.Briefing{Task: task, Run: run, Text: text})
		if err != nil || place != filepath.Join(dir, task.String()+".md") {
			t.Fatalf("delivered to %s: %v", place, err)
		}
		content, err := os.ReadFile(place)
		if err != nil || string(content) != text {
			t.Fatalf("it says %q: %v", content, err)
		}
	}
	deliver(9, "first")
	left := func(task uuid.UUID, run string) string {
		name := "." + task.String() + "." + run + ".tmp"
		if err := os.WriteFile(filepath.Join(dir, name), []byte("half"), 0o600); err != nil {
			t.Fatal(err)
		}
		return name
	}
	left(task, "8")
	left(task, "9")
	deliver(10, "second")
	later, foreign := left(task, "11"), left(other, "1")
	deliver(10, "second")
	want := []string{later, foreign, task.String() + ".md"}
	got := names(t, dir)
	slices.Sort(want)
	slices.Sort(got)
	if !slices.Equal(got, want) {
		t.Errorf("the folder has %v, want %v", got, want)
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
	if place, err := files.NewBriefings(dir).Deliver(t.Context(), application.Briefing{Task: task, Run: 1}); err == nil {
		t.Errorf("delivered to %s", place)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := files.NewBriefings(dir).Deliver(ctx, application.Briefing{Task: uuid.New(), Run: 1})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("delivered though it was to stop: %v", err)
	}
	if left := names(t, dir); len(left) != 1 { // the folder
		t.Errorf("left behind %v", left)
	}
}
