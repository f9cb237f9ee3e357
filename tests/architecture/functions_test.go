package architecture_test

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"spectral/db"
)

// functionBlock is a function's place in a migration: goose runs it as one statement.
var functionBlock = regexp.MustCompile(`(?s)-- \+goose StatementBegin\n-- db/functions/(\w+)\.sql\n.*?-- \+goose StatementEnd`)

// TestMigrationsHoldTheFunctions compares each function in the migrations with its source in db/functions. With -update it
// writes the migrations, and their edition. The header comment of a source stays out of the migration: its file name says where to read it.
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
		want := functionBlock.ReplaceAllStringFunc(string(have), func(block string) string {
			name := functionBlock.FindStringSubmatch(block)[1]
			places[name]++
			source, err := os.ReadFile("../../db/functions/" + name + ".sql")
			if err != nil {
				t.Errorf("%s has a block of a function without source: %v", file, err)
				return block
			}
			return fmt.Sprintf("-- +goose StatementBegin\n-- db/functions/%s.sql\n%s-- +goose StatementEnd", name, withoutHeader(string(source)))
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
		if places[name] != 1 {
			t.Errorf("db/functions/%[1]s.sql is in %[2]d migrations: give one of them the lines\n-- +goose StatementBegin\n-- db/functions/%[1]s.sql\n-- +goose StatementEnd", name, places[name])
		}
	}
}

// withoutHeader leaves out the comment at the top of a function's source.
func withoutHeader(source string) string {
	for strings.HasPrefix(source, "--") {
		_, source, _ = strings.Cut(source, "\n")
	}
	return source
}
