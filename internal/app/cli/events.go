package cli

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/spf13/cobra"

	"spectral/internal/app"
	"spectral/internal/core/events"
	"spectral/internal/core/events/infrastructure/postgres/operator"
)

func eventsCommand(p Process) *cobra.Command {
	return group(&cobra.Command{
		Use: "events", Short: "List events; replay, discard and pause them",
		Long: `List the events of core.outbox, replay or discard failed ones, and pause event types. Each change is written to
core.operator_actions. docs/runbook.md has the situations, symptom first.`,
	}, eventsListCommand(p), eventsShowCommand(p), eventsExplainCommand(p), eventsStatsCommand(p), eventsGroupsCommand(p),
		eventsReplayCommand(p), eventsDiscardCommand(p), eventsUndiscardCommand(p), eventsRetryNowCommand(p),
		eventsPauseCommand(p), eventsResumeCommand(p))
}

func eventsListCommand(p Process) *cobra.Command {
	var page operator.Page
	cmd := &cobra.Command{
		Use: "list", Short: "List events, by default those that failed or are quarantined", Args: cobra.NoArgs,
		Long: `List the events that match all flags, the latest first: by the time they failed or are due, others by id. A
flag takes several values, joined by commas or by repeating it, and matches any of them. The status pending stands for
due and scheduled.`,
		Example: `  workers events list
  workers events list --error IntegrityError --newer-than 1h
  workers events list --limit 1000 --json | jq -r '.events[].event_id'`,
	}
	filter := filterFlags(cmd, "failed and quarantined", anyStatus()...)
	pageFlags(cmd, &page, "events")
	return operating(p, cmd, func(ctx context.Context, p Process, o *app.Operator) error {
		if len(filter.Statuses) == 0 {
			filter.Statuses = []operator.Status{operator.Failed, operator.Quarantined}
		}
		found, err := o.Events.Find(ctx, *filter, page)
		if err != nil {
			return err
		}
		paused, err := o.Events.Pauses(ctx)
		if err != nil {
			return err
		}
		return p.print(struct {
			operator.EventPage
			Paused []operator.Pause `json:"paused"`
		}{found, paused}, func() {
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
		return []any{e.ID, e.Status, e.EventType, string(e.Source) + " -> " + cmp.Or(textOf(e.Target), "all"), workspace(e),
			e.Attempts, e.PriorReplays, e.Generation, moment(e, now), firstLine(e.LastError)}
	}, "ID", "STATUS", "TYPE", "SOURCE", "WORKSPACE", "TRIES", "REPLAYS", "GENERATION", "WHEN", "ERROR")
}

func workspace(e operator.Event) string {
	if !e.WorkspaceID.Valid {
		return "-"
	}
	return e.WorkspaceID.UUID.String()
}

// moment returns the time that matters most for an event in its status.
func moment(e operator.Event, now time.Time) string {
	if e.WaitingFor != nil {
		return "waits for " + *e.WaitingFor
	}
	switch e.Status {
	case operator.Failed, operator.Discarded, operator.Delivered:
		return string(e.Status) + " " + distance(cmp.Or(e.DeletedAt, e.DeliveredAt, e.FailedAt), now)
	case operator.InFlight:
		return "leased " + distance(e.ClaimedAt, now)
	case operator.Scheduled, operator.Due:
		return "due " + distance(&e.AvailableAt, now)
	case operator.Quarantined:
		return "quarantined, due " + distance(&e.AvailableAt, now)
	default:
		return "published " + distance(&e.CreatedAt, now)
	}
}

func eventsStatsCommand(p Process) *cobra.Command {
	var count operator.Count
	var since time.Duration
	cmd := &cobra.Command{
		Use: "stats", Args: cobra.NoArgs,
		Short: "Count events by status, failed ones by type and error",
		Long: `Count the events that match all flags. Without --by it counts all by status, then the failed ones by type,
source, target and error class. OLDEST and LATEST are the times at which failed events failed, pending ones are due,
events in flight were leased, and others were published.

From 100,000 on, delivered events by status are estimated (~). By other properties they are counted only with --status
delivered or --exact. The status pending stands for due and scheduled.

With --since it shows what workers counted since then, at most 8 days ago: events published and delivered by type,
calls by handler, how long they took (the upper bounds of histograms), and when generations were deployed. Of that,
only --type and --generation can be chosen.`,
		Example: `  workers events stats
  workers events stats --since 24h
  workers events stats --status failed --by source,handler,error --newer-than 1d`,
	}
	filter := filterFlags(cmd, "all but discarded", anyStatus()...)
	dimensions := operator.Dimensions()
	wordsFlag(cmd, &count.By, "by", "properties to count by: "+operator.Joined(dimensions), dimensions)
	limitFlag(cmd, &count.Limit, "groups to show")
	cmd.Flags().BoolVar(&count.Exactly, "exact", false, "also count delivered events one by one")
	timeoutFlag(cmd, &count.Timeout)
	oneFlag(cmd.Flags(), &since, "since", "show what workers counted since then, like 24h or 3d", operator.ParseAge)
	return operating(p, cmd, func(ctx context.Context, p Process, o *app.Operator) error {
		if since > 0 {
			if err := checkTimelineFlags(cmd, since); err != nil {
				return err
			}
			t, err := o.Events.Timeline(ctx, since, *filter)
			if err != nil {
				return err
			}
			return p.print(t, func() { printTimeline(p, t) })
		}
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
		return p.print(map[string]any{"counts": all, "paused": paused}, func() {
			next := "workers doctor"
			printCounted(p, all[0])
			if len(all) > 1 && len(all[1].Groups) > 0 {
				p.printf("\nfailed:\n")
				printCounted(p, all[1])
				next = "workers events list"
			}
			notePauses(p, paused)
			p.next("%s", next)
		})
	})
}

func printCounted(p Process, c operator.Counts) {
	var titles []string
	for _, d := range c.By {
		titles = append(titles, strings.ToUpper(string(d)))
	}
	printTable(p, c.Groups, func(g operator.Group) (row []any) {
		for _, d := range c.By {
			row = append(row, firstLine(g.Values[d]))
		}
		return append(row, counted(g.Count, g.Estimated), distance(g.Oldest, c.AsOf), distance(g.Latest, c.AsOf))
	}, append(titles, "COUNT", "OLDEST", "LATEST")...)
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

func eventsShowCommand(p Process) *cobra.Command {
	var ids []uuid.UUID
	cmd := &cobra.Command{
		Use: "show ID", Short: "Show all that is known about an event",
		Args: positional(cobra.ExactArgs(1), &ids, operator.ParseID),
		Long: `Show an event: its envelope, routing, attempts and times, the state of each handler, its history, what
operators did to it, and its payload. It lists handlers that have handled or failed it, and those of live workers:

  handled      a replay skips it
  skipped      it had begun, and an operator's replay left it out
  failing      it failed, and is retried
  parked       it failed for good in this cycle; a replay runs it
  to_run       it has not run yet
  not_run      it did not exist when the event settled; a replay runs it
  not_target   the event is for another context: it does not run`,
		Example: `  workers events show 0198c5d4-9a52-7c11-8f0e-3b7a4d2f6e10`,
	}
	return operating(p, cmd, func(ctx context.Context, p Process, o *app.Operator) error {
		all, err := o.Events.Show(ctx, ids[0])
		if err != nil {
			return err
		}
		live, err := publishingDefault(ctx, o.Events)
		if err != nil {
			return err
		}
		return p.print(map[string]any{"events": all}, func() {
			for _, d := range all {
				printDetail(p, d)
			}
			if len(all) == 1 {
				nextOf(p, all[0], live)
			} else {
				p.notef("%d events have this id; they occurred at different times", len(all))
			}
		})
	})
}

// publishingDefault returns the highest live generation; 0: there is none.
func publishingDefault(ctx context.Context, c *operator.Client) (events.Generation, error) {
	all, err := c.Generations(ctx, nil)
	i := slices.IndexFunc(all, func(g operator.Generation) bool { return g.PublishingDefault })
	if i < 0 {
		return 0, err
	}
	return all[i].Generation, err
}

// nextOf prints what operators usually do next with an event.
func nextOf(p Process, d operator.Detail, live events.Generation) {
	switch {
	case d.Status == operator.Failed && live == 0:
		p.next("workers generation status") // a replay needs a live generation
	case d.Status == operator.Failed:
		p.next("workers events replay %s --to %d --dry-run", d.ID, live)
	case d.Status == operator.Discarded:
		p.next("workers events undiscard %s", d.ID)
	case d.Status == operator.Due, d.Status == operator.Scheduled, d.Status == operator.InFlight,
		d.Status == operator.Quarantined:
		p.next("workers events explain %s", d.ID)
	case d.Status == operator.Relayed:
		p.next("workers doctor relay")
	default:
		p.next("workers actions list --event %s", d.ID)
	}
}

func printDetail(p Process, d operator.Detail) {
	leased := ""
	if d.Status == operator.InFlight {
		leased = fmt.Sprintf("%s by %s until %s, running: %s", timestamp(d.ClaimedAt), textOf(d.ClaimedBy),
			timestamp(d.LeaseExpiresAt), cmp.Or(textOf(d.LeaseHandler), "none"))
	}
	available := timestamp(&d.AvailableAt)
	if d.WaitingFor != nil {
		available = "when the breaker of " + *d.WaitingFor + " closes"
	}
	p.printf("event %s  %s\n", d.ID, d.Status)
	for _, line := range [][2]string{
		{"type", fmt.Sprintf("%s version %d", d.EventType, d.EventVersion)},
		{"source", string(d.Source)},
		{"target", cmp.Or(textOf(d.Target), "every context")},
		{"workspace", workspace(d.Event)},
		{"occurred", d.OccurredAt.Format("2006-01-02T15:04:05.000000Z")}, // a part of the key
		{"key", d.IdempotencyKey},
		{"trace", textOf(d.TraceContext)},
		{"content", d.ContentClass},
		{"routing", fmt.Sprintf("generation %d, channel %s, class %s", d.Generation, d.Channel, d.Class)},
		{"attempts", fmt.Sprintf("%d in this cycle, %s, %s", d.Attempts, operator.Counted(d.PriorReplays, "prior replay"),
			operator.Counted(d.Crashes, "crash"))},
		{"published", timestamp(&d.CreatedAt)},
		{"available", available},
		{"first failed", timestamp(d.FirstFailedAt)},
		{"failed", timestamp(d.FailedAt)},
		{"leased", leased},
		{"relayed", timestamp(d.RelayedAt)},
		{"delivered", timestamp(d.DeliveredAt)},
		{"deleted", timestamp(d.DeletedAt)},
	} {
		if line[1] != "" {
			p.printf("  %-13s %s\n", line[0], visible(line[1]))
		}
	}
	if d.LastError != nil {
		p.printf("\nlast error\n%s\n", *d.LastError)
	}
	p.printf("\nhandlers\n")
	printTable(p, d.Handlers, func(s operator.HandlerState) []any {
		problem := s.Error
		if s.Class != "" {
			problem = s.Class + ": " + problem
		}
		if s.HandledAs != nil {
			problem = "by event " + s.HandledAs.String() + ", of the same key"
			if s.OtherPayload {
				problem += " but another payload"
			}
		}
		return []any{s.Handler, s.Stage, timestamp(s.HandledAt), s.Failures, s.Free, firstLine(&problem)}
	}, "HANDLER", "STATE", "SINCE", "FAILURES", "NOT COUNTED", "ERROR")
	if len(d.FailedAttempts) > 0 {
		p.printf("\nfailed attempts\n")
		printTable(p, d.FailedAttempts, func(a operator.FailedAttempt) []any {
			return []any{a.Handler, a.Attempt, timestamp(&a.StartedAt), fmt.Sprintf("%d ms", a.DurationMs), a.Worker, a.GroupID,
				a.ErrorClass + ": " + firstLine(&a.Error)}
		}, "HANDLER", "ATTEMPT", "STARTED", "TOOK", "WORKER", "GROUP", "ERROR")
	}
	printRelatives(p, d)
	if d.Workers == 0 {
		p.printf("no live worker of generation %d handles %s\n", d.Generation, d.EventType)
	}
	if d.Paused != nil {
		p.printf("%s\n", pauseLine(*d.Paused))
	}
	if len(d.History) > 0 {
		p.printf("\nhistory\n")
		for _, entry := range d.History {
			p.printf("%s\n", entry)
		}
	}
	if len(d.Actions) > 0 {
		p.printf("\noperator actions\n")
		printActions(p, d.Actions)
	}
	var pretty bytes.Buffer
	if err := json.Indent(&pretty, d.Payload, "", "  "); err != nil {
		pretty = *bytes.NewBuffer(d.Payload)
	}
	p.printf("\npayload\n%s\n", &pretty)
}

// printRelatives prints what caused an event and what it caused as a tree, if there is any of that.
func printRelatives(p Process, d operator.Detail) {
	if len(d.Causes) == 0 && len(d.Effects) == 0 {
		return
	}
	p.printf("\ncauses and effects\n")
	line := func(depth int, id uuid.UUID, eventType string, status operator.Status) {
		p.printf("  %s%s  %s  %s\n", strings.Repeat("  ", depth+len(d.Causes)), id, cmp.Or(eventType, "gone"), status)
	}
	for _, r := range d.Causes {
		line(r.Depth, r.EventID, r.EventType, r.Status)
	}
	line(0, d.ID, d.EventType, d.Status+"  <- this event")
	for _, r := range d.Effects {
		line(r.Depth, r.EventID, r.EventType, r.Status)
	}
}

func actionsCommand(p Process) *cobra.Command {
	return group(&cobra.Command{Use: "actions", Short: "See what operators did, and when"}, actionsListCommand(p))
}

func actionsListCommand(p Process) *cobra.Command {
	var filter operator.ActionFilter
	var page operator.Page
	cmd := &cobra.Command{
		Use: "list", Short: "List what operators did, the latest first", Args: cobra.NoArgs,
		Long: `List the rows of core.operator_actions that match all flags: each call that changed something, by command or
SQL. A bulk command makes a call for each batch. A flag takes several values, joined by commas or by repeating it.`,
		Example: `  workers actions list
  workers actions list --by anna --action replay,discard --newer-than 1d
  workers actions list --json | jq -r '.actions[] | [.acted_by, .action] | @tsv'`,
	}
	flags := cmd.Flags()
	listFlag(flags, &filter.Events, "event", "id of an event that was changed", operator.ParseID)
	listFlag(flags, &filter.By, "by", "who acted: the name that they gave, or their login", word)
	wordsFlag(cmd, &filter.Actions, "action", "what was done: "+operator.Joined(operator.ActionNames()),
		operator.ActionNames())
	listFlag(flags, &filter.Generations, "generation", "deployment generation", events.ParseGeneration)
	oneFlag(flags, &filter.OlderThan, "older-than", "longer ago than this, like 90m or 3d", operator.ParseAge)
	oneFlag(flags, &filter.NewerThan, "newer-than", "not longer ago than this", operator.ParseAge)
	pageFlags(cmd, &page, "actions")
	return operating(p, cmd, func(ctx context.Context, p Process, o *app.Operator) error {
		page.EventIDs = p.asJSON
		found, err := o.Events.Actions(ctx, filter, page)
		if err != nil {
			return err
		}
		return p.print(found, func() {
			printActions(p, found.Actions)
			pageEnd(p, len(found.Actions), "action", found.Next)
			p.next("workers actions list --json, which has the ids of the events")
		})
	})
}

func printActions(p Process, all []operator.Action) {
	printTable(p, all, func(a operator.Action) []any {
		details := strings.TrimPrefix(string(a.Details), "{}")
		return []any{timestamp(&a.ActedAt), a.Action, a.ActedBy, a.Login, textOf(a.Generation), a.Events, firstLine(&details)}
	}, "ACTED", "ACTION", "BY", "LOGIN", "GENERATION", "EVENTS", "DETAILS")
}
