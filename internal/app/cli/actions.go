package cli

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"spectral/internal/core/events/infrastructure/postgres/admin"
)

// actionsCommand groups what there is to ask about what operators did.
func actionsCommand(p Process) *cobra.Command {
	cmd := &cobra.Command{
		Use: "actions", Short: "See what operators did, and who it was",
		Long: `See what operators did: core.operator_actions has a row for each call that acts, by command or SQL, with who did it, as they said and by
their login, and the events it was done to.`,
		Example: `  workers actions list
  workers actions list --by anna --newer-than 1d`,
	}
	group(cmd, "which command of actions? see `workers actions --help`")
	cmd.AddCommand(actionsListCommand(p))
	return cmd
}

func actionsListCommand(p Process) *cobra.Command {
	var page admin.ActionPage
	cmd := &cobra.Command{
		Use: "list", Short: "List what operators did, the latest first", Args: noArguments,
		Long: `List what operators did that all the given flags fit, the latest first. A flag may be given several times, or several values joined by
commas; any of them will do. --by fits who they said they are, and their login.

Each line is one call: a replay of many events is one for each batch. --json has the ids of the events, too. What is past its
retention is not listed (` + "`workers retention status`" + `).`,
		Example: `  workers actions list
  workers actions list --event 0198c5d4-9a52-7c11-8f0e-3b7a4d2f6e10
  workers actions list --by anna --action replay,discard --newer-than 1d
  workers actions list --generation 7 --json | jq -r '.actions[] | [.acted_at, .action, .acted_by] | @tsv'`,
	}
	flags := cmd.Flags()
	eventIDs := textsFlag(flags, "event", "id of an event that was acted on")
	by := textsFlag(flags, "by", "who acted: as they said, or their login")
	actions := textsFlag(flags, "action", "what was done: "+admin.Joined(admin.ActionNames()))
	generations := generationsFlag(cmd, p)
	ages := ageFlags(cmd, "longer ago than this, like 90m or 3d")
	asJSON := jsonFlag(cmd)
	flags.IntVar(&page.Limit, "limit", admin.DefaultPageSize, fmt.Sprintf("actions to list, from 1 to %d", admin.MaxPageSize))
	after := textFlag(flags, "after", "go on behind the page that ended with this cursor, with the same flags")
	timeout := timeoutFlag(cmd)
	completeFlag(cmd, "action", admin.ActionNames)
	for _, name := range []string{"event", "by", "limit", "after"} {
		completeFlag(cmd, name, func() []string { return nil })
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if page.Limit < 1 || page.Limit > admin.MaxPageSize {
			return usageError{fmt.Errorf("--limit %d: want a number from 1 to %d; for more go on with --after", page.Limit, admin.MaxPageSize)}
		}
		page.After = *after
		filter := admin.ActionFilter{By: *by, Actions: *actions}
		var problems []error
		for _, e := range *eventIDs {
			id, err := parseID(e)
			if err != nil {
				problems = append(problems, fmt.Errorf("--event %w", err))
			}
			filter.Events = append(filter.Events, id)
		}
		var err error
		filter.Generations, err = generations()
		problems = append(problems, err)
		filter.OlderThan, filter.NewerThan, err = ages()
		problems = append(problems, err)
		if errors.Join(problems...) == nil {
			problems = append(problems, filter.Validate())
		}
		if err := errors.Join(problems...); err != nil {
			return usageError{err}
		}
		if page.Timeout, err = timeout(); err != nil {
			return err
		}
		page.EventIDs = *asJSON
		return operating(p, func(cmd *cobra.Command, _ []string, a *admin.Admin) error {
			found, err := a.Actions(cmd.Context(), filter, page)
			if errors.Is(err, admin.ErrCursor) {
				return usageError{fmt.Errorf("--after: %w", admin.ErrCursor)}
			}
			if err != nil {
				return err
			}
			tellUnknown(cmd.Context(), p, a, admin.Filter{Generations: filter.Generations}, len(found.Actions) > 0)
			for _, action := range filter.Actions {
				if len(found.Actions) == 0 && !slices.Contains(admin.ActionNames(), action) { // a newer build may have others
					_, _ = fmt.Fprintf(p.Stderr, "action %s is none that this build knows%s\n", visible(action), didYouMean(nearest(action, admin.ActionNames())))
				}
			}
			if *asJSON {
				return printJSON(p, found)
			}
			printActions(p, found.Actions)
			if len(found.Actions) == 0 {
				_, _ = fmt.Fprintln(p.Stderr, "no action fits")
			}
			if found.Next != "" {
				_, _ = fmt.Fprintln(p.Stderr, "there are more: --after", found.Next)
			}
			return nil
		})(cmd, args)
	}
	return cmd
}

// printActions prints a line for each action.
func printActions(p Process, all []admin.Action) {
	if len(all) == 0 {
		return
	}
	rows := make([][]any, len(all))
	for i, a := range all {
		generation, details := "-", ""
		if a.Generation != nil {
			generation = fmt.Sprint(*a.Generation)
		}
		if text := string(a.Details); text != "{}" {
			details = firstLine(&text)
		}
		rows[i] = []any{a.ActedAt.Format(time.RFC3339), visible(a.Action), visible(a.ActedBy), visible(a.Login), generation, a.Events, details}
	}
	printTable(p, []column{
		{title: "ACTED"}, {title: "ACTION"}, {title: "BY", cut: true}, {title: "LOGIN", cut: true}, {title: "GENERATION", right: true}, {title: "EVENTS", right: true},
		{title: "DETAILS", cut: true},
	}, rows)
}
