package cli

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"spectral/internal/app"
	"spectral/internal/core/events"
	"spectral/internal/core/events/infrastructure/postgres/operator"
)

func eventsPauseCommand(p Process) *cobra.Command {
	cmd := &cobra.Command{
		Use: "pause [TYPE]", Short: "Stop handling an event type in a generation", Args: cobra.MaximumNArgs(1),
		Long: `Stop handling an event type in a generation until ` + "`workers events resume`" + `. Publishing goes on, and
workers finish the events that they hold.`,
		Example: `  workers events pause decision.recorded --generation 8 --reason "bad deploy"
  workers events pause --list`,
	}
	reason := reasonFlag(cmd)
	list := cmd.Flags().Bool("list", false, "show what is paused")
	generation, who, asJSON := pauseFlags(cmd, p)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		switch {
		case *list && (len(args) > 0 || *generation > 0 || *reason != ""):
			return usagef("--list takes no event type and no other flag")
		case !*list && (len(args) == 0 || *generation == 0):
			return usagef("name an event type and its --generation: `workers events pause TYPE --generation N`")
		}
		return operating(p, func(ctx context.Context, args []string, o *app.Operator) error {
			if *list {
				return listPauses(ctx, p, o.Events, *asJSON)
			}
			if err := o.Events.Pause(ctx, args[0], *generation, *who, *reason); err != nil {
				return err
			}
			return printPaused(p, args[0], *generation, "paused", *asJSON)
		})(cmd, args)
	}
	return cmd
}

func eventsResumeCommand(p Process) *cobra.Command {
	cmd := &cobra.Command{
		Use: "resume TYPE", Short: "Handle a paused event type again", Args: cobra.ExactArgs(1),
		Long: `End a pause of ` + "`workers events pause`" + ` and wake the workers: they handle the events that waited, the
oldest first.`,
		Example: `  workers events resume decision.recorded --generation 8`,
	}
	generation, who, asJSON := pauseFlags(cmd, p)
	_ = cmd.MarkFlagRequired("generation")
	cmd.RunE = operating(p, func(ctx context.Context, args []string, o *app.Operator) error {
		if err := o.Events.Resume(ctx, args[0], *generation, *who); err != nil {
			return err
		}
		return printPaused(p, args[0], *generation, "resumed", *asJSON)
	})
	return cmd
}

func pauseFlags(cmd *cobra.Command, p Process) (generation *events.Generation, who *string, asJSON *bool) {
	cmd.ValidArgsFunction = cobra.FixedCompletions(knownTypes(), cobra.ShellCompDirectiveNoFileComp)
	generation = new(events.Generation)
	oneFlag(cmd.Flags(), generation, "generation", "deployment generation", events.ParseGeneration)
	return generation, by(cmd, p), jsonFlag(cmd)
}

func printPaused(p Process, eventType string, g events.Generation, done string, asJSON bool) error {
	result := map[string]any{"event_type": eventType, "generation": g, "is_paused": done == "paused"}
	return printed(p, asJSON, result, func() { p.printf("%s %s in generation %d\n", done, eventType, g) })
}

func listPauses(ctx context.Context, p Process, c *operator.Client, asJSON bool) error {
	pauses, err := c.Pauses(ctx)
	if err != nil {
		return err
	}
	return printed(p, asJSON, map[string]any{"paused": pauses}, func() {
		if len(pauses) == 0 {
			p.notef("nothing is paused")
			return
		}
		printTable(p, pauses, func(pause operator.Pause) []any {
			return []any{pause.EventType, pause.Generation, atOrDash(&pause.PausedAt), pause.PausedBy, orDash(pause.Reason)}
		}, []string{"PAUSED", "BY", "REASON"}, "TYPE", "GENERATION", "PAUSED", "BY", "REASON")
		p.next("workers events resume %s --generation %d", pauses[0].EventType, pauses[0].Generation)
	})
}

func pauseLine(pause operator.Pause) string {
	reason := ""
	if pause.Reason != nil {
		reason = ": " + *pause.Reason
	}
	return fmt.Sprintf("paused: %s in generation %d, since %s, by %s%s; `workers events resume %[1]s --generation %[2]d` "+
		"ends that", pause.EventType, pause.Generation, pause.PausedAt.Format(time.RFC3339), pause.PausedBy, reason)
}

// notePauses prints the paused types beside a result: no worker handles them.
func notePauses(p Process, pauses []operator.Pause) {
	for _, pause := range pauses {
		p.notef("%s", pauseLine(pause))
	}
}
