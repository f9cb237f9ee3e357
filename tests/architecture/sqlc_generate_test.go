//go:build sqlc

package architecture_test

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/parser"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestGeneratedQueriesAreCurrent generates to another folder and compares: no file differs, is missing or is left over.
// The tests of sqlc run one after another, because the first one builds it.
func TestGeneratedQueriesAreCurrent(t *testing.T) {
	folder := sqlcInput(t)
	if output, err := generate(t, folder); err != nil {
		t.Fatalf("sqlc generate: %v\n%s", err, output)
	}
	for _, block := range readSQLC(t, tree()).SQL {
		out := block.Gen.Go.Out
		committed, current := generatedFiles(t, tree(), out), generatedFiles(t, os.DirFS(folder), out)
		for _, name := range slices.Sorted(maps.Keys(current)) {
			if !bytes.Equal(committed[name], current[name]) {
				t.Errorf("%s/%s is not what sqlc generates: run `make generate`", out, name)
			}
		}
		for _, name := range slices.Sorted(maps.Keys(committed)) {
			if current[name] == nil {
				t.Errorf("%s/%s is no longer generated: delete it", out, name)
			}
		}
		if len(current) == 0 {
			t.Errorf("%s: sqlc generates nothing", out)
		}
	}
}

// TestQueriesOnAnotherContextsTableDoNotGenerate checks that sqlc refuses a query on a table of another context.
func TestQueriesOnAnotherContextsTableDoNotGenerate(t *testing.T) {
	folder := sqlcInput(t)
	queries := []struct {
		from, table string
		refused     bool
	}{
		{"platform", "worlds.world_model_cards", true},
		{"platform", "core.outbox", true},
		{"worlds", "platform.system_cards", true},
		{"worlds", "core.outbox", true},
		{"core", "platform.system_cards", true},
		// On its own table the same query is accepted.
		{"core", "core.outbox", false},
		{"platform", "platform.system_cards", false},
		{"worlds", "worlds.world_model_cards", false},
	}
	file := func(from, table string) string { return "db/queries/" + from + "/count_" + table + ".sql" }
	for _, q := range queries {
		text := fmt.Sprintf("-- name: Count%x :one\nselect count(*) from %s;\n", q.table, q.table)
		must(t, os.WriteFile(filepath.Join(folder, file(q.from, q.table)), []byte(text), 0o600))
	}
	output, err := generate(t, folder)
	if err == nil {
		t.Fatal("sqlc generated queries on another context's tables")
	}
	for _, q := range queries {
		mentioned := strings.Contains(output, file(q.from, q.table))
		refused := strings.Contains(output, fmt.Sprintf("%s:1:1: schema %q does not exist", file(q.from, q.table),
			strings.Split(q.table, ".")[0]))
		if mentioned != q.refused || refused != q.refused {
			t.Errorf("a query of %s on %s: refused is %t, want %t", q.from, q.table, refused, q.refused)
		}
	}
	t.Log(output)
}

// sqlcInput copies the files that sqlc reads to a temporary folder.
func sqlcInput(t *testing.T) string {
	t.Helper()
	folder := t.TempDir()
	database, err := fs.Sub(tree(), "db")
	must(t, err)
	must(t, os.CopyFS(filepath.Join(folder, "db"), database))
	config, err := fs.ReadFile(tree(), "sqlc.yaml")
	must(t, err)
	must(t, os.WriteFile(filepath.Join(folder, "sqlc.yaml"), config, 0o600))
	return folder
}

// generate runs the module's sqlc on folder. Without cgo it needs no C compiler and builds several times faster.
func generate(t *testing.T, folder string) (string, error) {
	t.Helper()
	sqlc := exec.CommandContext(t.Context(), "go", "tool", "-modfile=tools/go.mod", "sqlc", "generate", "-f",
		filepath.Join(folder, "sqlc.yaml"))
	sqlc.Dir = root
	sqlc.Env = append(os.Environ(), "CGO_ENABLED=0")
	output, err := sqlc.CombinedOutput()
	return string(output), err
}

// generatedFiles returns the generated Go files of a folder, by name.
func generatedFiles(t *testing.T, tree fs.FS, folder string) map[string][]byte {
	t.Helper()
	files := make(map[string][]byte)
	for _, file := range goFiles(t, tree, folder+"/", parser.PackageClauseOnly|parser.ParseComments) {
		if ast.IsGenerated(file.File) {
			text, err := fs.ReadFile(tree, file.name)
			must(t, err)
			files[path.Base(file.name)] = text
		}
	}
	return files
}
