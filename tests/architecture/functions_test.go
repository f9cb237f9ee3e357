package architecture_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"spectral/db"
)

// TestMigrationsHoldTheFunctions compares each function in the migrations with its source in db/functions. With -update
// it writes the migrations, and their edition.
func TestMigrationsHoldTheFunctions(t *testing.T) {
	t.Parallel()
	sources, err := filepath.Glob("../../db/functions/*.sql")
	if err != nil || len(sources) == 0 {
		t.Fatalf("%d sources of functions: %v", len(sources), err)
	}
	places := map[string]int{}
	migrations, err := filepath.Glob("../../db/migrations/*.sql")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range migrations {
		have, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		want := db.WriteFunctions(string(have), func(name string) string {
			places[name]++
			source, err := os.ReadFile("../../db/functions/" + name + ".sql")
			if err != nil {
				t.Errorf("%s names a function without source: %v", file, err)
			}
			return string(source)
		})
		if want == string(have) {
			continue
		}
		if !*update {
			t.Errorf("%s does not have its functions as db/functions has them: run `make generate`", file)
		} else if err := os.WriteFile(file, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	edition, err := db.Edition(os.DirFS("../../db"))
	if err != nil {
		t.Fatal(err)
	}
	const first = "../../db/migrations/00001_core_roles.sql"
	text, err := os.ReadFile(first)
	if err != nil {
		t.Fatal(err)
	}
	switch want := db.WriteEdition(string(text), edition); {
	case want == string(text):
	case !*update:
		t.Errorf("%s does not name the edition %s: run `make generate`", first, edition)
	default:
		if err := os.WriteFile(first, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for _, source := range sources {
		name := strings.TrimSuffix(filepath.Base(source), ".sql")
		text, err := os.ReadFile(source)
		if err != nil {
			t.Fatal(err)
		}
		if defined := definesFunction.FindAllStringSubmatch(string(text), -1); len(defined) != 1 || defined[0][1] != name {
			t.Errorf("%s must define the function %s, and no other", source, name)
		}
		if places[name] != 1 {
			t.Errorf("db/functions/%[1]s.sql is in %[2]d migrations: add to one of them, in a goose statement, the line\n"+
				"-- db/functions/%[1]s.sql", name, places[name])
		}
	}
}

var definesFunction = regexp.MustCompile(`(?m)^create (?:or replace )?function \w+\.(\w+)`)
