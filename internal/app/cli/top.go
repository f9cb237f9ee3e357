package cli

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"spectral/internal/app"
	"spectral/internal/app/top"
	"spectral/internal/core/events"
	"spectral/internal/core/events/infrastructure/postgres/operator"
)

func topCommand(p Process) *cobra.Command {
	o := top.Options{Every: time.Second}
	var scope events.Scope
	once := false
	cmd := &cobra.Command{
		Use: "top", Short: "Watch events, handlers and workers in a terminal; act by a plan", Args: cobra.NoArgs,
		Long: `Show rates, backlogs, latencies, breakers, failures and workers in a terminal, and read them again each second
by one statement. ? lists the keys. Replays, discards and pauses show what would happen and the command that does the
same, and ask.

When the database is gone the last figures stay, with their age, until it is back. --once prints one frame for a
script, --json the figures.`,
		Example: `  workers top
  workers top --context worlds --every 5s
  workers top --once`,
	}
	flags := cmd.Flags()
	oneFlag(flags, &scope, "context", "only event types and handlers of this context: platform or worlds",
		operator.OneOf(events.Platform, events.Worlds))
	oneFlag(flags, &o.Type, "type", "only this event type", word)
	oneFlag(flags, &o.Every, "every", "time between two statements, from 250ms to 1m",
		between(time.ParseDuration, 250*time.Millisecond, time.Minute))
	flags.BoolVar(&once, "once", false, "print one frame and exit")
	complete(cmd, "context", func() []events.Scope { return []events.Scope{events.Platform, events.Worlds} })
	complete(cmd, "type", knownTypes)
	who := by(cmd, p)
	operating(p, cmd, func(ctx context.Context, p Process, op *app.Operator) error {
		o.Context, o.By, o.ContextOf = string(scope), *who, contexts()
		o.Plain, o.ASCII = !coloured(p), !showsUnicode(p)
		switch {
		case p.asJSON:
			live, err := op.Events.Live(ctx)
			if err != nil {
				return err
			}
			return p.print(o.Scoped(live), nil)
		case once:
			frame, err := top.Once(ctx, op.Events, o, width(p))
			if err == nil {
				_, err = fmt.Fprintln(p.Stdout, frame) // it is safe for a terminal, and has colours
			}
			return err
		}
		in, out := p.Stdin.(*os.File), terminalFile(p.Stdout)
		return top.Run(ctx, op.Events, o, in, out)
	})
	cmd.MarkFlagsMutuallyExclusive("once", "json")
	run := cmd.RunE
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		in, isFile := p.Stdin.(*os.File)
		if json, _ := cmd.Flags().GetBool("json"); !json && !once &&
			(!isFile || !term.IsTerminal(int(in.Fd())) || terminalFile(p.Stdout) == nil) {
			return usagef("this is not a terminal: --once prints one frame, --json the figures")
		}
		return run(cmd, args)
	}
	return cmd
}

// contexts returns which context an event type of this build belongs to.
func contexts() func(eventType string) string {
	sources := make(map[string]string)
	if contracts, err := app.Contracts(); err == nil {
		for _, c := range contracts.All() {
			sources[c.Type] = string(c.Source)
		}
	}
	return func(eventType string) string { return sources[eventType] }
}

// showsUnicode reports whether the encoding of the terminal's locale is UTF-8.
func showsUnicode(p Process) bool {
	if p.Getenv("TERM") == "dumb" {
		return false
	}
	locale := cmp.Or(p.Getenv("LC_ALL"), p.Getenv("LC_CTYPE"), p.Getenv("LANG"))
	return strings.Contains(strings.ToLower(strings.ReplaceAll(locale, "-", "")), "utf8")
}
