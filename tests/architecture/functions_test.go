package architecture_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"spectral/db"
)

// TestMigrationsHoldTheFunctions compares each function in the migrations with its source in db/functions, and the
// edition with the migrations. With -update it writes the migrations, as `go run ./internal/dev functions` does.
func TestMigrationsHoldTheFunctions(t *testing.T) {
	t.Parallel()
	if *update {
		must(t, db.WriteMigrations("../../db"))
	}
	sources, err := filepath.Glob("../../db/functions/*.sql")
	if err != nil || len(sources) == 0 {
		t.Fatalf("%d sources of functions: %v", len(sources), err)
	}
	places := map[string]int{}
	migrations, err := filepath.Glob("../../db/migrations/*.sql")
	must(t, err)
	edition, err := db.Edition(os.DirFS("../../db"))
	must(t, err)
	for i, file := range migrations {
		have, err := os.ReadFile(file)
		must(t, err)
		want := db.WriteFunctions(string(have), func(name string) string {
			places[name]++
			source, err := os.ReadFile("../../db/functions/" + name + ".sql")
			if err != nil {
				t.Errorf("%s names a function without source: %v", file, err)
			}
			return string(source)
		})
		if want != string(have) {
			t.Errorf("%s does not have its functions as db/functions has them: run `make generate`", file)
		}
		if i == 0 && db.WriteEdition(want, edition) != want {
			t.Errorf("%s does not name the edition %s: run `make generate`", file, edition)
		}
	}
	for _, source := range sources {
		name := strings.TrimSuffix(filepath.Base(source), ".sql")
		text, err := os.ReadFile(source)
		must(t, err)
		if defined := definesFunction.FindAllStringSubmatch(string(text), -1); len(defined) != 1 || defined[0][1] != name {
			t.Errorf("%s must define the function %s, and no other", source, name)
		}
		if places[name] != 1 {
			t.Errorf("db/functions/%[1]s.sql is in %[2]d migrations: add to one of them, in a goose statement, the line\n"+
				"create function <schema>.%[1]s", name, places[name])
		}
	}
}

var definesFunction = regexp.MustCompile(`(?m)^create (?:or replace )?function \w+\.(\w+)`)
