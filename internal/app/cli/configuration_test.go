package cli

import (
	"bytes"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

var update = flag.Bool("update", false, "write docs/configuration.md")

const (
	configurationPage = "../../../docs/configuration.md"
	commandsBegin     = "<!-- the commands: written by `make generate` -->\n"
	commandsEnd       = "<!-- end -->\n"
)

// ours returns our commands and groups of commands, without cobra's own.
func ours(t *testing.T) (commands []*cobra.Command) {
	t.Helper()
	var walk func(*cobra.Command)
	walk = func(c *cobra.Command) {
		for _, child := range c.Commands() {
			if child.Name() == "help" || child.Name() == "completion" {
				continue
			}
			commands = append(commands, child)
			walk(child)
		}
	}
	walk(rootCommand(Process{Getenv: func(string) string { return "" }}))
	if len(commands) < 8 {
		t.Fatalf("only %d commands were found", len(commands))
	}
	return commands
}

// The help says what each command does. Commands that are not groups have an example.
func TestEveryCommandHasHelp(t *testing.T) {
	t.Parallel()
	for _, c := range ours(t) {
		if c.Short == "" || c.Example == "" && !c.HasSubCommands() {
			t.Errorf("%s: Short and Example have to be there", c.CommandPath())
		}
		for line := range strings.Lines(c.Example) {
			if !strings.Contains(line, "workers "+strings.TrimPrefix(c.CommandPath(), "workers ")) &&
				!strings.HasPrefix(strings.TrimSpace(line), "|") {
				t.Errorf("%s: its example is of something else: %q", c.CommandPath(), line)
			}
		}
		c.Flags().VisitAll(func(f *pflag.Flag) {
			if f.Usage == "" {
				t.Errorf("%s --%s says nothing", c.CommandPath(), f.Name)
			}
		})
	}
}

func TestHelpFitsIntoEightyColumns(t *testing.T) {
	t.Parallel()
	all := ours(t)
	for _, c := range append(all, all[0].Root()) {
		var help bytes.Buffer
		if code, stderr := call(t, &help, append(strings.Fields(c.CommandPath())[1:], "--help")...); code != exitFine {
			t.Errorf("%s --help exits with %d: %s", c.CommandPath(), code, stderr)
		}
		for line := range strings.Lines(help.String()) {
			if line = strings.TrimSuffix(line, "\n"); utf8.RuneCountInString(line) > 80 {
				t.Errorf("%s --help: %q has %d columns", c.CommandPath(), line, utf8.RuneCountInString(line))
			}
		}
	}
}

// commandList returns the generated part of docs/configuration.md.
func commandList(t *testing.T) string {
	t.Helper()
	var s strings.Builder
	s.WriteString(commandsBegin)
	for _, c := range ours(t) {
		if c.HasSubCommands() && !c.NonInheritedFlags().HasFlags() { // a group: what is in it is listed
			continue
		}
		_, _ = fmt.Fprintf(&s, "\n### `%s`\n\n%s.\n", c.UseLine(), strings.TrimSuffix(c.Short, "."))
		var rows []string
		c.NonInheritedFlags().VisitAll(func(f *pflag.Flag) {
			kind := f.Value.Type()
			value := ""
			if kind != "bool" {
				value = " " + strings.ToUpper(kind)
			}
			standard := f.DefValue
			if standard != "" && standard != "[]" && kind != "bool" && standard != "0" && standard != "0s" {
				standard = "; default `" + standard + "`"
			} else {
				standard = ""
			}
			rows = append(rows, fmt.Sprintf("| `--%s%s` | %s%s |\n", f.Name, value,
				strings.ReplaceAll(f.Usage, "|", `\|`), standard))
		})
		if len(rows) > 0 {
			s.WriteString("\n| Flag | |\n|---|---|\n" + strings.Join(rows, ""))
		}
	}
	s.WriteString("\n" + commandsEnd)
	return s.String()
}

// docs/configuration.md has every flag of every command, and every environment variable that the program reads.
func TestConfigurationIsDocumented(t *testing.T) {
	page, err := os.ReadFile(configurationPage)
	if err != nil {
		t.Fatal(err)
	}
	begin, end := bytes.Index(page, []byte(commandsBegin)), bytes.Index(page, []byte(commandsEnd))
	if begin < 0 || end < begin {
		t.Fatalf("%s has lost the marks of its generated part", configurationPage)
	}
	want := commandList(t)
	if *update {
		page = slices.Concat(page[:begin], []byte(want), page[end+len(commandsEnd):])
		if err := os.WriteFile(configurationPage, page, 0o644); err != nil { //nolint:gosec // a page for everybody
			t.Fatal(err)
		}
		return
	}
	if have := string(page[begin : end+len(commandsEnd)]); have != want {
		t.Errorf("%s does not have the commands as they are: `make generate`", configurationPage)
	}
	written := string(page[:begin])
	read := variables(t)
	for _, name := range read {
		if !strings.Contains(written, "| `"+name+"` |") {
			t.Errorf("%s does not have the variable %s", configurationPage, name)
		}
	}
	for _, row := range regexp.MustCompile("(?m)^\\| `([A-Z][A-Z_]+)` \\|").FindAllStringSubmatch(written, -1) {
		if !slices.Contains(read, row[1]) {
			t.Errorf("%s has the variable %s, which nothing reads", configurationPage, row[1])
		}
	}
}

// variables returns the environment variables that the code reads, by their names or by constants called Env.
func variables(t *testing.T) (names []string) {
	t.Helper()
	asked := regexp.MustCompile(`(?:[gG]etenv|LookupEnv)\(([^)]*)\)`)
	constant := regexp.MustCompile(`\bEnv\w+ += ("[A-Z_]+")`)
	err := filepath.WalkDir("../../../internal", func(path string, _ fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return err
		}
		text, err := os.ReadFile(path)
		for _, found := range slices.Concat(constant.FindAllSubmatch(text, -1), asked.FindAllSubmatch(text, -1)) {
			if name, err := strconv.Unquote(string(found[1])); err == nil {
				names = append(names, name)
			} else if !strings.HasPrefix(strings.TrimPrefix(string(found[1]), "app."), "Env") {
				t.Errorf("%s: %s: use a name, or a constant called Env", path, found[0])
			}
		}
		return err
	})
	if err != nil || len(names) < 5 || !slices.Contains(names, "DATABASE_URL") {
		t.Fatalf("the variables found are %q, %v", names, err)
	}
	return names
}
