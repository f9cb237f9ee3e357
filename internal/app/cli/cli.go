package cli

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"runtime"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"spectral/internal/app"
	"spectral/internal/core/events"
	"spectral/internal/core/events/infrastructure/postgres/operator"
)

// Exit codes. Scripts rely on them.
const (
	exitFine   = 0
	exitFailed = 1
	exitUsage  = 2
	// exitAttention is for commands that check something and find what needs an operator.
	exitAttention = 3
)

// Process has the streams and the environment of one run.
type Process struct {
	Stdin  io.Reader
	Stdout io.Writer
	Stderr io.Writer
	Getenv func(string) string
	asJSON bool // results are printed as JSON
}

// System returns the Process of this operating system process.
// The line break that a file leaves at the end of a variable is no part of it.
func System() Process {
	return Process{os.Stdin, os.Stdout, os.Stderr, trimmed(os.Getenv), false}
}

func trimmed(variable func(string) string) func(string) string {
	return func(name string) string { return strings.TrimRight(variable(name), "\r\n") }
}

// exitError is an error that chooses the exit code.
type exitError struct {
	error
	code int
}

func (e exitError) Unwrap() error { return e.error }

func usagef(format string, args ...any) error {
	return exitError{fmt.Errorf(format, args...), exitUsage}
}

// oneStop is how long further signals count as part of the first: GNU timeout signals the process and then its group,
// and a shell may do so too.
const oneStop = time.Second

// messageTimeout is how long the end waits for stderr to take the message of an error.
const messageTimeout = time.Second

// Main runs one command line and returns its exit code. The first SIGINT, SIGTERM or SIGHUP ends ctx, and the command
// stops in order. A signal that comes a second later or more kills the process. SIGHUP is left ignored for nohup.
// SIGPIPE is ignored: a log that no process reads any more does not end this one.
func Main(ctx context.Context, p Process, args []string) int {
	signal.Ignore(syscall.SIGPIPE)
	stops := []os.Signal{syscall.SIGINT, syscall.SIGTERM}
	if !signal.Ignored(syscall.SIGHUP) {
		stops = append(stops, syscall.SIGHUP)
	}
	ctx, stop := signal.NotifyContext(ctx, stops...)
	defer stop()
	context.AfterFunc(ctx, func() { time.AfterFunc(oneStop, stop) }) // until then signals go nowhere

	running := false
	out := &results{to: p.Stdout}
	p.Stdout = out
	root := rootCommand(p)
	root.SetArgs(args)
	root.PersistentPreRunE = func(cmd *cobra.Command, _ []string) error {
		err := cmp.Or(cmd.ValidateRequiredFlags(), cmd.ValidateFlagGroups())
		running = err == nil
		return err
	}
	err := root.ExecuteContext(ctx)
	if out.err != nil && !errors.Is(out.err, syscall.EPIPE) { // a broken pipe: the reader has had enough, as head has
		p.notef("workers: write the result: %v", out.err)
	}
	switch {
	case out.err != nil && (err == nil || errors.Is(err, out.err)):
		return exitFailed
	case err == nil:
		return exitFine
	}
	text := strings.Join(strings.Fields(strings.ReplaceAll(err.Error(), "\n", "; ")), " ")
	if ctx.Err() != nil && (operator.IsTimeout(err) || strings.Contains(text, "canceled")) { // what the signal caused
		text = errInterrupted.Error()
	}
	printed := make(chan struct{})
	go func() {
		defer close(printed)
		p.notef("workers: %s", text)
	}()
	select {
	case <-printed:
	case <-time.After(messageTimeout):
	}
	if out.err != nil { // a result that was not written is no result
		return exitFailed
	}
	if exit, ok := errors.AsType[exitError](err); ok {
		return exit.code
	}
	if !running || errors.As(err, new(*app.SettingsError)) || errors.Is(err, operator.ErrCursor) {
		return exitUsage
	}
	return exitFailed
}

func rootCommand(p Process) *cobra.Command {
	root := group(&cobra.Command{
		Use:           "workers",
		Short:         "Spectral's event workers",
		Long:          "Workers carry events between bounded contexts through core.outbox.\n\nStart with: workers demo",
		SilenceUsage:  true,
		SilenceErrors: true,
	}, demoCommand(p), runCommand(p), consoleCommand(p), migrateCommand(p), eventsCommand(p), operationsCommand(p),
		handlersCommand(p), actionsCommand(p), generationCommand(p), retentionCommand(p), outboxCommand(p), relayCommand(p),
		doctorCommand(p), topCommand(p), versionCommand(p))
	root.SetIn(p.Stdin)
	root.SetOut(p.Stdout)
	root.SetErr(p.Stderr)
	root.SetUsageTemplate(strings.NewReplacer(".FlagUsages", ".FlagUsagesWrapped 80",
		"for more information about a command", "for more about a command").Replace(root.UsageTemplate()))
	wrapHelp(root)
	root.CompletionOptions.SetDefaultShellCompDirective(cobra.ShellCompDirectiveNoFileComp)
	root.Version = app.Version()
	root.SetVersionTemplate("workers {{.Version}}\n")
	level := "info"
	levels := []string{"debug", "info", "warn", "error"}
	oneFlag(root.PersistentFlags(), &level, "log-level", "least level of log entries on stderr: "+
		operator.Joined(levels), operator.OneOf(levels...))
	return root
}

// group adds commands to cmd, which does nothing itself: to call it alone, or with an unknown command, is a wrong call.
func group(cmd *cobra.Command, commands ...*cobra.Command) *cobra.Command {
	cmd.AddCommand(commands...)
	cmd.Args = cobra.ArbitraryArgs
	cmd.SuggestionsMinimumDistance = 2 // as cobra has it for the root command
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if len(args) == 0 {
			return usagef("which command? see `%s --help`", cmd.CommandPath())
		}
		meant := ""
		if found := cmd.SuggestionsFor(args[0]); len(found) > 0 {
			meant = ": did you mean " + strings.Join(found, " or ") + "?"
		}
		return usagef("unknown command %.60q for %q%s", args[0], cmd.CommandPath(), meant)
	}
	return cmd
}

func wrapHelp(cmd *cobra.Command) {
	cmd.Long = wrap(cmd.Long, 80)
	for _, below := range cmd.Commands() {
		wrapHelp(below)
	}
}

// logger returns the logger of a command, and what to call at its end.
func logger(cmd *cobra.Command, p Process, g events.Generation) (log *slog.Logger, stop func(), err error) {
	var least slog.Level
	if err := least.UnmarshalText([]byte(cmd.Flags().Lookup("log-level").Value.String())); err != nil {
		return nil, nil, err
	}
	log, stop = app.StartLog(p.Stderr, least, g)
	return log, stop, nil
}

func versionCommand(p Process) *cobra.Command {
	return printing(p, &cobra.Command{
		Use: "version", Short: "Print the version, which names the revision", Args: cobra.NoArgs,
		Example: `  workers version`,
	}, func(_ *cobra.Command, p Process) error {
		return p.print(map[string]string{"version": app.Version(), "go": runtime.Version()}, func() {
			p.printf("workers %s\n", app.Version())
		})
	})
}

// printing adds --json to cmd, whose run function prints a result. It returns cmd.
func printing(p Process, cmd *cobra.Command, run func(*cobra.Command, Process) error) *cobra.Command {
	jsonFlag(cmd, &p)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error { return run(cmd, p) }
	return cmd
}

// operating is [printing] for a command that acts as an operator on DATABASE_URL.
func operating(p Process, cmd *cobra.Command,
	run func(context.Context, Process, *app.Operator) error) *cobra.Command {
	return printing(p, cmd, func(cmd *cobra.Command, p Process) error {
		url, err := app.ReadDatabaseURL(p.Getenv)
		if err != nil {
			return err
		}
		o, err := app.OpenOperator(cmd.Context(), url)
		if err != nil {
			return err
		}
		defer o.Close()
		return run(cmd.Context(), p, o)
	})
}

// consent asks whether to go on, unless yes is set. Any other answer than y or yes, and the end of ctx, is a no.
func consent(ctx context.Context, p Process, yes bool, question string) error {
	if yes {
		return nil
	}
	_, _ = fmt.Fprintf(p.Stderr, "%s [y/N] ", question)
	answers := make(chan string, 1)
	go func() { // only an answer ends it
		answer, _ := bufio.NewReader(p.Stdin).ReadString('\n')
		answers <- strings.ToLower(strings.TrimSpace(answer))
	}()
	select {
	case answer := <-answers:
		switch answer {
		case "y", "yes":
			return nil
		case "":
			return usagef("no answer: nothing was done; answer y, or pass --yes")
		}
	case <-ctx.Done():
	}
	return errNotConfirmed
}

var (
	errNotConfirmed = errors.New("not confirmed: nothing was done")
	errInterrupted  = errors.New("interrupted")
)

// notDone prints on stderr that this was a dry run; what it showed is the result, on stdout.
func notDone(p Process) {
	p.notef("dry run: nothing was done; without --dry-run the command asks and does it")
}
