//go:build heavy

package contracts_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var (
	block = regexp.MustCompile("(?ms)^```(go|diff) (\\S+)\n(.*?)^```$")
	hunk  = regexp.MustCompile(`(?m)^@@.*\n`)
)

// What the scaffold writes passes every test at once. With the changes of docs/adding-an-event.md, which runs it, and
// of docs/leased-work.md, which goes on from there, it compiles.
func TestScaffoldedEventsPassAllTests(t *testing.T) {
	t.Parallel()
	tree := t.TempDir()
	entries, err := os.ReadDir(root)
	must(t, err)
	for _, entry := range entries {
		switch from, to := filepath.Join(root, entry.Name()), filepath.Join(tree, entry.Name()); {
		case entry.Name() == ".git" || entry.Name() == "bin":
		case entry.IsDir():
			must(t, os.CopyFS(to, os.DirFS(from)))
		default:
			text, err := os.ReadFile(from)
			must(t, err)
			must(t, os.WriteFile(to, text, 0o644))
		}
	}
	for _, arguments := range [][]string{
		{"platform.memory.retired", "worlds", "memory_id:uuid version:int retired_at:time"},
		{"worlds.harbour.closed", "platform", "name:text depth:number tidal:bool"},
	} {
		in(t, tree, "go", append([]string{"run", "./internal/dev", "event"}, arguments...)...)
	}
	in(t, tree, "make", "generate")
	const arrives = "^Test(MemoryRetired|HarbourClosed)Arrives$"
	in(t, tree, "go", "test", "./tests/architecture", "./tests/contracts")
	in(t, tree, "go", "test", "./tests/sql", "-run",
		"^(TestSchema|TestPrivileges|TestDownLosesNothing|TestEveryTableHasAPrimaryKey)$")
	in(t, tree, "go", "test", "./tests/integration", "-run", arrives)
	if unformatted := in(t, tree, "gofmt", "-l", "internal", "tests"); unformatted != "" {
		t.Errorf("gofmt would change\n%s", unformatted)
	}

	for _, page := range []string{"adding-an-event.md", "leased-work.md"} {
		text, err := os.ReadFile(filepath.Join(root, "docs", page))
		must(t, err)
		blocks := block.FindAllStringSubmatch(string(text), -1)
		if len(blocks) < 2 {
			t.Fatalf("docs/%s has %d blocks of code that name a file", page, len(blocks))
		}
		for _, b := range blocks {
			path, code := filepath.Join(tree, b[2]), b[3]
			if b[1] == "diff" {
				have, err := os.ReadFile(path)
				must(t, err)
				code = changed(t, string(have), "docs/"+page+": "+b[2], code)
			}
			must(t, os.MkdirAll(filepath.Dir(path), 0o755))
			must(t, os.WriteFile(path, []byte(code), 0o644))
		}
		in(t, tree, "go", "vet", "./internal/...", "./tests/integration")
	}
	in(t, tree, "go", "test", "./tests/integration", "-run", arrives)
}

// changed makes the changes that a page shows: each replaces its lines with a minus and those around them.
func changed(t *testing.T, text, place, diff string) string {
	t.Helper()
	for _, lines := range hunk.Split(diff, -1) {
		var before, after strings.Builder
		for line := range strings.Lines(lines) {
			if line[0] != '+' {
				before.WriteString(line[1:])
			}
			if line[0] != '-' {
				after.WriteString(line[1:])
			}
		}
		if n := strings.Count(text, before.String()); n != 1 {
			t.Fatalf("%s has these lines %d times:\n%s", place, n, before.String())
		}
		text = strings.Replace(text, before.String(), after.String(), 1)
	}
	return text
}

// in runs a command in a folder and returns what it prints. The test fails if the command does.
func in(t *testing.T, folder, name string, arguments ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), name, arguments...)
	cmd.Dir = folder
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(arguments, " "), err, out)
	}
	return string(out)
}
