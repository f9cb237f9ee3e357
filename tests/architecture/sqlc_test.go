package architecture_test

import (
	"fmt"
	"io/fs"
	"maps"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/fstest"

	"go.yaml.in/yaml/v3"
)

func TestSQLCOwnership(t *testing.T) {
	t.Parallel()
	report(t, checkSQLC(t, tree()))
}

// sqlcConfig is the part of sqlc.yaml that the test reads.
type sqlcConfig struct {
	SQL []sqlcBlock `yaml:"sql"`
}

type sqlcBlock struct {
	Queries oneOrMore `yaml:"queries"`
	Schema  oneOrMore `yaml:"schema"`
	Gen     struct {
		Go struct {
			Package string `yaml:"package"`
			Out     string `yaml:"out"`
		} `yaml:"go"`
	} `yaml:"gen"`
}

// oneOrMore is a YAML string or list of strings.
type oneOrMore []string

func (s *oneOrMore) UnmarshalYAML(node *yaml.Node) error {
	if node.Kind == yaml.ScalarNode {
		*s = oneOrMore{node.Value}
		return nil
	}
	return node.Decode((*[]string)(s))
}

func readSQLC(t *testing.T, tree fs.FS) (config sqlcConfig) {
	t.Helper()
	text, err := fs.ReadFile(tree, "sqlc.yaml")
	must(t, err)
	must(t, yaml.Unmarshal(text, &config))
	return config
}

var migrationForm = regexp.MustCompile(`^(\d{5})_([a-z]+)_[a-z0-9_]+\.sql$`)

// checkSQLC checks that each owner of tables (the contexts and core), and the doctor, which reads core's, has one block
// that reads exactly its migrations and queries and writes into its adapter.
func checkSQLC(t *testing.T, tree fs.FS) (problems []string) {
	t.Helper()
	fail := func(format string, args ...any) { problems = append(problems, fmt.Sprintf(format, args...)) }
	owners := append([]string{"core"}, contexts...)
	const home = "internal/core/events/infrastructure/postgres"
	homes, tablesOf := map[string]string{"core": home, "doctor": home}, map[string]string{"core": "core", "doctor": "core"}
	for _, context := range contexts {
		homes[context], tablesOf[context] = "internal/"+context+"/infrastructure/postgres", context
	}

	migrations, faults := readMigrations(t, tree, owners)
	problems = append(problems, faults...)

	blocks := make(map[string]bool)
	for _, block := range readSQLC(t, tree).SQL {
		owner := ""
		for o := range homes {
			if slices.Equal(block.Queries, oneOrMore{"db/queries/" + o}) {
				owner = o
			}
		}
		if owner == "" {
			fail("sqlc.yaml: a block reads the queries %q: want db/queries/<context>, one block each", block.Queries)
			continue
		}
		if blocks[owner] {
			fail("sqlc.yaml: %s has two blocks", owner)
		}
		blocks[owner] = true
		if want := homes[owner] + "/" + owner + "db"; block.Gen.Go.Out != want || block.Gen.Go.Package != path.Base(want) {
			fail("sqlc.yaml: the block of %s writes package %q into %s, want %s", owner, block.Gen.Go.Package, block.Gen.Go.Out,
				want)
		}
		reads := make(map[string]bool)
		for _, pattern := range block.Schema {
			matches, err := fs.Glob(tree, pattern)
			must(t, err)
			for _, file := range matches {
				reads[file] = true
			}
		}
		for _, file := range slices.Sorted(maps.Keys(reads)) {
			if migrations[file] != tablesOf[owner] {
				fail("sqlc.yaml: the block of %s reads %s, which is not its migration: its queries could reach another "+
					"context's tables", owner, file)
			}
		}
		for _, file := range slices.Sorted(maps.Keys(migrations)) {
			if migrations[file] == tablesOf[owner] && !reads[file] {
				fail("sqlc.yaml: the block of %s does not read %s", owner, file)
			}
		}
	}
	for _, owner := range slices.Sorted(maps.Keys(homes)) {
		if !blocks[owner] {
			fail("sqlc.yaml: %s has no block", owner)
		}
	}
	must(t, fs.WalkDir(tree, "db/queries", func(name string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		if !blocks[path.Base(path.Dir(name))] || path.Dir(path.Dir(name)) != "db/queries" || path.Ext(name) != ".sql" {
			fail("%s is read by no block of sqlc.yaml: want db/queries/<context>/<table>.sql", name)
		}
		return nil
	}))
	return problems
}

// readMigrations returns the owner of each migration, and the migrations whose names have no owner.
func readMigrations(t *testing.T, tree fs.FS, owners []string) (owned map[string]string, problems []string) {
	t.Helper()
	entries, err := fs.ReadDir(tree, "db/migrations")
	must(t, err)
	owned = make(map[string]string)
	next := 1
	for _, e := range entries {
		parts := migrationForm.FindStringSubmatch(e.Name())
		if parts == nil || !slices.Contains(owners, parts[2]) {
			problems = append(problems, fmt.Sprintf("db/migrations/%s: want NNNNN_<context>_<what>.sql, with a context of %s",
				e.Name(), strings.Join(owners, ", ")))
			continue
		}
		owned["db/migrations/"+e.Name()] = parts[2]
		number, err := strconv.Atoi(parts[1])
		must(t, err)
		if number != next {
			problems = append(problems,
				fmt.Sprintf("db/migrations/%s: want number %05d: numbers are consecutive and used once", e.Name(), next))
		}
		next = number + 1
	}
	return owned, problems
}

func TestSQLCProblemsAreReported(t *testing.T) {
	t.Parallel()
	const good = `
sql:
  - queries: db/queries/core
    schema: ["db/migrations/*_core_*.sql"]
    gen: {go: &go {package: coredb, out: internal/core/events/infrastructure/postgres/coredb, sql_package: pgx/v5}}
  - queries: db/queries/doctor
    schema: ["db/migrations/*_core_*.sql"]
    gen: {go: {<<: *go, package: doctordb, out: internal/core/events/infrastructure/postgres/doctordb}}
  - queries: [db/queries/platform]
    schema: db/migrations/*_platform_*.sql
    gen: {go: {<<: *go, package: platformdb, out: internal/platform/infrastructure/postgres/platformdb}}
  - queries: db/queries/worlds
    schema: ["db/migrations/*_worlds_*.sql"]
    gen: {go: {<<: *go, package: worldsdb, out: internal/worlds/infrastructure/postgres/worldsdb}}
`
	file := func(name string) func(fstest.MapFS) {
		return func(m fstest.MapFS) { m[name] = &fstest.MapFile{} }
	}
	configured := func(was, is string) func(fstest.MapFS) {
		return func(m fstest.MapFS) {
			if !strings.Contains(good, was) {
				t.Errorf("the configuration does not contain %q", was)
			}
			m["sqlc.yaml"] = &fstest.MapFile{Data: []byte(strings.Replace(good, was, is, 1))}
		}
	}
	for name, c := range map[string]struct {
		change func(fstest.MapFS)
		want   []string
	}{
		"nothing": {func(fstest.MapFS) {}, nil},
		"another's migrations": {configured(`db/migrations/*_platform_*.sql`,
			`[db/migrations/*_platform_*.sql, db/migrations/*_worlds_*.sql]`), []string{
			"the block of platform reads db/migrations/00002_worlds_cards.sql",
		}},
		"a migration unread": {configured(`"db/migrations/*_core_*.sql"`, `db/migrations`), []string{
			"the block of core reads db/migrations, which",
			"the block of core does not read db/migrations/00001_core_outbox.sql"}},
		"two blocks": {configured("db/queries/worlds", "db/queries/platform"),
			[]string{"platform has two blocks", "writes package \"worldsdb\"",
				"reads db/migrations/00002_worlds", "does not read db/migrations/00003_platform", "worlds has no block",
				"db/queries/worlds/cards.sql is read by no block"}},
		"all queries": {configured("db/queries/worlds", "db/queries"),
			[]string{`reads the queries ["db/queries"]`, "worlds has no block",
				"db/queries/worlds/cards.sql is read by no block"}},
		"into another context": {configured("out: internal/worlds", "out: internal/platform"),
			[]string{"the block of worlds writes package \"worldsdb\" into internal/platform"}},
		"under another name": {configured("package: worldsdb", "package: db"),
			[]string{"the block of worlds writes package \"db\""}},
		"queries too deep": {file("db/queries/worlds/core/a.sql"),
			[]string{"db/queries/worlds/core/a.sql is read by no block"}},
		"a migration of none": {file("db/migrations/00004_agents_tasks.sql"),
			[]string{"00004_agents_tasks.sql: want NNNNN_<context>_<what>.sql"}},
		"a number used twice": {file("db/migrations/00003_core_a.sql"),
			[]string{"00003_platform_cards.sql: want number 00004"}},
	} {
		small := fstest.MapFS{"sqlc.yaml": {Data: []byte(good)}}
		for _, name := range []string{"migrations/00001_core_outbox", "migrations/00002_worlds_cards",
			"migrations/00003_platform_cards", "queries/core/outbox", "queries/platform/cards", "queries/worlds/cards"} {
			small["db/"+name+".sql"] = &fstest.MapFile{}
		}
		t.Run(name, func(t *testing.T) {
			c.change(small)
			expect(t, checkSQLC(t, small), c.want)
		})
	}
}
