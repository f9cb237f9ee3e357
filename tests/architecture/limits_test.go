package architecture_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"slices"
	"strings"
	"testing"
)

// Time limits of the adapter stand in one file, where a test checks how they relate.
func TestTimeLimitsAreInOneFile(t *testing.T) {
	t.Parallel()
	tree := tree()
	files, err := goFiles(tree)
	must(t, err)
	units := []string{"Microsecond", "Millisecond", "Second", "Minute", "Hour"}
	found := false
	for _, name := range files {
		if !strings.HasPrefix(name, adapter) || strings.HasSuffix(name, "_test.go") ||
			strings.HasPrefix(name, adapter+"/operator/") {
			continue
		}
		source, err := fs.ReadFile(tree, name)
		must(t, err)
		fileSet := token.NewFileSet()
		parsed, err := parser.ParseFile(fileSet, name, source, 0)
		must(t, err)
		ast.Inspect(parsed, func(n ast.Node) bool {
			unit, ok := n.(*ast.SelectorExpr)
			if !ok {
				return true
			}
			of, _ := unit.X.(*ast.Ident)
			switch {
			case of == nil || of.Name != "time" || !slices.Contains(units, unit.Sel.Name):
			case name == adapter+"/pgtx/limits.go":
				found = true
			case name != adapter+"/pgtx/wait.go": // converts seconds
				t.Errorf("%s has a duration: name it in %s/pgtx/limits.go, and add how it relates to the others to limits_test.go",
					fileSet.Position(n.Pos()), adapter)
			}
			return true
		})
	}
	if !found {
		t.Errorf("%s/pgtx/limits.go has no durations: has it moved?", adapter)
	}
}
