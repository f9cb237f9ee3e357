package app_test

import (
	"maps"
	"path/filepath"
	"slices"
	"testing"

	"spectral/internal/app"
)

// Each task of the catalog has an executor, and each executor a task.
func TestTheTaskCatalogIsWhatTheExecutorsDo(t *testing.T) {
	t.Parallel()
	catalog := slices.Sorted(maps.Keys(app.TaskCatalog()))
	executors := slices.Sorted(maps.Keys(app.TaskExecutors(app.Deps{Generation: 1})))
	if !slices.Equal(catalog, executors) {
		t.Errorf("TaskCatalog has %v, TaskExecutors has %v: add what is missing", catalog, executors)
	}
}

func TestTheBriefingsGoSomewhereByDefault(t *testing.T) {
	for _, home := range []string{t.TempDir(), ""} {
		t.Setenv("HOME", home)
		t.Setenv("XDG_CACHE_HOME", "")
		dir, err := app.ReadBriefingsDir(func(string) string { return "" })
		if err != nil || !filepath.IsAbs(dir) {
			t.Errorf("with home %q: %q, %v", home, dir, err)
		}
	}
	if dir, err := app.ReadBriefingsDir(func(string) string { return "/a/../b/" }); err != nil || dir != "/b" {
		t.Errorf("%q, %v", dir, err)
	}
}
