//go:build heavy

package contracts_test

import (
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/pressly/goose/v3"

	"spectral/db"
)

var block = regexp.MustCompile("(?ms)^```(go|sql|diff) ?(\\S*)\n(.*?)^```$")

// TestAddingAnEvent does what docs/adding-an-event.md says in a copy of the tree, and then what docs/leased-work.md does.
func TestAddingAnEvent(t *testing.T) {
	t.Parallel()
	tree := copyTree(t)
	for _, page := range []struct {
		name           string
		files, changes int
	}{{"adding-an-event.md", 6, 5}, {"leased-work.md", 3, 6}} {
		if files, changes := follow(t, tree, page.name); files != page.files || changes != page.changes {
			t.Fatalf("%s has %d files and %d changes, want %d and %d", page.name, files, changes, page.files, page.changes)
		}
		run(t, tree, "", "make", "generate")
		run(t, tree, "", "go", "vet", "./...")
		run(t, tree, "", "go", "test", "./tests/architecture", "./tests/contracts")
		run(t, tree, "", "go", "test", "./tests/database", "-run", "TestSchema$|TestPrivileges$|TestDownLosesNothing/worlds.retired_memories")
		run(t, tree, "", "go", "test", "./tests/integration", "-run", "Memory")
	}
}

// follow makes the files and the changes of a page in tree, and says how many they were.
func follow(t *testing.T, tree, page string) (files, changes int) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, "docs", page))
	must(t, err)
	for _, b := range block.FindAllStringSubmatch(string(text), -1) {
		kind, file, text := b[1], b[2], b[3]
		if kind == "diff" {
			changes++
			run(t, tree, text, "git", "apply", "--whitespace=nowarn", "-")
			continue
		}
		files++
		file = strings.Replace(file, "NNNNN", nextMigration(t), 1)
		must(t, os.MkdirAll(filepath.Dir(filepath.Join(tree, file)), 0o755))
		must(t, os.WriteFile(filepath.Join(tree, file), []byte(text), 0o644))
	}
	return files, changes
}

// copyTree copies what git knows of, and what is new, to a folder of the test's own.
func copyTree(t *testing.T) string {
	t.Helper()
	to := t.TempDir()
	list := exec.Command("git", "-c", "safe.directory=*", "ls-files", "--cached", "--others", "--exclude-standard", "-z")
	list.Dir = root
	out, err := list.Output()
	must(t, err)
	for name := range strings.SplitSeq(strings.TrimSuffix(string(out), "\x00"), "\x00") {
		text, err := os.ReadFile(filepath.Join(root, name))
		if os.IsNotExist(err) {
			continue // deleted, and not committed
		}
		must(t, err)
		must(t, os.MkdirAll(filepath.Dir(filepath.Join(to, name)), 0o755))
		must(t, os.WriteFile(filepath.Join(to, name), text, 0o644))
	}
	return to
}

// nextMigration is the number that a new one gets.
func nextMigration(t *testing.T) string {
	t.Helper()
	names, err := fs.Glob(db.Migrations, "migrations/*.sql")
	must(t, err)
	newest, err := goose.NumericComponent(slices.Max(names))
	must(t, err)
	return fmt.Sprintf("%05d", newest+1)
}

func run(t *testing.T, dir, input, name string, args ...string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), name, args...)
	cmd.Dir, cmd.Stdin = dir, strings.NewReader(input)
	cmd.Env = append(os.Environ(), "GOFLAGS="+strings.TrimSpace(os.Getenv("GOFLAGS")+" -buildvcs=false"))
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
}
