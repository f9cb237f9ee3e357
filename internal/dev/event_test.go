package main

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// What the scaffold writes is compiled and tested in tests/contracts/pages_test.go.
func TestBadEventsAreRefusedBeforeAnythingIsWritten(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ name, to, fields, want string }{
		{"retired", "worlds", "id_of:uuid", "NAME=retired: must be"},
		{"core.memory.retired", "worlds", "a:uuid", "NAME=core.memory.retired: must be"},
		{"platform.Memory", "worlds", "a:uuid", "NAME=platform.Memory: must be"},
		{"platform.memory.retired", "", "a:uuid", "TO=: must be the context"},
		{"platform.memory.retired", "worlds", "", "FIELDS: must have at least"},
		{"platform.memory.retired", "worlds", "a", "FIELDS: a must be NAME:KIND"},
		{"platform.memory.retired", "worlds", "a:map", "FIELDS: a:map is no kind"},
		{"platform.memory.retired", "worlds", "a:uuid a:int", "FIELDS: a is taken"},
		{"platform.memory.retired", "worlds", "id:uuid", "FIELDS: id is taken"},
	} {
		err := run(&bytes.Buffer{}, []string{"event", c.name, c.to, c.fields})
		if err == nil || !strings.HasPrefix(err.Error(), c.want) || !strings.Contains(err.Error(), "usage: make event") {
			t.Errorf("%s to %s with %q: %v, want %s", c.name, c.to, c.fields, err, c.want)
		}
	}
	if err := run(&bytes.Buffer{}, nil); err == nil || err.Error() != usage {
		t.Errorf("without arguments: %v", err)
	}
}

func TestAnEventIsWrittenOnceOrNotAtAll(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	e, err := newEvent("platform.memory.retired", "worlds", "memory_id:uuid")
	if err != nil {
		t.Fatal(err)
	}
	count := func() (n int) {
		_ = filepath.WalkDir(root, func(_ string, entry os.DirEntry, _ error) error {
			if !entry.IsDir() {
				n++
			}
			return nil
		})
		return n
	}
	for _, f := range files {
		if err := os.MkdirAll(filepath.Join(root, filepath.Dir(e.fill(f.path))), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := e.write(root); err == nil || count() != 0 {
		t.Fatalf("without the lists of internal/app: %v, and %d files", err, count())
	}
	changed := make(map[string]bool)
	for _, i := range insertions() {
		name := e.fill(i.path)
		changed[name] = true
		path := filepath.Join(root, name)
		text, err := os.ReadFile(filepath.Join("../..", name))
		if err = errors.Join(err, os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, text, 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	written, err := e.write(root)
	if err != nil || len(written) != len(files)+len(changed) || count() != len(written) {
		t.Fatalf("wrote %v, and there are %d files: %v", written, count(), err)
	}
	if _, err := e.write(root); err == nil || !strings.Contains(err.Error(), "memory_retired.go exists already") {
		t.Errorf("the second time: %v", err)
	}
}
