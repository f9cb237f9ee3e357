package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"os/user"
	"runtime/debug"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgerrcode"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"spectral/internal/app"
	"spectral/internal/core/events"
)

// Exit codes (DESIGN section 9).
const (
	exitFine   = 0
	exitFailed = 1
	exitUsage  = 2
	// exitAttention is for commands that look after things, and found what needs somebody.
	exitAttention = 3
)

// Process is the streams and the environment of one run.
type Process struct {
	Stdin  io.Reader
	Stdout io.Writer
	Stderr io.Writer
	Getenv func(string) string
	// Username is the user that it runs as; empty if nobody knows.
	Username string
}

// System is the process's own.
func System() Process {
	p := Process{Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr, Getenv: os.Getenv}
	if current, err := user.Current(); err == nil {
		p.Username = current.Username
	}
	return p
}

// usageError is a command called wrongly.
type usageError struct{ err error }

func (e usageError) Error() string { return e.err.Error() }
func (e usageError) Unwrap() error { return e.err }

// attentionError ends a command that has found, and printed, what needs somebody's attention.
type attentionError struct{ err error }

func (e attentionError) Error() string { return e.err.Error() }
func (e attentionError) Unwrap() error { return e.err }

// oneStop is how long after the first signal further ones are a part of it: GNU timeout signals the process and then its group, and a shell may
// do so, too.
const oneStop = time.Second

// Main runs one command line and returns its exit code. The first SIGINT or SIGTERM ends ctx, and
// the command finishes in order; one that comes a second later or more kills the process.
func Main(ctx context.Context, p Process, args []string) int {
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, func() { time.AfterFunc(oneStop, stop) }) // until then signals go nowhere

	running := false
	out := &results{to: p.Stdout}
	p.Stdout = out
	root := rootCommand(p)
	root.SetArgs(args)
	root.PersistentPreRun = func(*cobra.Command, []string) { running = true }
	untold, err := out.outcome(root.ExecuteContext(ctx))
	switch {
	case err == nil:
		return exitFine
	case untold && errors.Is(err, syscall.EPIPE): // who reads has had enough, as head has
		return exitFailed
	}
	text := strings.Join(strings.Fields(strings.ReplaceAll(asFlags(err.Error()), "\n", "; ")), " ")
	if ctx.Err() != nil {
		text = asInterrupt(err, text)
	}
	fmt.Fprintln(p.Stderr, "workers:", visible(text))
	if untold {
		return exitFailed
	}
	var settings *app.SettingsError
	if !running || errors.As(err, new(usageError)) || errors.As(err, &settings) {
		return exitUsage
	}
	if errors.As(err, new(attentionError)) {
		return exitAttention
	}
	return exitFailed
}

// asInterrupt says of what a signal has ended that it was one: what ends by it tells only that it was canceled.
func asInterrupt(err error, text string) string {
	text = strings.ReplaceAll(text, context.Canceled.Error(), errInterrupted.Error())
	if pg, ok := errors.AsType[*pgconn.PgError](err); ok && pg.Code == pgerrcode.QueryCanceled && !strings.Contains(text, errInterrupted.Error()) {
		text = errInterrupted.Error() + ": " + text
	}
	return text
}

// asFlags says beside the parameters that hints of SQL functions name which flags those are here. A hint that says so itself is left as it is.
func asFlags(text string) string {
	if strings.Contains(text, "--force") {
		return text
	}
	return strings.ReplaceAll(text, "p_force => true", "--force (in SQL p_force => true)")
}

func rootCommand(p Process) *cobra.Command {
	root := &cobra.Command{
		Use:           "workers",
		Short:         "Spectral's event workers",
		Long:          "Workers carry events between bounded contexts through core.outbox in Postgres.\nStart with: workers demo",
		SilenceUsage:  true,
		SilenceErrors: true,
		Args:          cobra.NoArgs,
	}
	group(root, "which command? see `workers --help`")
	root.SetIn(p.Stdin)
	root.SetOut(p.Stdout)
	root.SetErr(p.Stderr)
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		if unknown, ok := errors.AsType[*pflag.NotExistError](err); ok {
			return unknownFlag(cmd, unknown)
		}
		return usageError{wrongValue(err)}
	})
	root.Version = thisBuild().String()
	root.SetVersionTemplate("{{.Version}}\n")
	root.PersistentFlags().Var(new(level), "log-level", "least level of log entries on stderr: debug, info, warn or error")
	root.AddCommand(demoCommand(p), runCommand(p), migrateCommand(p), eventsCommand(p), actionsCommand(p), generationCommand(p), retentionCommand(p),
		doctorCommand(p), versionCommand(p))
	return root
}

// wrongValue says of a flag's value that is none of its kind what it has to be, rather than what the parser stumbled over.
func wrongValue(err error) error {
	invalid, ok := errors.AsType[*pflag.InvalidValueError](err)
	if !ok {
		return err
	}
	wants := map[string]string{
		"duration": "a time span like 90s, 10m or 1h30m", "int": "a whole number", "int64": "a whole number", "float64": "a number", "bool": "true or false",
		"level": "debug, info, warn or error",
	}
	want, known := wants[invalid.GetFlag().Value.Type()]
	if !known {
		return err
	}
	return fmt.Errorf("--%s %.60q: want %s", invalid.GetFlag().Name, invalid.GetValue(), want)
}

// level is a flag whose text is the name of a log level.
type level struct{ slog.Level }

// Set implements [pflag.Value].
func (l *level) Set(text string) error { return l.UnmarshalText([]byte(text)) }

// String implements [pflag.Value].
func (l *level) String() string { return strings.ToLower(l.Level.String()) }

// Type implements [pflag.Value].
func (l *level) Type() string { return "level" }

// logger for cmd, at the level its flag asks for.
func logger(cmd *cobra.Command, p Process, g events.Generation) (*slog.Logger, error) {
	var least slog.Level
	if err := least.UnmarshalText([]byte(cmd.Flags().Lookup("log-level").Value.String())); err != nil {
		return nil, err
	}
	return app.NewLogger(p.Stderr, least, g), nil
}

func versionCommand(p Process) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use: "version", Short: "Print the build's version", Args: noArguments,
		Long:    "Print the version and the revision that this program was built from.",
		Example: `  workers version`,
		RunE: func(*cobra.Command, []string) error {
			build := thisBuild()
			if asJSON {
				return printJSON(p, build)
			}
			_, err := fmt.Fprintln(p.Stdout, build)
			return err
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

// build is what this program was built from.
type build struct {
	Version  string `json:"version"`
	Revision string `json:"revision"`
	Go       string `json:"go"`
}

func (b build) String() string { return strings.TrimSpace("workers " + b.Version + " " + b.Revision) }

func thisBuild() build {
	b := build{Version: "(devel)"}
	if info, ok := debug.ReadBuildInfo(); ok {
		b.Version, b.Go = info.Main.Version, info.GoVersion
		for _, s := range info.Settings {
			if s.Key == "vcs.revision" {
				b.Revision = s.Value
			}
		}
	}
	return b
}

// printJSON prints v so that it is safe on a terminal: what visible would not let through is escaped.
func printJSON(p Process, v any) error {
	var encoded bytes.Buffer
	encoder := json.NewEncoder(&encoded)
	encoder.SetIndent("", "  ")
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(v); err != nil {
		return err
	}
	_, err := io.WriteString(p.Stdout, escapedJSON(encoded.String()))
	return err
}
