package architecture_test

import (
	"fmt"
	"go/ast"
	"go/parser"
	"io/fs"
	"path"
	"slices"
	"testing"
	"testing/fstest"
)

// queryMethods are the driver's methods that run SQL.
var queryMethods = []string{"Query", "QueryRow", "Exec", "SendBatch", "CopyFrom", "Prepare", "Begin", "BeginTx", "Raw"}

// The import rules keep the driver out of the command line and the doctor. This test also refuses calls on a connection
// that they got from elsewhere.
func TestCommandLineAndDoctorRunNoSQL(t *testing.T) {
	t.Parallel()
	for _, call := range sqlCalls(t, tree()) {
		t.Errorf("%s: move the query to package operator", call)
	}
}

func TestSQLCallsAreReported(t *testing.T) {
	t.Parallel()
	found := sqlCalls(t, fstest.MapFS{
		"internal/app/doctor/a.go": {Data: []byte("package doctor\nfunc f(c conn) { c.inner().Query(nil, `select 1`) }")},
		"internal/app/a.go":        {Data: []byte("package app\nfunc f(c conn) { c.Exec(nil) }")},
	})
	expect(t, found, []string{"internal/app/doctor/a.go:2 calls Query"})
}

// sqlCalls returns the calls of queryMethods in the command line and the doctor.
func sqlCalls(t *testing.T, tree fs.FS) (found []string) {
	t.Helper()
	for _, file := range goFiles(t, tree, "internal/app/", parser.SkipObjectResolution) {
		if folder := path.Base(path.Dir(file.name)); folder != "cli" && folder != "doctor" {
			continue
		}
		ast.Inspect(file.File, func(n ast.Node) bool {
			if call, ok := n.(*ast.CallExpr); ok {
				if method, ok := call.Fun.(*ast.SelectorExpr); ok && slices.Contains(queryMethods, method.Sel.Name) {
					at := file.set.Position(call.Pos())
					found = append(found, fmt.Sprintf("%s:%d calls %s", at.Filename, at.Line, method.Sel.Name))
				}
			}
			return true
		})
	}
	return found
}
