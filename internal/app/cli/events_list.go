package cli

import (
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"spectral/internal/core/events/infrastructure/postgres/admin"
)

func eventsListCommand(p Process) *cobra.Command {
	var page admin.Page
	cmd := &cobra.Command{
		Use: "list", Short: "List events, those that failed unless told otherwise", Args: noArguments,
		Long: `List the events that all the given flags fit, the latest first: by when they failed, are due, or were published. A flag may be
given several times, or several values joined by commas; any of them will do.

Statuses: due and scheduled are the pending ones, whose time has come or has not; in_flight; delivered; failed, the dead
letters; discarded, dead letters that somebody discarded. What is past its retention is not listed.

The age is that of the failure if the event has failed, else of the event.`,
		Example: `  workers events list
  workers events list --type decision.recorded --error IntegrityError --newer-than 1h
  workers events list --status pending --older-than 15m
  workers events list --limit 1000 --json | jq -r '.events[].event_id'`,
	}
	filter := filterFlags(cmd, p, admin.Failed)
	asJSON := jsonFlag(cmd)
	cmd.Flags().IntVar(&page.Limit, "limit", admin.DefaultPageSize, fmt.Sprintf("events to list, from 1 to %d", admin.MaxPageSize))
	after := textFlag(cmd.Flags(), "after", "go on behind the page that ended with this cursor, with the same flags")
	timeout := timeoutFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if page.Limit < 1 || page.Limit > admin.MaxPageSize {
			return usageError{fmt.Errorf("--limit %d: want a number from 1 to %d; for more go on with --after", page.Limit, admin.MaxPageSize)}
		}
		page.After = *after
		chosen, err := filter()
		if err != nil {
			return err
		}
		if page.Timeout, err = timeout(); err != nil {
			return err
		}
		return operating(p, func(cmd *cobra.Command, _ []string, a *admin.Admin) error {
			found, err := a.Find(cmd.Context(), orOf(chosen, admin.Failed), page)
			if errors.Is(err, admin.ErrCursor) {
				return usageError{fmt.Errorf("--after: %w", admin.ErrCursor)}
			}
			if err != nil {
				return err
			}
			tellUnknown(cmd.Context(), p, a, chosen, len(found.Events) > 0)
			paused, err := a.Pauses(cmd.Context())
			if err != nil {
				return err
			}
			if *asJSON {
				return printJSON(p, struct {
					admin.Found
					Paused []admin.Pause `json:"paused"`
				}{found, paused})
			}
			printEvents(p, found.Events, found.AsOf)
			if len(found.Events) == 0 {
				_, _ = fmt.Fprintln(p.Stderr, "no event fits")
			}
			if found.Next != "" {
				_, _ = fmt.Fprintln(p.Stderr, "there are more: --after", found.Next)
			}
			printPauseLines(p, paused)
			return nil
		})(cmd, args)
	}
	return cmd
}

// timeoutFlag adds --timeout, of a search, and returns what reads it.
func timeoutFlag(cmd *cobra.Command) func() (time.Duration, error) {
	timeout := cmd.Flags().Duration("timeout", admin.DefaultSearchTimeout, "give a search up after so long")
	return func() (time.Duration, error) {
		if *timeout < time.Millisecond || *timeout > 24*time.Hour {
			return 0, usageError{fmt.Errorf("--timeout %s: want a time span from 1ms to 24h", *timeout)}
		}
		return *timeout, nil
	}
}

// printEvents prints a line for each event.
func printEvents(p Process, all []admin.Event, now time.Time) {
	if len(all) == 0 {
		return
	}
	rows := make([][]any, len(all))
	for i, e := range all {
		rows[i] = []any{e.ID, string(e.Status), visible(e.EventType), route(e), workspace(e), e.Attempts, e.PriorReplays, e.Generation, moment(e, now), firstLine(e.LastError)}
	}
	printTable(p, []column{
		{title: "ID"}, {title: "STATUS", colour: statusColour}, {title: "TYPE", cut: true}, {title: "SOURCE", cut: true}, {title: "WORKSPACE", cut: true},
		{title: "TRIES", right: true}, {title: "REPLAYS", right: true}, {title: "GENERATION", right: true}, {title: "WHEN"}, {title: "ERROR", cut: true},
	}, rows)
}

// route is which context told which.
func route(e admin.Event) string {
	if e.Target == nil {
		return string(e.Source) + " -> all"
	}
	return string(e.Source) + " -> " + string(*e.Target)
}

func workspace(e admin.Event) string {
	if !e.WorkspaceID.Valid {
		return "-"
	}
	return e.WorkspaceID.UUID.String()
}

// moment is what the status of an event makes the most telling of its times.
func moment(e admin.Event, now time.Time) string {
	ago := func(what string, t *time.Time) string {
		if t == nil {
			return what + " at a time unknown"
		}
		return what + " " + age(now.Sub(*t)) + " ago"
	}
	switch e.Status {
	case admin.Failed:
		return ago("failed", e.FailedAt)
	case admin.Discarded:
		return ago("discarded", e.DeletedAt)
	case admin.Delivered:
		return ago("delivered", e.DeliveredAt)
	case admin.InFlight:
		return ago("leased", e.ClaimedAt)
	case admin.Scheduled:
		return "due in " + age(e.AvailableAt.Sub(now))
	case admin.Due:
		return "due for " + age(now.Sub(e.AvailableAt))
	default:
		return ago("published", &e.CreatedAt)
	}
}

// age is a time span in its largest unit, and the next below an hour's and a day's.
func age(d time.Duration) string {
	d = max(d, 0)
	switch {
	case d < time.Minute:
		return fmt.Sprintf("%ds", int(d.Seconds()))
	case d < time.Hour:
		return fmt.Sprintf("%dm", int(d.Minutes()))
	case d < 24*time.Hour:
		return fmt.Sprintf("%dh%02dm", int(d.Hours()), int(d.Minutes())%60)
	default:
		return fmt.Sprintf("%dd%02dh", int(d.Hours())/24, int(d.Hours())%24)
	}
}
