package architecture_test

import (
	"fmt"
	"go/parser"
	"go/token"
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
	imports, err := readImports(tree())
	if err != nil {
		t.Fatal(err)
	}
	violations, stale := checkImports(imports, importRules)
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

func readImports(tree fs.FS) ([]fileImports, error) {
	files, err := goFiles(tree)
	if err != nil {
		return nil, err
	}
	all := make([]fileImports, 0, len(files))
	for _, name := range files {
		source, err := fs.ReadFile(tree, name)
		if err != nil {
			return nil, err
		}
		parsed, err := parser.ParseFile(token.NewFileSet(), name, source, parser.ImportsOnly)
		if err != nil {
			return nil, err
		}
		f := fileImports{file: name}
		for _, spec := range parsed.Imports {
			imported, err := strconv.Unquote(spec.Path.Value)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", name, err)
			}
			f.imports = append(f.imports, imported)
		}
		all = append(all, f)
	}
	return all, nil
}

// violation is an import that a rule forbids.
type violation struct {
	file, imported string
	rule           rule
}

func (v violation) String() string {
	return fmt.Sprintf("%s imports %s: %s (rule %q)", v.file, v.imported, v.rule.reason, v.rule.name)
}

// checkImports returns what breaks a rule, and what in the rules has gone stale.
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
				stale = append(stale, fmt.Sprintf("rule %q: nobody uses the exception for files %q, imports %q: remove it", r.name, e.files, e.imports))
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

// known reports whether a forbidden pattern can match at all: a folder of ours, or a module that
// somebody does import. The standard library is taken on trust.
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

// contexts are those that the rule is to be read with.
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
		c.except = append(c.except, struct{ files, imports *regexp.Regexp }{compile(e.files, context), compile(e.imports, context)})
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

// Each case is a tree of one file and the rules that it breaks; none, where the import is allowed.
func TestImportRulesReport(t *testing.T) {
	t.Parallel()
	const (
		port    = "spectral/internal/core/events"
		adapter = "spectral/internal/core/events/infrastructure/postgres"
		driver  = "github.com/jackc/pgx/v5"
	)
	cases := []struct {
		file     string
		imported string
		breaks   []string
	}{
		{"internal/platform/application/a.go", port, nil},
		{"internal/platform/application/a.go", "spectral/internal/platform/domain", nil},
		{"internal/platform/application/a_test.go", "spectral/internal/platform/application", nil},
		{"internal/platform/infrastructure/events/a.go", "spectral/internal/worlds/domain", []string{"contexts"}},
		{"internal/worlds/infrastructure/events/a_test.go", "spectral/internal/platform/domain", []string{"contexts"}},
		{"internal/worlds/infrastructure/postgres/a.go", adapter, []string{"contexts"}},
		{"internal/worlds/infrastructure/postgres/a.go", "spectral/internal/core/retention", []string{"contexts"}},
		{"internal/worldsmith/a.go", "spectral/internal/worlds/domain", nil},

		{"internal/core/retention/a.go", port, nil},
		{"internal/core/retention/a.go", "spectral/internal/worlds/domain", []string{"core"}},
		{"internal/core/events/infrastructure/postgres/a_test.go", "spectral/internal/app", []string{"core", "app"}},
		{"internal/core/events/a_test.go", port, nil},
		{"internal/core/events/a.go", adapter, []string{"ports"}},

		{"internal/worlds/domain/a.go", driver, []string{"domain", "pgx"}},
		{"internal/worlds/domain/deep/a.go", "database/sql", []string{"domain"}},
		{"internal/worlds/domain/a_test.go", "database/sql/driver", []string{"domain"}},
		{"internal/worlds/domain/a.go", "github.com/pressly/goose/v3", []string{"domain"}},
		{"internal/worlds/domain/a.go", "go.uber.org/fx", []string{"domain", "fx"}},
		{"internal/worlds/domain/a.go", "spectral/internal/worlds/application", []string{"domain"}},
		{"internal/worlds/domain/a.go", "spectral/internal/worlds/infrastructure/postgres", []string{"domain"}},
		{"internal/worlds/domain/a.go", "github.com/google/uuid", nil},

		{"internal/worlds/application/a.go", driver, []string{"application", "pgx"}},
		{"internal/worlds/application/a.go", "spectral/internal/worlds/infrastructure/postgres", []string{"application"}},

		{"internal/worlds/contracts/events/a.go", port, nil},
		{"internal/worlds/contracts/events/a.go", "spectral/internal/worlds/domain", []string{"contract shapes"}},
		{"internal/worlds/application/a.go", "spectral/internal/worlds/contracts/events", nil},
		{"internal/app/demo/a.go", "spectral/internal/worlds/contracts/events", nil},
		{"tests/contracts/a_test.go", "spectral/internal/worlds/contracts/events", nil},
		{"internal/platform/infrastructure/events/a.go", "spectral/internal/worlds/contracts/events", []string{"contexts", "contracts"}},
		{"cmd/other/a.go", "spectral/internal/worlds/contracts/events", []string{"contracts", "cmd"}},
		{"internal/worlds/application/a.go", "spectral/internal/worlds/contracts/protocols", nil},
		{"internal/worlds/contracts/protocols/a.go", "spectral/internal/worlds/domain", []string{"contract shapes"}},
		{"internal/platform/application/a.go", "spectral/internal/worlds/contracts/protocols", []string{"contexts", "contracts"}},
		{"internal/app/a.go", "spectral/internal/worlds/contracts/protocols", nil},

		{"internal/app/cli/a.go", "go.uber.org/fx", nil},
		{"internal/core/events/infrastructure/postgres/a.go", "go.uber.org/fx/fxevent", []string{"fx"}},
		{"tests/integration/a_test.go", "go.uber.org/fx", []string{"fx"}},

		{"internal/core/events/tx.go", driver, nil},
		{"internal/core/events/publisher.go", driver, []string{"pgx"}},
		{"internal/core/retention/a.go", "github.com/jackc/pgx/v5/pgxpool", []string{"pgx"}},
		{"internal/platform/infrastructure/postgres/a.go", driver, nil},
		{"cmd/workers/a.go", driver, []string{"pgx"}},

		{"internal/app/cli/a.go", "github.com/spf13/cobra", nil},
		{"internal/app/demo/a.go", "github.com/spf13/cobra", []string{"cobra"}},
		{"cmd/workers/a.go", "github.com/spf13/pflag", []string{"cobra"}},

		{"internal/core/events/infrastructure/postgres/a.go", adapter + "/coredb", nil},
		{"internal/core/events/infrastructure/nats/a.go", adapter + "/coredb", []string{"core's generated queries"}},
		{"internal/app/a.go", adapter + "/coredb", []string{"core's generated queries"}},
		{"internal/worlds/infrastructure/postgres/a.go", "spectral/internal/worlds/infrastructure/postgres/worldsdb", nil},
		{
			"internal/worlds/infrastructure/events/a.go", "spectral/internal/worlds/infrastructure/postgres/worldsdb",
			[]string{"a context's generated queries"},
		},
		{
			"internal/platform/infrastructure/postgres/a.go", "spectral/internal/worlds/infrastructure/postgres/worldsdb",
			[]string{"contexts", "a context's generated queries"},
		},

		{"tests/integration/a_test.go", "spectral/internal/app/embeddedpg", nil},
		{"db/a.go", "spectral/internal/app", []string{"app"}},
		{"cmd/workers/a.go", "spectral/internal/app/cli", nil},
		{"cmd/workers/a.go", "spectral/internal/app", []string{"cmd"}},
		{"internal/app/embeddedpg/a.go", port, []string{"embedded Postgres"}},
		{"internal/app/a.go", "spectral/db", nil},
		{"tests/sql/a_test.go", "spectral/db", nil},
		{"internal/core/retention/a.go", "spectral/db", []string{"core", "migrations"}},

		{"tests/integration/a_test.go", "spectral/tests/pgtest", nil},
		{"internal/app/a_test.go", "spectral/tests/pgtest", []string{"tests"}},

		{"internal/app/a.go", port + "/eventstest", []string{"tests of events"}},
		{"internal/app/a_test.go", port + "/eventstest", nil},
		{"tests/pgtest/a.go", port + "/eventstest", nil},
	}
	broken := make(map[string]bool)
	for _, c := range cases {
		for _, name := range c.breaks {
			broken[name] = true
		}
		t.Run(c.file+" "+c.imported, func(t *testing.T) {
			t.Parallel()
			imports, err := readImports(fstest.MapFS{c.file: goSource("package a", c.imported)})
			if err != nil {
				t.Fatal(err)
			}
			violations, _ := checkImports(imports, importRules)
			var got []string
			for _, v := range violations {
				got = append(got, v.rule.name)
				for _, part := range []string{c.file, c.imported, v.rule.reason} {
					if !strings.Contains(v.String(), part) {
						t.Errorf("%q does not name %q", v, part)
					}
				}
			}
			if !slices.Equal(got, c.breaks) {
				t.Errorf("breaks the rules %q, want %q", got, c.breaks)
			}
		})
	}
	for _, r := range importRules {
		if !broken[r.name] {
			t.Errorf("no case here breaks the rule %q", r.name)
		}
	}
}

func TestStaleImportRulesAreReported(t *testing.T) {
	t.Parallel()
	small := fstest.MapFS{
		"internal/worlds/domain/a.go": goSource("package domain", "github.com/google/uuid"),
		"internal/app/a.go":           goSource("package app", "spectral/internal/worlds/domain", "go.uber.org/fx"),
	}
	cases := []struct {
		name string
		rule rule
		want []string
	}{
		{
			"all of it in use",
			rule{
				name: "r", files: "...", forbid: []string{"spectral/internal/{context}/domain", "go.uber.org/...", "database/sql"},
				except: []exception{{files: "internal/app/..."}},
			},
			nil,
		},
		{"no file", rule{name: "r", files: "internal/{context}/domian/...", forbid: []string{"database/sql"}}, []string{`rule "r" matches no file`}},
		{
			"an exception for nobody",
			rule{
				name: "r", files: "...", forbid: []string{"go.uber.org/..."},
				except: []exception{{files: "internal/app/..."}, {files: "cmd/..."}},
			},
			[]string{`nobody uses the exception for files "cmd/..."`},
		},
		{"a folder that is not there", rule{name: "r", files: "...", forbid: []string{"spectral/internal/{context}/applications/..."}}, []string{"is no package that exists here"}},
		{"a module that nobody imports", rule{name: "r", files: "...", forbid: []string{"go.ubre.org/..."}}, []string{"is no package that exists here"}},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			imports, err := readImports(small)
			if err != nil {
				t.Fatal(err)
			}
			_, stale := checkImports(imports, []rule{c.rule})
			expect(t, stale, c.want)
		})
	}
}

// Files that the build leaves out are read all the same; what belongs to another module is not.
func TestImportsAreReadFromEveryFileOfTheModule(t *testing.T) {
	t.Parallel()
	imports, err := readImports(fstest.MapFS{
		"go.mod":             {},
		"a.go":               goSource("package a", "x"),
		"a_test.go":          goSource("package a_test", "x"),
		"tagged.go":          goSource("//go:build never\n\npackage a", "x"),
		"b/c_windows.go":     goSource("package b", "x"),
		"b/testdata/d.go":    goSource("package d", "x"),
		".git/e.go":          goSource("package e", "x"),
		"_old/f.go":          goSource("package f", "x"),
		"tests/bench/g.go":   goSource("package g", "x"),
		"tests/bench/go.mod": {},
	})
	if err != nil {
		t.Fatal(err)
	}
	var files []string
	for _, f := range imports {
		if !slices.Equal(f.imports, []string{"x"}) {
			t.Errorf("%s imports %q, want x", f.file, f.imports)
		}
		files = append(files, f.file)
	}
	if want := []string{"a.go", "a_test.go", "b/c_windows.go", "tagged.go"}; !slices.Equal(files, want) {
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
