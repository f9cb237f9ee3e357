package cli

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"
)

// terminal is a Process whose stdout is one, with that environment.
func terminal(t *testing.T, env map[string]string) Process {
	t.Helper()
	if runtime.GOOS != "linux" {
		t.Skip("terminals are made as Linux does")
	}
	file, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = file.Close() })
	return Process{Stdout: file, Getenv: func(name string) string { return env[name] }}
}

// Colours are for terminals that can, and for people who have not said no.
func TestColoured(t *testing.T) {
	t.Parallel()
	if !coloured(terminal(t, nil)) {
		t.Error("a terminal has none")
	}
	for _, env := range []map[string]string{{"NO_COLOR": "1"}, {"NO_COLOR": "0"}, {"TERM": "dumb"}} {
		if coloured(terminal(t, env)) {
			t.Errorf("a terminal has some with %v", env)
		}
	}
	file, err := os.CreateTemp(t.TempDir(), "")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = file.Close() }()
	p := terminal(t, nil)
	if p.Stdout = file; coloured(p) {
		t.Error("a file has some")
	}
	if p.Stdout = new(bytes.Buffer); coloured(p) {
		t.Error("a buffer has some")
	}
}

// Who is asked and interrupts instead of answering has said no, at once.
func TestConsentInterrupted(t *testing.T) {
	t.Parallel()
	silent, answers := io.Pipe()
	defer func() { _ = answers.Close() }()
	ctx, interrupt := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- consent(ctx, Process{Stdin: silent, Stderr: io.Discard}, false, "Sweep now?") }()
	interrupt()
	select {
	case err := <-ended:
		if !errors.Is(err, errNotConfirmed) {
			t.Errorf("it ended with %v", err)
		}
	case <-time.After(10 * time.Second):
		t.Error("it goes on asking")
	}
}

// A name or a reason is what core.operator_actions takes; else the call is wrong.
func TestSayings(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		flag, value string
		right       bool
	}{
		{"--by", "anna", true}, {"--by", strings.Repeat("a", 256), true}, {"--by", strings.Repeat("a", 257), false}, {"--by", "", false}, {"--by", " ", false},
		{"--by", "anna ", false}, {"--by", "\xff", false}, {"--reason", " because", true}, {"--reason", strings.Repeat("a", 1024), true},
		{"--reason", strings.Repeat("a", 1025), false}, {"--reason", "", false}, {"--reason", "\t", false},
		{"--reason", "a\x1b[31mb", false}, {"--reason", "a\nb", false}, {"--reason", "a\x00", false}, {"--reason", "a\u009bb", false}, {"--reason", "a\xff", false},
		{"--by", "an\x1bna", false}, {"--reason", "weil's nötig ist – bald", true},
	} {
		cmd := eventsPauseCommand(Process{Getenv: func(string) string { return " somebody" }, Username: "a\tb"})
		if cmd.Flag("by").Value.String() != "" {
			t.Errorf("a USER that is no name became %q", cmd.Flag("by").Value)
		}
		if err := cmd.ParseFlags([]string{c.flag, c.value}); (err == nil) != c.right {
			t.Errorf("%s %.20q: %v", c.flag, c.value, err)
		}
	}
}

// Who acts is USER, or the user of the process; where neither is a name the login is, for which nothing stands.
func TestWhoActs(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ env, username, want string }{
		{"anna", "root", "anna"}, {"", "root", "root"}, {" anna", "root", "root"}, {"", "", ""}, {"anna", "", "anna"},
	} {
		cmd := eventsPauseCommand(Process{Getenv: func(name string) string { return map[string]string{"USER": c.env}[name] }, Username: c.username})
		if have := cmd.Flag("by").Value.String(); have != c.want {
			t.Errorf("USER %q, run by %q: %q, want %q", c.env, c.username, have, c.want)
		}
	}
	if System().Username == "" {
		t.Error("nobody runs this test")
	}
}
