package architecture_test

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
)

// queryMethods are the driver's methods that run SQL.
var queryMethods = []string{"Query", "QueryRow", "Exec", "SendBatch", "CopyFrom", "Prepare", "Begin", "BeginTx", "Raw"}

// The import rules keep the driver out of the command line and the doctor. This test also refuses calls on a connection
// that they got from elsewhere.
func TestCommandLineAndDoctorRunNoSQL(t *testing.T) {
	t.Parallel()
	found, err := sqlCalls(tree())
	must(t, err)
	for _, call := range found {
		t.Errorf("%s: move the query to package operator", call)
	}
}

func TestSQLCallsAreReported(t *testing.T) {
	t.Parallel()
	found, err := sqlCalls(fstest.MapFS{
		"internal/app/doctor/a.go": {Data: []byte("package doctor\nfunc f(c conn) { c.inner().Query(nil, `select 1`) }")},
		"internal/app/a.go":        {Data: []byte("package app\nfunc f(c conn) { c.Exec(nil) }")},
	})
	if err != nil || !slices.Equal(found, []string{"internal/app/doctor/a.go:2 calls Query"}) {
		t.Errorf("found %q, %v", found, err)
	}
}

// sqlCalls returns the calls of queryMethods in the command line and the doctor.
func sqlCalls(tree fs.FS) (found []string, err error) {
	files, err := goFiles(tree)
	for _, name := range files {
		if !strings.HasPrefix(name, "internal/app/cli/") && !strings.HasPrefix(name, "internal/app/doctor/") {
			continue
		}
		source, err := fs.ReadFile(tree, name)
		if err != nil {
			return nil, err
		}
		set := token.NewFileSet()
		file, err := parser.ParseFile(set, name, source, 0)
		if err != nil {
			return nil, err
		}
		ast.Inspect(file, func(n ast.Node) bool {
			if call, ok := n.(*ast.CallExpr); ok {
				if method, ok := call.Fun.(*ast.SelectorExpr); ok && slices.Contains(queryMethods, method.Sel.Name) {
					found = append(found, fmt.Sprintf("%s:%d calls %s", name, set.Position(call.Pos()).Line, method.Sel.Name))
				}
			}
			return true
		})
	}
	return found, err
}
