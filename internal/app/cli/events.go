package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"spectral/internal/app"
	"spectral/internal/core/events/infrastructure/postgres/operator"
)

func eventsCommand(p Process) *cobra.Command {
	return group(&cobra.Command{
		Use: "events", Short: "List events; replay, discard and pause them",
		Long: `List the events of core.outbox, replay or discard failed ones, and pause event types. Each change is written to
core.operator_actions. docs/runbook.md has the situations, symptom first.`,
		Example: `  workers events stats
  workers events replay --type decision.recorded --to 8 --dry-run`,
	}, eventsListCommand(p), eventsShowCommand(p), eventsStatsCommand(p),
		eventsReplayCommand(p), eventsDiscardCommand(p), eventsUndiscardCommand(p), eventsRetryNowCommand(p),
		eventsPauseCommand(p), eventsResumeCommand(p))
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
		err := fmt.Errorf("unknown command %.60q for %q", args[0], cmd.CommandPath())
		if meant := cmd.SuggestionsFor(args[0]); len(meant) > 0 {
			err = fmt.Errorf("%w: did you mean %s?", err, strings.Join(meant, " or "))
		}
		return usage(err)
	}
	return cmd
}

func eventsListCommand(p Process) *cobra.Command {
	var page operator.Page
	cmd := &cobra.Command{
		Use: "list", Short: "List events, by default the failed ones", Args: cobra.NoArgs,
		Long: `List the events that match all flags, the latest first: by the time they failed or are due, others by id. A
flag takes several values, joined by commas or by repeating it, and matches any of them.`,
		Example: `  workers events list
  workers events list --error IntegrityError --newer-than 1h
  workers events list --limit 1000 --json | jq -r '.events[].event_id'`,
	}
	filter := filterFlags(cmd, operator.Failed)
	pageFlags(cmd, &page.Limit, &page.After, "events")
	timeoutFlag(cmd, &page.Timeout)
	asJSON := jsonFlag(cmd)
	cmd.RunE = operating(p, func(ctx context.Context, _ []string, o *app.Operator) error {
		if len(filter.Statuses) == 0 {
			filter.Statuses = []operator.Status{operator.Failed}
		}
		found, err := o.Events.Find(ctx, *filter, page)
		if err != nil {
			return cursorError(err)
		}
		paused, err := o.Events.Pauses(ctx)
		if err != nil {
			return err
		}
		result := struct {
			operator.EventPage
			Paused []operator.Pause `json:"paused"`
		}{found, paused}
		return printed(p, *asJSON, result, func() {
			printEvents(p, found.Events, found.AsOf)
			pageEnd(p, len(found.Events), "event", found.Next)
			notePauses(p, paused)
			if len(found.Events) > 0 {
				p.next("workers events show %s", found.Events[0].ID)
			} else {
				p.next("workers events stats")
			}
		})
	})
	return cmd
}

func cursorError(err error) error {
	if errors.Is(err, operator.ErrCursor) {
		return usagef("--after: %w", operator.ErrCursor)
	}
	return err
}

// pageEnd prints beside a page that it is empty, or how to get the next one.
func pageEnd(p Process, n int, what, next string) {
	if n == 0 {
		p.notef("no %s matches", what)
	}
	if next != "" {
		p.notef("there are more: repeat the command with --after %s", next)
	}
}

func printEvents(p Process, all []operator.Event, now time.Time) {
	printTable(p, all, func(e operator.Event) []any {
		target := "all"
		if e.Target != nil {
			target = string(*e.Target)
		}
		return []any{e.ID, e.Status, e.EventType, string(e.Source) + " -> " + target, workspace(e), e.Attempts,
			e.PriorReplays, e.Generation, moment(e, now), firstLine(e.LastError)}
	}, []string{"WORKSPACE", "SOURCE", "REPLAYS", "GENERATION", "STATUS", "TRIES", "ERROR", "TYPE"}, "ID", "STATUS",
		"TYPE", "SOURCE", "WORKSPACE", "TRIES", "REPLAYS", "GENERATION", "WHEN", "ERROR")
}

func workspace(e operator.Event) string {
	if !e.WorkspaceID.Valid {
		return "-"
	}
	return e.WorkspaceID.UUID.String()
}

// moment returns the time that matters most for an event in its status.
func moment(e operator.Event, now time.Time) string {
	switch e.Status {
	case operator.Failed:
		return "failed " + distance(e.FailedAt, now)
	case operator.Discarded:
		return "discarded " + distance(e.DeletedAt, now)
	case operator.Delivered:
		return "delivered " + distance(e.DeliveredAt, now)
	case operator.InFlight:
		return "leased " + distance(e.ClaimedAt, now)
	case operator.Scheduled:
		return "due in " + age(e.AvailableAt.Sub(now))
	case operator.Due:
		return "due for " + age(now.Sub(e.AvailableAt))
	default:
		return "published " + distance(&e.CreatedAt, now)
	}
}

func eventsStatsCommand(p Process) *cobra.Command {
	count := operator.Count{Limit: operator.DefaultPageSize}
	cmd := &cobra.Command{
		Use: "stats", Args: cobra.NoArgs,
		Short: "Count events by status, failed ones by type and error",
		Long: `Count the events that match all flags. Without --by it counts all by status, then the failed ones by type,
source, target and error class. OLDEST and LATEST are the times at which failed events failed, pending ones are due,
events in flight were leased, and others were published.

From 100,000 on, delivered events by status are estimated (~). By other properties they are counted only with --status
delivered or --exact.`,
		Example: `  workers events stats
  workers events stats --status failed --by source,handler,error --newer-than 1d`,
	}
	flags := cmd.Flags()
	filter := filterFlags(cmd)
	asJSON := jsonFlag(cmd)
	dimensions := operator.Dimensions()
	wordsFlag(cmd, &count.By, "by", "properties to count by: "+operator.Joined(dimensions), dimensions)
	oneFlag(flags, &count.Limit, "limit", "groups to show, from 1 to "+strconv.Itoa(operator.MaxPageSize),
		between(strconv.Atoi, 1, operator.MaxPageSize))
	flags.BoolVar(&count.Exactly, "exact", false, "also count delivered events one by one")
	timeoutFlag(cmd, &count.Timeout)
	cmd.RunE = operating(p, func(ctx context.Context, _ []string, o *app.Operator) error {
		summary := len(count.By) == 0
		if summary {
			count.By = []operator.Dimension{operator.ByStatus}
		}
		counted, err := o.Events.Count(ctx, *filter, count)
		if err != nil {
			return err
		}
		all := []operator.Counts{counted}
		if summary && (len(filter.Statuses) == 0 || slices.Contains(filter.Statuses, operator.Failed)) {
			filter.Statuses = []operator.Status{operator.Failed}
			count.By = []operator.Dimension{operator.ByType, operator.BySource, operator.ByTarget, operator.ByError}
			if counted, err = o.Events.Count(ctx, *filter, count); err != nil {
				return err
			}
			all = append(all, counted)
		}
		paused, err := o.Events.Pauses(ctx)
		if err != nil {
			return err
		}
		return printed(p, *asJSON, map[string]any{"counts": all, "paused": paused}, func() {
			printCounted(p, all[0])
			if len(all) > 1 && len(all[1].Groups) > 0 {
				p.printf("\nfailed:\n")
				printCounted(p, all[1])
			}
			notePauses(p, paused)
			if len(all) > 1 && len(all[1].Groups) > 0 {
				p.next("workers events list")
			} else {
				p.next("workers doctor")
			}
		})
	})
	return cmd
}

func printCounted(p Process, c operator.Counts) {
	var titles, cut []string
	if slices.Contains(c.By, operator.ByType) { // which says where an event comes from
		cut = []string{"TARGET", "SOURCE"}
	}
	cut = append(cut, "LATEST", "OLDEST")
	for _, d := range c.By {
		titles = append(titles, strings.ToUpper(string(d)))
	}
	cut = append(cut, titles[1:]...)
	printTable(p, c.Groups, func(g operator.Group) (row []any) {
		for _, d := range c.By {
			value := "-"
			if v := g.Values[d]; v != nil {
				value = firstLine(v)
			}
			row = append(row, value)
		}
		n := any(g.Count)
		if g.Estimated {
			n = estimate(g.Count)
		}
		return append(row, n, distance(g.Oldest, c.AsOf), distance(g.Latest, c.AsOf))
	}, cut, append(titles, "COUNT", "OLDEST", "LATEST")...)
	if len(c.Groups) == 0 {
		p.notef("no event matches")
	}
	if c.More {
		p.notef("there are more groups: --limit takes up to %d", operator.MaxPageSize)
	}
	if c.DeliveredLeftOut {
		p.notef("delivered events are not counted here: --status delivered counts only them, --exact all")
	}
}
