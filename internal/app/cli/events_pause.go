package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"spectral/internal/core/events/infrastructure/postgres/admin"
)

func eventsPauseCommand(p Process) *cobra.Command {
	var list bool
	cmd := &cobra.Command{
		Use: "pause [TYPE]", Short: "Stop handling an event type in a generation", Args: cobra.MaximumNArgs(1),
		Long: `Stop handling an event type in a generation, by workers of every build, until ` + "`workers events resume`" + `. Publishing goes on,
and what workers have in hand they finish; what then is to be retried waits as well. --list shows what is paused.`,
		Example: `  workers events pause decision.recorded --generation 8 --reason "bad deploy of the aggregator"
  workers events pause --list`,
		ValidArgsFunction: completeType,
	}
	generation := generationFlag(cmd, p, "generation", "deployment generation", (*admin.Admin).OpenGenerations)
	reason := reasonFlag(cmd)
	cmd.Flags().BoolVar(&list, "list", false, "show what is paused")
	who := by(cmd, p)
	asJSON := jsonFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if list {
			if len(args) > 0 || cmd.Flags().Changed("generation") || cmd.Flags().Changed("reason") {
				return usageError{errors.New("--list goes alone")}
			}
			return operating(p, func(cmd *cobra.Command, _ []string, operator *admin.Admin) error {
				pauses, err := operator.Pauses(cmd.Context())
				if err != nil {
					return err
				}
				if *asJSON {
					return printJSON(p, struct {
						Paused []admin.Pause `json:"paused"`
					}{pauses})
				}
				printPauses(p, pauses)
				return nil
			})(cmd, args)
		}
		if len(args) == 0 {
			return usageError{errors.New("which event type? see `workers events pause --help`")}
		}
		g, err := generation()
		if err != nil {
			return err
		}
		return operating(p, func(cmd *cobra.Command, args []string, operator *admin.Admin) error {
			if err := operator.Pause(cmd.Context(), args[0], g, *who, *reason); err != nil {
				if refused, ok := errors.AsType[*admin.RefusedError](err); ok && refused.Field == "event_type" {
					tellUnknown(cmd.Context(), p, operator, admin.Filter{EventTypes: args[:1]}, false)
				}
				return err
			}
			if *asJSON {
				return printJSON(p, map[string]any{"event_type": args[0], "generation": g, "is_paused": true})
			}
			_, err := fmt.Fprintf(p.Stdout, "paused %s in generation %d\n", args[0], g)
			return err
		})(cmd, args)
	}
	return cmd
}

func eventsResumeCommand(p Process) *cobra.Command {
	cmd := &cobra.Command{
		Use: "resume TYPE", Short: "Go on handling an event type in a generation", Args: cobra.ExactArgs(1),
		Long:              `End what ` + "`workers events pause`" + ` began, and wake the workers: what has gathered is handled now, the oldest first.`,
		Example:           `  workers events resume decision.recorded --generation 8`,
		ValidArgsFunction: completePausedType(p),
	}
	generation := generationFlag(cmd, p, "generation", "deployment generation", func(a *admin.Admin, ctx context.Context) (offered []string, err error) {
		pauses, err := a.Pauses(ctx)
		for _, pause := range pauses {
			if eventType := cmd.Flags().Arg(0); eventType == "" || eventType == pause.EventType {
				offered = append(offered, fmt.Sprint(pause.Generation))
			}
		}
		return slices.Compact(offered), err
	})
	who := by(cmd, p)
	asJSON := jsonFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		g, err := generation()
		if err != nil {
			return err
		}
		return operating(p, func(cmd *cobra.Command, args []string, operator *admin.Admin) error {
			if err := operator.Resume(cmd.Context(), args[0], g, *who); err != nil {
				if refused, ok := errors.AsType[*admin.RefusedError](err); ok && refused.Field == "event_type" {
					tellUnknown(cmd.Context(), p, operator, admin.Filter{EventTypes: args[:1]}, false)
				}
				return err
			}
			if *asJSON {
				return printJSON(p, map[string]any{"event_type": args[0], "generation": g, "is_paused": false})
			}
			_, err := fmt.Fprintf(p.Stdout, "resumed %s in generation %d\n", args[0], g)
			return err
		})(cmd, args)
	}
	return cmd
}

func completeType(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return knownTypes(), cobra.ShellCompDirectiveNoFileComp
}

// completePausedType offers what is paused, in the generation that is given already, if one is.
func completePausedType(p Process) func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
	return func(cmd *cobra.Command, args []string, _ string) (offered []string, _ cobra.ShellCompDirective) {
		if len(args) == 0 {
			offered = known(cmd, p, func(a *admin.Admin, ctx context.Context) (types []string, err error) {
				in, _ := cmd.Flags().GetString("generation")
				pauses, err := a.Pauses(ctx)
				for _, pause := range pauses {
					if in == "" || in == fmt.Sprint(pause.Generation) {
						types = append(types, pause.EventType)
					}
				}
				slices.Sort(types)
				return slices.Compact(types), err
			})
		}
		return offered, cobra.ShellCompDirectiveNoFileComp
	}
}

// printPauses prints what is paused, a line each.
func printPauses(p Process, pauses []admin.Pause) {
	if len(pauses) == 0 {
		_, _ = fmt.Fprintln(p.Stderr, "nothing is paused")
		return
	}
	rows := make([][]any, len(pauses))
	for i, pause := range pauses {
		reason := ""
		if pause.Reason != nil {
			reason = visible(*pause.Reason)
		}
		rows[i] = []any{visible(pause.EventType), pause.Generation, pause.PausedAt.Format(time.RFC3339), visible(pause.PausedBy), reason}
	}
	printTable(p, []column{{title: "TYPE", cut: true}, {title: "GENERATION", right: true}, {title: "PAUSED"}, {title: "BY", cut: true}, {title: "REASON", cut: true}}, rows)
}

// pauseLine says in one line what is paused, wherever that is said.
func pauseLine(pause admin.Pause) string {
	line := fmt.Sprintf("paused until `workers events resume`: %s in generation %d, since %s, by %s", visible(pause.EventType), pause.Generation, pause.PausedAt.Format(time.RFC3339), visible(pause.PausedBy))
	if pause.Reason != nil {
		line += ": " + visible(*pause.Reason)
	}
	return line
}

// printPauseLines says beside a result what is paused: nobody handles that, whatever is due.
func printPauseLines(p Process, pauses []admin.Pause) {
	for _, pause := range pauses {
		_, _ = fmt.Fprintln(p.Stderr, pauseLine(pause))
	}
}
