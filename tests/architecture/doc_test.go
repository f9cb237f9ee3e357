// Package architecture_test checks the structure of the code (ARCHITECTURE.md). The rules are data with a reason each,
// and each check is tested on small trees that break it.
//
//   - import_rules_test.go, imports_test.go: which package may import which
//   - limits_test.go: the time limits are in one file
//   - package_docs_test.go: each package has one package doc
//   - consumers_test.go: consumers and contracts agree; testdata/topology.txt shows which event reaches which handlers
//   - functions_test.go: the migrations have the functions of db/functions
//   - sqlc_test.go, sqlc_generate_test.go: each context reads its own migrations; the second generates again (tag sqlc)
//   - words_test.go: the word list, the length of lines, and the names of tests in pages
//
// This writes the generated files:
//
//	go test ./tests/architecture -update
package architecture_test

import (
	"flag"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// contexts are the bounded contexts, each a folder of internal/.
var contexts = []string{"platform", "worlds"}

const module = "spectral"

// root is the module's folder, as seen from the tests.
const root = "../.."

func tree() fs.FS { return os.DirFS(root) }

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// goFile is a parsed Go file.
type goFile struct {
	*ast.File
	name string
	set  *token.FileSet
}

// goFiles parses the Go files of the module in tree whose names begin with prefix, with any build constraints. It skips
// test data, hidden folders and nested modules.
func goFiles(t *testing.T, tree fs.FS, prefix string, mode parser.Mode) (files []goFile) {
	t.Helper()
	must(t, fs.WalkDir(tree, ".", func(name string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if !entry.IsDir() {
			if path.Ext(name) == ".go" && strings.HasPrefix(name, prefix) {
				text, err := fs.ReadFile(tree, name)
				must(t, err)
				set := token.NewFileSet()
				file, err := parser.ParseFile(set, name, text, mode)
				must(t, err)
				files = append(files, goFile{file, name, set})
			}
			return nil
		}
		base := entry.Name()
		if name != "." && (strings.HasPrefix(base, ".") || strings.HasPrefix(base, "_") ||
			base == "testdata" || base == "node_modules") {
			return fs.SkipDir
		}
		if _, err := fs.Stat(tree, path.Join(name, "go.mod")); err == nil && name != "." {
			return fs.SkipDir
		}
		return nil
	}))
	return files
}

func TestContextsAreTheFoldersOfInternal(t *testing.T) {
	t.Parallel()
	entries, err := fs.ReadDir(tree(), "internal")
	must(t, err)
	var found []string
	for _, e := range entries {
		if e.IsDir() && !slices.Contains([]string{"app", "core", "dev"}, e.Name()) {
			found = append(found, e.Name())
		}
	}
	if !slices.Equal(found, contexts) {
		t.Errorf("internal/ has the contexts %v, the rules here know %v: name each in contexts", found, contexts)
	}
}

// report fails the test with one line for each problem.
func report(t *testing.T, problems []string) {
	t.Helper()
	for _, p := range problems {
		t.Error(p)
	}
}

// expect checks that each problem of a broken tree contains the wanted text, in order.
func expect(t *testing.T, problems, want []string) {
	t.Helper()
	if len(problems) != len(want) {
		t.Fatalf("reported %d problems, want %d:\n%s", len(problems), len(want), strings.Join(problems, "\n"))
	}
	for i, p := range problems {
		if !strings.Contains(p, want[i]) {
			t.Errorf("reported %q\nwhich does not say %q", p, want[i])
		}
	}
}
