package architecture_test

import (
	"fmt"
	"go/parser"
	"io/fs"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/fstest"
)

func TestImports(t *testing.T) {
	t.Parallel()
	violations, stale := checkImports(readImports(t, tree()), importRules)
	for _, v := range violations {
		t.Error(v)
	}
	report(t, stale)
}

// fileImports is what one file imports.
type fileImports struct {
	file    string
	imports []string
}

func readImports(t *testing.T, tree fs.FS) (all []fileImports) {
	t.Helper()
	for _, file := range goFiles(t, tree, "", parser.ImportsOnly) {
		f := fileImports{file: file.name}
		for _, spec := range file.Imports {
			imported, err := strconv.Unquote(spec.Path.Value)
			must(t, err)
			f.imports = append(f.imports, imported)
		}
		all = append(all, f)
	}
	return all
}

// violation is an import that a rule forbids.
type violation struct {
	file, imported string
	rule           rule
}

func (v violation) String() string {
	return fmt.Sprintf("%s imports %s: %s (rule %q)", v.file, v.imported, v.rule.reason, v.rule.name)
}

// checkImports returns the imports that break a rule, and the parts of rules that match nothing.
func checkImports(all []fileImports, rules []rule) (violations []violation, stale []string) {
	for _, r := range rules {
		matched := false
		used := make([]bool, len(r.except))
		for _, context := range r.contexts() {
			in := r.in(context)
			for _, f := range all {
				if !in.files.MatchString(f.file) {
					continue
				}
				matched = true
				for _, imported := range f.imports {
					if imported == path.Join(module, path.Dir(f.file)) || !slices.ContainsFunc(in.forbid, matching(imported)) {
						continue
					}
					excepted := false
					for i, e := range in.except {
						if e.files.MatchString(f.file) && e.imports.MatchString(imported) {
							used[i], excepted = true, true
						}
					}
					if !excepted {
						violations = append(violations, violation{f.file, imported, r})
					}
				}
			}
		}
		if !matched {
			stale = append(stale, fmt.Sprintf("rule %q matches no file: nothing is at %s", r.name, r.files))
		}
		for i, e := range r.except {
			if !used[i] {
				stale = append(stale, fmt.Sprintf("rule %q: nothing uses the exception for files %q, imports %q: remove it", r.name,
					e.files, e.imports))
			}
		}
		for _, pattern := range r.forbid {
			if !r.known(pattern, all) {
				stale = append(stale, fmt.Sprintf("rule %q: %s is no package that exists here", r.name, pattern))
			}
		}
	}
	return violations, stale
}

// known reports whether a forbidden pattern can match: a folder of ours, or an imported module. Packages of the
// standard library are not checked.
func (r rule) known(pattern string, all []fileImports) bool {
	first, _, _ := strings.Cut(pattern, "/")
	ours := first == module
	if !ours && !strings.Contains(first, ".") {
		return true
	}
	for _, context := range r.contexts() {
		is := compile(pattern, context).MatchString
		for _, f := range all {
			if ours && is(path.Join(module, path.Dir(f.file))) || !ours && slices.ContainsFunc(f.imports, is) {
				return true
			}
		}
	}
	return false
}

// contexts returns the contexts that {context} stands for in the rule.
func (r rule) contexts() []string {
	if strings.Contains(fmt.Sprint(r), "{context}") {
		return contexts
	}
	return []string{""}
}

// compiledRule is a rule for one context.
type compiledRule struct {
	files  *regexp.Regexp
	forbid []*regexp.Regexp
	except []struct{ files, imports *regexp.Regexp }
}

func (r rule) in(context string) compiledRule {
	c := compiledRule{files: compile(r.files, context)}
	for _, pattern := range r.forbid {
		c.forbid = append(c.forbid, compile(pattern, context))
	}
	for _, e := range r.except {
		c.except = append(c.except, struct{ files, imports *regexp.Regexp }{compile(e.files, context),
			compile(e.imports, context)})
	}
	return c
}

func compile(pattern, context string) *regexp.Regexp {
	if pattern == "" {
		pattern = "..."
	}
	expression := regexp.QuoteMeta(strings.ReplaceAll(pattern, "{context}", context))
	if under, ok := strings.CutSuffix(expression, `/\.\.\.`); ok {
		expression = under + `(/.*)?`
	}
	expression = strings.NewReplacer(`\.\.\.`, `.*`, `\*`, `[^/]*`).Replace(expression)
	return regexp.MustCompile("^" + expression + "$")
}

func matching(s string) func(*regexp.Regexp) bool {
	return func(r *regexp.Regexp) bool { return r.MatchString(s) }
}

// TestImportRulesReport has an import that breaks each rule, and imports that break none.
func TestImportRulesReport(t *testing.T) {
	t.Parallel()
	const (
		port    = "spectral/internal/core/events"
		adapter = "spectral/" + adapter
		driver  = "github.com/jackc/pgx/v5"
		events  = "spectral/internal/worlds/contracts/events"
	)
	cases := []struct{ file, imported, breaks string }{
		{"internal/platform/application/a.go", port, ""},
		{"internal/platform/application/a_test.go", "spectral/internal/platform/application", ""},
		{"internal/worldsmith/a.go", "spectral/internal/worlds/domain", ""},
		{"internal/core/events/tx.go", driver, ""},
		{"internal/app/cli/a.go", "go.uber.org/fx", ""},
		{"internal/app/a_test.go", port + "/eventstest", ""},
		{"tests/contracts/a_test.go", events, ""},
		{"internal/worlds/infrastructure/postgres/a.go", "spectral/internal/worlds/infrastructure/postgres/worldsdb", ""},

		{"internal/worlds/infrastructure/events/a_test.go", "spectral/internal/platform/domain", "contexts"},
		{"internal/core/retention/a.go", "spectral/internal/worlds/domain", "core"},
		{"internal/core/events/a.go", adapter, "ports"},
		{"internal/worlds/domain/deep/a.go", "database/sql", "domain"},
		{"internal/worlds/application/a.go", "spectral/internal/worlds/infrastructure/postgres", "application"},
		{"internal/worlds/contracts/events/a.go", "spectral/internal/worlds/domain", "contract shapes"},
		{"internal/platform/application/a.go", events, "contexts, contracts"},
		{"tests/integration/a_test.go", "go.uber.org/fx", "fx"},
		{"internal/core/retention/a.go", "github.com/jackc/pgx/v5/pgxpool", "pgx"},
		{"internal/worlds/infrastructure/events/a.go", "github.com/nats-io/nats.go/jetstream", "NATS"},
		{"internal/core/retention/a.go", port + "/infrastructure/jetstream", "adapter: jetstream"},
		{"internal/app/cli/a.go", driver + "/pgxpool", "command line without SQL"},
		{"internal/app/top/a.go", "charm.land/bubbletea/v2", ""},
		{"internal/app/top/a.go", "spectral/internal/app/cli", "terminal view"},
		{"internal/app/cli/a.go", "charm.land/bubbletea/v2", "terminals"},
		{"internal/app/doctor/a.go", driver, "doctor without SQL"},
		{"internal/app/console/a.go", "spectral/internal/core/events/infrastructure/postgres/pgtx", "console"},
		{"cmd/workers/a.go", "github.com/spf13/pflag", "cobra"},
		{"internal/app/a.go", adapter + "/coredb", "core's generated queries"},
		{"internal/app/doctor/a.go", adapter + "/doctordb", ""},
		{"internal/app/cli/a.go", adapter + "/doctordb", "doctor's generated queries"},
		{"internal/core/events/infrastructure/postgres/lease/a.go", adapter + "/dispatch", ""},
		{"internal/core/events/infrastructure/postgres/operator/a.go", adapter + "/publish", "adapter: operator"},
		{"internal/platform/infrastructure/events/a.go", adapter + "/worker", "adapter: worker, contexts"},
		{"internal/worlds/infrastructure/events/a.go", "spectral/internal/worlds/infrastructure/postgres/worldsdb",
			"a context's generated queries"},
		{"internal/core/events/infrastructure/postgres/a_test.go", "spectral/internal/app", "core, app"},
		{"cmd/workers/a.go", "spectral/internal/app", "cmd"},
		{"internal/app/embeddedpg/a.go", port, "embedded Postgres"},
		{"internal/app/embeddednats/a.go", port, "embedded NATS"},
		{"internal/core/retention/a.go", "spectral/db", "core, migrations"},
		{"internal/app/a_test.go", "spectral/tests/pgtest", "tests"},
		{"internal/app/a.go", port + "/eventstest", "tests of events"},
	}
	for i, name := range adapterOrder[1 : len(adapterOrder)-1] {
		before := "internal/core/events/infrastructure/postgres/" + adapterOrder[i] + "/a.go"
		cases = append(cases, struct{ file, imported, breaks string }{before, adapter + "/" + name,
			"adapter: " + adapterOrder[i]})
	}
	cases = append(cases, struct{ file, imported, breaks string }{
		"internal/core/events/infrastructure/postgres/maintenance/a.go", adapter + "/worker",
		"adapter: maintenance, adapter: worker"})
	broken := make(map[string]bool)
	for _, c := range cases {
		imports := readImports(t, fstest.MapFS{c.file: goSource("package a", c.imported)})
		violations, _ := checkImports(imports, importRules)
		var got []string
		for _, v := range violations {
			got = append(got, v.rule.name)
			broken[v.rule.name] = true
		}
		if strings.Join(got, ", ") != c.breaks {
			t.Errorf("%s imports %s: breaks the rules %q, want %q", c.file, c.imported, got, c.breaks)
		}
	}
	for _, r := range importRules {
		if !broken[r.name] {
			t.Errorf("no case here breaks the rule %q", r.name)
		}
	}
}

func TestStaleImportRulesAreReported(t *testing.T) {
	t.Parallel()
	imports := readImports(t, fstest.MapFS{
		"internal/worlds/domain/a.go": goSource("package domain", "github.com/google/uuid"),
		"internal/app/a.go":           goSource("package app", "spectral/internal/worlds/domain", "go.uber.org/fx"),
	})
	_, stale := checkImports(imports, []rule{
		{
			name: "all of it in use", files: "...",
			forbid: []string{"spectral/internal/{context}/domain", "go.uber.org/...", "database/sql"},
			except: []exception{{files: "internal/app/..."}},
		},
		{name: "no file", files: "internal/{context}/domian/...", forbid: []string{"database/sql"}},
		{name: "an exception without use", files: "...", forbid: []string{"go.uber.org/..."},
			except: []exception{{files: "internal/app/..."}, {files: "cmd/..."}}},
		{name: "no package", files: "...", forbid: []string{"spectral/internal/{context}/applications/...",
			"go.ubre.org/..."}},
	})
	expect(t, stale, []string{`rule "no file" matches no file`, `the exception for files "cmd/..."`,
		"applications/... is no package that exists here", "go.ubre.org/... is no package"})
}

// Files with any build constraint are read, files of other modules are not.
func TestImportsAreReadFromEveryFileOfTheModule(t *testing.T) {
	t.Parallel()
	tree, read := fstest.MapFS{"go.mod": {}, "tests/bench/go.mod": {}}, []string{"a.go", "a_test.go", "b/c_windows.go"}
	for _, name := range append(read, "b/testdata/d.go", ".git/e.go", "_old/f.go", "tests/bench/g.go") {
		tree[name] = goSource("//go:build never\n\npackage a", "x")
	}
	var files []string
	for _, f := range readImports(t, tree) {
		files = append(files, f.file+strings.Join(f.imports, ""))
	}
	if want := []string{"a.gox", "a_test.gox", "b/c_windows.gox"}; !slices.Equal(files, want) {
		t.Errorf("read %q, want %q", files, want)
	}
}

// goSource is a file that begins with head and imports the given packages.
func goSource(head string, imports ...string) *fstest.MapFile {
	source := head + "\n"
	for _, imported := range imports {
		source += fmt.Sprintf("import _ %q\n", imported)
	}
	return &fstest.MapFile{Data: []byte(source)}
}
