//go:build heavy

package contracts_test

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var (
	block = regexp.MustCompile("(?ms)^```(go|diff) (\\S+)\n(.*?)^```$")
	hunk  = regexp.MustCompile(`(?m)^@@.*\n`)
)

// generatedFor is what sqlc makes of the query that docs/adding-an-event.md adds.
const generatedFor = `package worldsdb

import (
	"context"
	"time"

	"github.com/google/uuid"
)

type PutRetiredMemoryParams struct {
	WorkspaceID uuid.NullUUID
	MemoryID    uuid.UUID
	Version     int64
	RetiredAt   time.Time
}

func (q *Queries) PutRetiredMemory(context.Context, PutRetiredMemoryParams) error { return nil }
`

// The code of the pages compiles with the product's: docs/leased-work.md goes on where docs/adding-an-event.md ends.
func TestCodeInPagesCompiles(t *testing.T) {
	t.Parallel()
	const queries = "internal/worlds/infrastructure/postgres/worldsdb/retired_memories.sql.go"
	tree := map[string]string{queries: generatedFor} // contents by path
	for _, page := range []string{"adding-an-event.md", "leased-work.md"} {
		text, err := os.ReadFile(filepath.Join(root, "docs", page))
		must(t, err)
		blocks := block.FindAllStringSubmatch(string(text), -1)
		if len(blocks) < 7 {
			t.Fatalf("docs/%s has %d blocks of code that name a file", page, len(blocks))
		}
		for _, b := range blocks {
			if path, code := b[2], b[3]; b[1] == "go" {
				tree[path] = code
			} else {
				tree[path] = changed(t, tree, page, path, code)
			}
		}
	}
	compile(t, tree)
}

// changed makes the changes that a page shows: each replaces its lines with a minus and those around them.
func changed(t *testing.T, tree map[string]string, page, path, diff string) string {
	t.Helper()
	text, known := tree[path]
	if !known {
		file, err := os.ReadFile(filepath.Join(root, path))
		must(t, err)
		text = string(file)
	}
	for _, lines := range hunk.Split(diff, -1) {
		var before, after strings.Builder
		for line := range strings.Lines(lines) {
			if line[0] != '+' {
				before.WriteString(line[1:])
			}
			if line[0] != '-' {
				after.WriteString(line[1:])
			}
		}
		if n := strings.Count(text, before.String()); n != 1 {
			t.Fatalf("docs/%s: %s has these lines %d times:\n%s", page, path, n, before.String())
		}
		text = strings.Replace(text, before.String(), after.String(), 1)
	}
	return text
}

// compile compiles the product and a test of it, without linking, as if the files of tree were there.
func compile(t *testing.T, tree map[string]string) {
	t.Helper()
	dir, replace := t.TempDir(), map[string]string{}
	absolute, err := filepath.Abs(root)
	must(t, err)
	for path, text := range tree {
		file := filepath.Join(dir, strings.ReplaceAll(path, "/", "_"))
		must(t, os.WriteFile(file, []byte(text), 0o600))
		replace[filepath.Join(absolute, path)] = file
	}
	overlay, err := json.Marshal(map[string]any{"Replace": replace})
	must(t, err)
	must(t, os.WriteFile(filepath.Join(dir, "overlay.json"), overlay, 0o600))
	cmd := exec.CommandContext(t.Context(), "go", "list", "-test", "-export", "-overlay", filepath.Join(dir, "overlay.json"), "./tests/integration")
	cmd.Dir = root
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("go list: %v\n%s", err, out)
	}
}
