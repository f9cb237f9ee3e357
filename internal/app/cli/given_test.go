package cli

import (
	"bytes"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"spectral/internal/core/events/infrastructure/postgres/admin"
)

// A value that is empty is a wrong call, with every flag of a filter and every command that has it: it would ask for
// everything.
func TestNoFilterIsEmpty(t *testing.T) {
	t.Parallel()
	texts := []string{"--status", "--type", "--source", "--target", "--handler", "--workspace", "--generation", "--channel", "--error"}
	once := []string{"--older-than", "--newer-than", "--error-contains"}
	for _, c := range []struct {
		command []string
		flags   []string
	}{
		{[]string{"events", "list"}, slices.Concat(texts, once)},
		{[]string{"events", "stats"}, slices.Concat(texts, once, []string{"--by"})},
		{[]string{"events", "replay", "--yes", "--to", "1"}, slices.Concat(texts, once)},
		{[]string{"events", "discard", "--yes"}, slices.Concat(texts, once)},
		{[]string{"events", "undiscard", "--yes"}, slices.Concat(texts, once)},
		{[]string{"events", "retry-now", "--yes"}, slices.Concat(texts, once)},
		{[]string{"generation", "adopt", "1", "2", "--yes"}, []string{"--type"}},
	} {
		for _, name := range c.flags {
			for _, value := range []string{"", ",", "a,,b", "a,"} {
				if value != "" && slices.Contains(once, name) {
					continue
				}
				var stderr bytes.Buffer
				code := Main(t.Context(), Process{Stdin: strings.NewReader(""), Stdout: &stderr, Stderr: &stderr, Getenv: func(string) string { return "" }},
					append(slices.Clone(c.command), name, value))
				if code != exitUsage || !strings.Contains(stderr.String(), `"`+name+`" flag: want a value that is not empty`) {
					t.Errorf("%v %s %q exits with %d: %s", c.command, name, value, code, stderr.String())
				}
			}
		}
	}
}

// Values may be joined by commas, and a flag given again adds to them; what would be dropped is refused.
func TestGivens(t *testing.T) {
	t.Parallel()
	var g givens
	if err := g.Set(`a,"b,c"`); err != nil {
		t.Error(err)
	}
	if err := g.Set("d"); err != nil || !slices.Equal(g.texts, []string{"a", "b,c", "d"}) {
		t.Errorf("%q, %v", g.texts, err)
	}
	if err := g.Set("e\nf"); err == nil {
		t.Errorf("two lines became %q", g.texts)
	}
}

// A filter that asks for nothing is told from one that does.
func TestAsks(t *testing.T) {
	t.Parallel()
	if asks(admin.Filter{}) {
		t.Error("the zero filter asks for something")
	}
	for _, args := range [][]string{
		{"--status", "failed"}, {"--discarded"}, {"--type", "a.b"}, {"--source", "core"}, {"--target", "none"}, {"--handler", "a.b"}, {"--workspace", "none"},
		{"--generation", "1"}, {"--channel", "outbox"}, {"--error", "A"}, {"--error-contains", "a"}, {"--older-than", "1h"}, {"--newer-than", "1h"},
		{"--discarded=false"},
	} {
		cmd := new(cobra.Command)
		read := filterFlags(cmd, Process{}, admin.Failed)
		if err := cmd.ParseFlags(args); err != nil {
			t.Fatal(err)
		}
		if filter, err := read(); err != nil || asks(filter) != (args[0] != "--discarded=false") {
			t.Errorf("%v: %+v, %v", args, filter, err)
		}
	}
}
