package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"os"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"spectral/internal/core/events/infrastructure/postgres/operator"
)

// call runs a command line with an empty environment.
func call(t *testing.T, stdout io.Writer, args ...string) (code int, stderr string) {
	t.Helper()
	var said bytes.Buffer
	p := Process{Stdin: strings.NewReader(""), Stdout: stdout, Stderr: &said, Getenv: func(string) string { return "" }}
	return Main(t.Context(), p, args), said.String()
}

// brokenPipe is a writer that fails.
type brokenPipe struct{ reason error }

func (b brokenPipe) Write([]byte) (int, error) {
	return 0, &fs.PathError{Op: "write", Path: "/dev/stdout", Err: b.reason}
}

func TestAResultThatIsNotWrittenIsAFailure(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{{"version"}, {"version", "--json"}, {"events", "list", "--help"}} {
		code, stderr := call(t, brokenPipe{syscall.ENOSPC}, args...)
		if code != exitFailed || stderr != "workers: write the result: write /dev/stdout: no space left on device\n" {
			t.Errorf("%v exits with %d: %s", args, code, stderr)
		}
		if code, stderr := call(t, brokenPipe{syscall.EPIPE}, args...); code != exitFailed || stderr != "" {
			t.Errorf("%v to a closed pipe exits with %d: %s", args, code, stderr)
		}
	}
}

func TestTheLineBreakAtTheEndOfAVariableIsLeftOut(t *testing.T) {
	t.Setenv("DATABASE_URL", "postgres://u@h/db \r\n")
	if got := System().Getenv("DATABASE_URL"); got != "postgres://u@h/db " {
		t.Errorf("%q", got)
	}
}

// An empty value would ask for everything.
func TestAnEmptyFilterValueIsRefused(t *testing.T) {
	t.Parallel()
	lists := []string{"--type", "--source", "--target", "--handler", "--workspace", "--generation", "--channel", "--error"}
	filter := append(slices.Clone(lists), "--older-than", "--newer-than", "--error-contains")
	for command, flags := range map[string][]string{
		"events list":                append([]string{"--after", "--status"}, filter...),
		"events stats":               append([]string{"--by", "--status"}, filter...),
		"events replay --yes --to 1": filter, "events discard --yes": filter, "events undiscard --yes": filter,
		"events retry-now --yes":     append([]string{"--by"}, filter...),
		"generation adopt 1 2 --yes": {"--type"}, "actions list": {"--event", "--by", "--action", "--generation",
			"--after"},
	} {
		for _, flag := range flags {
			for _, value := range []string{"", ",", "a,"} {
				words := flag == "--type" || flag == "--handler"
				if value == "a," && !words || value == "," && !slices.Contains(lists[:5], flag) {
					continue
				}
				code, stderr := call(t, io.Discard, append(strings.Fields(command), flag, value)...)
				if code != exitUsage || !strings.Contains(stderr, `"`+flag+`" flag: want a value that is not empty`) {
					t.Errorf("%s %s %q exits with %d: %s", command, flag, value, code, stderr)
				}
			}
		}
	}
}

func TestWrongCallsExitWithTwo(t *testing.T) {
	t.Parallel()
	for command, want := range map[string]string{
		"":                                "which command? see `workers --help`",
		"evnts":                           `unknown command "evnts" for "workers": did you mean events?`,
		"generation dran 7":               `unknown command "dran" for "workers generation": did you mean drain?`,
		"events nonsense":                 `unknown command "nonsense" for "workers events"`,
		"events list x":                   `unknown command "x" for "workers events list"`,
		"events list --tpye a.b":          "unknown flag: --tpye",
		"events list --limit 0":           `"--limit" flag: want a value from 1 to 1000`,
		"events list --limit many":        "want a value from 1 to 1000",
		"events list --timeout -5s":       "want a value from 1ms to 24h0m0s",
		"events show 12":                  `"12": want an id like`,
		"events replay --all":             `required flag(s) "to" not set`,
		"events replay --all --to eight":  `"eight" is not a deployment generation`,
		"events discard":                  "which events?",
		"events discard --status pending": "unknown flag: --status",
		"events replay --status failed,delivered --to 8":            "delivered events are replayed only with --force",
		"events replay --status due --to 8":                         `"due": want one of failed, delivered`,
		"events discard --all --batch 1001":                         "want a value from 1 to 1000",
		"events discard --all --rate NaN":                           "want a value from 0 to 1e+09",
		"events discard 0198c5d4-9a52-7c11-8f0e-3b7a4d2f6e10 --all": "leave one of them out",
		"doctor nonsense":                                           `invalid argument "nonsense" for "workers doctor"`,
		"generation drain":                                          "accepts 1 arg(s), received 0",
		"generation status 7 --wait 5":                              "want a value from 0s to",
		"actions list --action Replay":                              `"Replay": want one of replay, discard, `,
	} {
		code, stderr := call(t, io.Discard, strings.Fields(command)...)
		oneLine := strings.HasPrefix(stderr, "workers: ") && strings.Count(stderr, "\n") == 1
		if code != exitUsage || !oneLine || !strings.Contains(stderr, want) {
			t.Errorf("%s exits with %d: %s, want %s", command, code, stderr, want)
		}
	}
}

func TestPrintedTextIsSafeForATerminal(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"plain \"text\", ünïcödé, 日本語, 🙂, n\u0303": "plain \"text\", ünïcödé, 日本語, 🙂, n\u0303",
		"\x1b[2J\x1b]0;title\x07":                  `\x1b[2J\x1b]0;title\a`,
		"a\nb\r\tc\x00":                            `a\nb\r\tc\x00`,
		"\u009b31m\u0085\x7f":                      `\u009b31m\u0085\x7f`,
		"\u202egnp.exe\u2066\u200f\u200b":          `\u202egnp.exe\u2066\u200f\u200b`,
		"\u2028\u2029\ufeff\U000e0041":             `\u2028\u2029\ufeff\U000e0041`,
		"\xff\xfe\uFFFD":                           `\xff\xfe` + "\uFFFD",
		`{"a": "b\u001b"}`:                         `{"a": "b\u001b"}`,
	} {
		if have := visible(text); have != want || visible(have) != have {
			t.Errorf("%+q is printed as %+q, want %+q", text, have, want)
		}
		valid := strings.ToValidUTF8(text, "?")
		var printed bytes.Buffer
		if err := (Process{Stdout: &printed, asJSON: true}).print(valid, nil); err != nil {
			t.Fatal(err)
		}
		var back string
		if err := json.Unmarshal(printed.Bytes(), &back); err != nil || back != valid {
			t.Errorf("%+q comes back from JSON %s as %+q, %v", text, printed.String(), back, err)
		}
		if line := strings.TrimSuffix(printed.String(), "\n"); visible(line) != line {
			t.Errorf("%+q is printed as JSON %+q", text, line)
		}
	}
	if have := visibleLines("a\nb\x1b"); have != "a\nb\\x1b" {
		t.Errorf("lines are kept as %q", have)
	}
	for text, want := range map[string]string{
		"one\r\n":                 "one",
		"\x1b\r\ntwo":             `\x1b ...`,
		strings.Repeat("ä", 121):  strings.Repeat("ä", 120) + " ...",
		strings.Repeat("\a", 300): strings.Repeat(`\a`, 60) + " ...",
	} {
		if have := firstLine(&text); have != want {
			t.Errorf("the first line of %q is %q, want %q", text, have, want)
		}
	}
}

// A table cuts columns in the given order: long texts to a least width, then it leaves columns out. Others stay.
func TestTablesFitTheOutput(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("l", 30)
	for columns, want := range map[string]string{
		"": "ID          NUMBER  WORKSPACE" + strings.Repeat(" ", 23) + "FAILURES\n0123456789       7  " + long +
			"  short\n",
		"58": "ID          NUMBER  WORKSPACE                     FAILURES\n0123456789       7  " + long[:27] +
			"~  short\n",
		"42": "ID          NUMBER  WORKSPACE     FAILURES\n0123456789       7  " + long[:11] + "~  short\n",
		"41": "ID          NUMBER  FAILURES\n0123456789       7  short\n",
		"20": "ID          NUMBER\n0123456789       7\n",
		"9":  "ID          NUMBER\n0123456789       7\n",
	} {
		var out bytes.Buffer
		p := Process{Stdout: &out, Getenv: func(string) string { return columns }}
		printTable(p, []int{7}, func(n int) []any { return []any{"0123456789", n, long, "short"} }, "ID", "NUMBER",
			"WORKSPACE", "FAILURES")
		if out.String() != want {
			t.Errorf("in %q columns:\n%s, want\n%s", columns, out.String(), want)
		}
	}
}

func TestAges(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]time.Duration{"90m": 90 * time.Minute, "7d": 168 * time.Hour} {
		if have, err := operator.ParseAge(text); err != nil || have != want {
			t.Errorf("%s is %s, %v", text, have, err)
		}
	}
	for _, text := range []string{"", "d", "0d", "-1d", "-1h", "0s", "1.5d", "65536d", "soon", "1d12h"} {
		if have, err := operator.ParseAge(text); err == nil {
			t.Errorf("%q is %s", text, have)
		}
	}
	for d, want := range map[time.Duration]string{-time.Hour: "0s", 61 * time.Minute: "1h01m",
		26 * time.Hour: "1d02h"} {
		if have := age(d); have != want {
			t.Errorf("%s is written %s, want %s", d, have, want)
		}
	}
}

// Colours are used on terminals that have them, unless they are switched off.
func TestColoured(t *testing.T) {
	t.Parallel()
	if runtime.GOOS != "linux" {
		t.Skip("terminals are made as Linux does")
	}
	file, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = file.Close() })
	for _, c := range []struct {
		stdout io.Writer
		env    map[string]string
		want   bool
	}{
		{file, nil, true}, {file, map[string]string{"NO_COLOR": "0"}, false},
		{file, map[string]string{"TERM": "dumb"}, false}, {new(bytes.Buffer), nil, false},
	} {
		p := Process{Stdout: c.stdout, Getenv: func(name string) string { return c.env[name] }}
		if have := coloured(p); have != c.want {
			t.Errorf("%T with %v has colours: %t", c.stdout, c.env, have)
		}
	}
}

func TestAnInterruptAtTheQuestionIsANo(t *testing.T) {
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

func TestAnInterruptWhileStartingIsOne(t *testing.T) {
	t.Parallel()
	env := map[string]string{"DATABASE_URL": "postgres://user@127.0.0.1:1/none", "SPECTRAL_GENERATION": "1"}
	ctx, interrupt := context.WithCancel(t.Context())
	interrupt()
	for _, args := range [][]string{{"run"}, {"demo"}} {
		var said bytes.Buffer
		p := Process{Stdin: strings.NewReader(""), Stdout: io.Discard, Stderr: &said,
			Getenv: func(name string) string { return env[name] }}
		if code := Main(ctx, p, args); code != exitFailed || !strings.HasSuffix(said.String(),
			"workers: interrupted\n") {
			t.Errorf("%v exits with %d: %s", args, code, said.String())
		}
	}
}

// If USER is not set, --by is empty, which stands for the login.
func TestWhoActs(t *testing.T) {
	t.Parallel()
	for env, want := range map[string]string{"anna": "anna", " ": "", "": ""} {
		cmd := eventsPauseCommand(Process{Getenv: func(string) string { return env }})
		if have := cmd.Flag("by").Value.String(); have != want {
			t.Errorf("USER %q: %q, want %q", env, have, want)
		}
	}
}
