package cli

import (
	"context"
	"time"

	"github.com/spf13/cobra"

	"spectral/internal/app"
	"spectral/internal/core/events"
	"spectral/internal/core/events/infrastructure/postgres/operator"
)

func actionsCommand(p Process) *cobra.Command {
	return group(&cobra.Command{
		Use: "actions", Short: "See what operators did, and when",
		Long: `See what operators did: core.operator_actions has a row for each call that changed something,
by command or SQL.`,
		Example: `  workers actions list`,
	}, actionsListCommand(p))
}

func actionsListCommand(p Process) *cobra.Command {
	var filter operator.ActionFilter
	var page operator.Page
	cmd := &cobra.Command{
		Use: "list", Short: "List what operators did, the latest first", Args: cobra.NoArgs,
		Long: `List what operators did, the latest first: the actions that match all flags. A flag takes several values,
joined by commas or by repeating it, and matches any of them. Each line is one call; a bulk command makes one for each
batch.`,
		Example: `  workers actions list
  workers actions list --by anna --action replay,discard --newer-than 1d
  workers actions list --json | jq -r '.actions[] | [.acted_by, .action] | @tsv'`,
	}
	flags := cmd.Flags()
	listFlag(flags, &filter.Events, "event", "id of an event that was changed", parseID)
	listFlag(flags, &filter.By, "by", "who acted: the name that they gave, or their login", word)
	wordsFlag(cmd, &filter.Actions, "action", "what was done: "+operator.Joined(operator.ActionNames()),
		operator.ActionNames())
	listFlag(flags, &filter.Generations, "generation", "deployment generation", events.ParseGeneration)
	oneFlag(flags, &filter.OlderThan, "older-than", "longer ago than this, like 90m or 3d", parseAge)
	oneFlag(flags, &filter.NewerThan, "newer-than", "not longer ago than this", parseAge)
	pageFlags(cmd, &page.Limit, &page.After, "actions")
	timeoutFlag(cmd, &page.Timeout)
	asJSON := jsonFlag(cmd)
	cmd.RunE = operating(p, func(ctx context.Context, _ []string, o *app.Operator) error {
		page.EventIDs = *asJSON
		found, err := o.Events.Actions(ctx, filter, page)
		if err != nil {
			return cursorError(err)
		}
		return printed(p, *asJSON, found, func() {
			printActions(p, found.Actions)
			pageEnd(p, len(found.Actions), "action", found.Next)
			p.next("workers actions list --json, which has the ids of the events")
		})
	})
	return cmd
}

func printActions(p Process, all []operator.Action) {
	printTable(p, all, func(a operator.Action) []any {
		details := ""
		if text := string(a.Details); text != "{}" {
			details = firstLine(&text)
		}
		return []any{a.ActedAt.Format(time.RFC3339), a.Action, a.ActedBy, a.Login, orDash(a.Generation), a.Events, details}
	}, []string{"LOGIN", "GENERATION", "DETAILS", "EVENTS", "BY"}, "ACTED", "ACTION", "BY", "LOGIN", "GENERATION",
		"EVENTS", "DETAILS")
}
