//go:build sqlc

package architecture_test

import (
	"bytes"
	"go/ast"
	"go/parser"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"testing"
)

// TestGeneratedQueriesAreCurrent generates to another folder and compares: no file differs, is missing or is left over.
func TestGeneratedQueriesAreCurrent(t *testing.T) {
	folder := t.TempDir()
	database, err := fs.Sub(tree(), "db")
	must(t, err)
	must(t, os.CopyFS(filepath.Join(folder, "db"), database))
	config, err := fs.ReadFile(tree(), "sqlc.yaml")
	must(t, err)
	must(t, os.WriteFile(filepath.Join(folder, "sqlc.yaml"), config, 0o600))
	sqlc := exec.CommandContext(t.Context(), "go", "tool", "-modfile=tools/go.mod", "sqlc", "generate", "-f",
		filepath.Join(folder, "sqlc.yaml"))
	sqlc.Dir = root
	sqlc.Env = append(os.Environ(), "CGO_ENABLED=0") // it needs no C compiler then, and builds several times faster
	if output, err := sqlc.CombinedOutput(); err != nil {
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
