package architecture_test

import (
	"go/ast"
	"go/parser"
	"slices"
	"strings"
	"testing"
)

// Time limits of the adapter stand in one file, where a test checks how they relate.
func TestTimeLimitsAreInOneFile(t *testing.T) {
	t.Parallel()
	units := []string{"Microsecond", "Millisecond", "Second", "Minute", "Hour"}
	found := false
	for _, file := range goFiles(t, tree(), adapter, parser.SkipObjectResolution) {
		if strings.HasSuffix(file.name, "_test.go") || strings.HasPrefix(file.name, adapter+"/operator/") {
			continue
		}
		ast.Inspect(file.File, func(n ast.Node) bool {
			unit, ok := n.(*ast.SelectorExpr)
			if !ok {
				return true
			}
			of, _ := unit.X.(*ast.Ident)
			switch {
			case of == nil || of.Name != "time" || !slices.Contains(units, unit.Sel.Name):
			case file.name == adapter+"/pgtx/limits.go":
				found = true
			case file.name != adapter+"/pgtx/wait.go": // converts seconds
				t.Errorf("%s has a duration: name it in %s/pgtx/limits.go, and add how it relates to the others to limits_test.go",
					file.set.Position(n.Pos()), adapter)
			}
			return true
		})
	}
	if !found {
		t.Errorf("%s/pgtx/limits.go has no durations: has it moved?", adapter)
	}
}
