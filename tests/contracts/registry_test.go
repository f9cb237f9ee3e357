package contracts_test

import (
	"go/ast"
	"io/fs"
	"os"
	"reflect"
	"strings"
	"testing"
	"testing/fstest"
)

// publishedElsewhere are contracts that no Go code of their context publishes, each with who does.
var publishedElsewhere = map[string]string{}

// TestEveryContractIsListedAndPublished finds what a developer may have forgotten beside the contract itself.
func TestEveryContractIsListedAndPublished(t *testing.T) {
	t.Parallel()
	for _, problem := range forgotten(t, os.DirFS(root), publishedElsewhere) {
		t.Error(problem)
	}
}

// The owner of a payload publishes it.
func TestContractsAreOfTheContextThatTheyStandIn(t *testing.T) {
	t.Parallel()
	for _, c := range shipped(t) {
		if pkg := reflect.TypeOf(c.Payload).PkgPath(); pkg != "spectral/internal/"+string(c.Source)+"/contracts/events" {
			t.Errorf("contract %s: its Source is %s, but its payload is %s: a context publishes what stands in its own "+
				"contracts/events", c.Type, c.Source, pkg)
		}
	}
}

// forgotten looks for the contract functions that internal/app/contracts.go or the producing context does not use.
func forgotten(t *testing.T, tree fs.FS, elsewhere map[string]string) (problems []string) {
	t.Helper()
	listed := make(map[string]bool)
	for _, file := range parsed(t, tree, "internal/app/contracts.go") {
		for name := range selected(file) {
			listed[name] = true
		}
	}
	for _, scope := range []string{"platform", "worlds"} {
		used := make(map[string]bool)
		must(t, fs.WalkDir(tree, "internal/"+scope, func(path string, entry fs.DirEntry, err error) error {
			if err != nil || !entry.IsDir() || strings.HasSuffix(path, "/contracts/events") {
				return err
			}
			for _, file := range parsed(t, tree, path+"/*.go") {
				for name := range selected(file) {
					used[name] = true
				}
			}
			return nil
		}))
		for _, file := range parsed(t, tree, "internal/"+scope+"/contracts/events/*.go") {
			for _, declaration := range file.Decls {
				function, ok := declaration.(*ast.FuncDecl)
				if !ok || !strings.HasSuffix(function.Name.Name, "Contract") {
					continue
				}
				name := function.Name.Name
				if !listed[name] {
					problems = append(problems,
						name+" of internal/"+scope+"/contracts/events is not registered: list it in app.Contracts "+
							"(internal/app/contracts.go)")
				}
				if !used[name] && elsewhere[name] == "" {
					problems = append(problems,
						name+" of internal/"+scope+"/contracts/events is not published: publish it from a use case in internal/"+scope+
							"/application, in the transaction of what it tells of; if only others do, say who in publishedElsewhere "+
							"(tests/contracts/registry_test.go)")
				}
				if used[name] && elsewhere[name] != "" {
					problems = append(problems, name+" is in publishedElsewhere, but internal/"+scope+" publishes it")
				}
			}
		}
	}
	return problems
}

// selected are the names that a file uses of other packages.
func selected(file *ast.File) map[string]bool {
	names := make(map[string]bool)
	ast.Inspect(file, func(n ast.Node) bool {
		if selector, ok := n.(*ast.SelectorExpr); ok {
			names[selector.Sel.Name] = true
		}
		return true
	})
	return names
}

func TestForgottenContractsAreFound(t *testing.T) {
	t.Parallel()
	tree := fstest.MapFS{
		"internal/app/contracts.go": {Data: []byte("package app\n\nvar _ = []any{worlds.AContract(), " +
			"worlds.BContract(), worlds.CContract()}\n")},
		"internal/worlds/contracts/events/all.go": {Data: []byte("package events\n\nfunc AContract() {}\nfunc " +
			"BContract() {}\nfunc CContract() {}\nfunc DContract() {}\n")},
		"internal/worlds/application/a.go": {Data: []byte("package application\n\nvar _ = " +
			"contracts.AContract()\nvar _ = contracts.DContract()\n")},
		"internal/worlds/application/b_test.go":     {Data: []byte("package application\n\nvar _ = contracts.BContract()\n")},
		"internal/platform/contracts/events/doc.go": {Data: []byte("package events\n")},
	}
	got := forgotten(t, tree, map[string]string{"CContract": "the importer", "AContract": "no one"})
	want := []string{"AContract is in publishedElsewhere, but",
		"BContract of internal/worlds/contracts/events is not published",
		"DContract of internal/worlds/contracts/events is not registered"}
	if len(got) != len(want) {
		t.Fatalf("found %q", got)
	}
	for i := range want {
		if !strings.HasPrefix(got[i], want[i]) {
			t.Errorf("found %q, want %q", got[i], want[i])
		}
	}
}
