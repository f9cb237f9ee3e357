package cli

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"
)

// A misspelled flag is called that by every command, which does nothing.
func TestEveryCommandSaysWhatFlagMayBeMeant(t *testing.T) {
	t.Parallel()
	for _, c := range ours(t) {
		var stdout, stderr bytes.Buffer
		p := Process{Stdin: strings.NewReader(""), Stdout: &stdout, Stderr: &stderr, Getenv: func(string) string { return "" }}
		code := Main(t.Context(), p, append(strings.Fields(c.CommandPath())[1:], "--hlep"))
		want := fmt.Sprintf("workers: unknown flag --hlep for %q: did you mean --help?; see `%s --help`\n", c.CommandPath(), c.CommandPath())
		if code != exitUsage || stderr.String() != want || stdout.Len() > 0 {
			t.Errorf("%s: exit code %d, %q, and on stdout %q", c.CommandPath(), code, stderr.String(), stdout.String())
		}
	}
}

// Of the names that a misspelled one is like, the likest are meant, and of short ones none that are like it by chance.
func TestNearest(t *testing.T) {
	t.Parallel()
	known := []string{"all", "batch", "by", "error", "json", "limit", "newer-than", "older-than", "status", "timeout", "to", "type"}
	for name, want := range map[string][]string{
		"tpye": {"type"}, "Type": {"type"}, "typ": {"type"}, "al": {"all"}, "older": {"older-than"}, "limits": {"limit"}, "stauts": {"status"}, "jsn": {"json"},
		"t": {"timeout", "to", "type"}, "xy": {"by"}, "x": nil, "qq": nil, "nonsense": nil,
	} {
		if meant := nearest(name, known); !slices.Equal(meant, want) {
			t.Errorf("%s: %q, want %q", name, meant, want)
		}
	}
}
