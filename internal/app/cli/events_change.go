package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"time"

	"github.com/google/uuid"
	"github.com/spf13/cobra"
	"golang.org/x/time/rate"

	"spectral/internal/app"
	"spectral/internal/core/events"
	"spectral/internal/core/events/infrastructure/postgres/operator"
)

const (
	fewEvents     = 20 // are listed before a question
	progressEvery = 5 * time.Second
)

// bulk is a command that changes events: those named by id, or all that a filter selects. It shows them and asks.
type bulk struct {
	verb, done string            // like Replay and replayed
	further    func() string     // the end of the question: when or where; may be nil
	statuses   []operator.Status // of events that it takes; the first is the default
	force      *bool             // needed for delivered events
	tried      *bool             // a filter selects only events that were tried
	change     func(by string) operator.Change
	// show prints what would be done; with full it prints all, as the result of a dry run.
	show func(_ context.Context, _ Process, _ *operator.Client, _ operator.Selection, full bool) error
}

// bulkCommand gives cmd the flags and the run function of b.
func bulkCommand(p Process, cmd *cobra.Command, b bulk) *cobra.Command {
	pace := operator.Pace{Batch: operator.DefaultBatch, Rate: operator.DefaultRate}
	var timeout time.Duration
	var ids []uuid.UUID
	flags := cmd.Flags()
	filter := filterFlags(cmd, b.statuses[0], b.statuses...)
	all := flags.Bool("all", false, "all "+string(b.statuses[0])+" events")
	dryRun := flags.Bool("dry-run", false, "show what would be done, and change nothing")
	yes := yesFlag(cmd)
	oneFlag(flags, &pace.Batch, "batch", fmt.Sprintf("events in a transaction, from 1 to %d", operator.MaxBatch),
		between(strconv.Atoi, 1, operator.MaxBatch))
	oneFlag(flags, &pace.Rate, "rate", "events per second at most; 0: no limit", between(parseFloat, 0, 1e9))
	timeoutFlag(cmd, &timeout)
	who := by(cmd, p)
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		filtered := *all || !reflect.DeepEqual(*filter, operator.Filter{})
		switch {
		case len(args) > 0 && filtered:
			return errors.New("events are named by id, and a filter or --all is given too: leave one of them out")
		case len(args) == 0 && !filtered: // it would select everything
			return errors.New("which events? name them by id, or by a filter like --type, or pass --all; `workers events " +
				"list` shows them")
		case slices.Contains(filter.Statuses, operator.Delivered) && !*b.force:
			return errors.New("--status delivered: delivered events are replayed only with --force")
		}
		err := positional(cobra.ArbitraryArgs, &ids, parseID)(cmd, args)
		slices.SortFunc(ids, func(a, b uuid.UUID) int { return bytes.Compare(a[:], b[:]) })
		ids = slices.Compact(ids)
		return err
	}
	return operating(p, cmd, func(ctx context.Context, p Process, o *app.Operator) (err error) {
		if len(filter.Statuses) == 0 {
			filter.Statuses = b.statuses[:1]
		}
		filter.Tried = b.tried
		if pace.Rate == 0 {
			pace.Rate = -1
		}
		var selection operator.Selection
		if len(ids) > 0 {
			selection, err = o.Events.SelectNamed(ctx, ids, b.change(*who))
		} else {
			selection, err = o.Events.Select(ctx, *filter, timeout)
			if err == nil && slices.Contains(b.statuses, operator.Quarantined) &&
				!slices.Contains(filter.Statuses, operator.Quarantined) {
				_, err = noteQuarantined(ctx, p, o.Events, *filter, "`workers events list --status quarantined` says why; "+
					"when that is removed, name them by id")
			}
		}
		if err != nil {
			return err
		}
		n := selection.Len()
		switch {
		case *dryRun:
			notDone(p)
			return b.show(ctx, p, o.Events, selection, true)
		case n > 0 && !*yes:
			if err := b.show(ctx, p.onStderr(), o.Events, selection, false); err != nil {
				return err
			}
			question := b.verb + " " + eventsText(n)
			if b.further != nil {
				question += b.further()
			}
			if err := consent(ctx, p, false, question+"?"); err != nil {
				return err
			}
		}
		sometimes := rate.Sometimes{Interval: progressEvery}
		pace.Progress = func(through int) {
			if through < n {
				sometimes.Do(func() { p.notef("%d of %s", through, eventsText(n)) })
			}
		}
		rarely := rate.Sometimes{Interval: progressEvery}
		pace.Waiting = func(cause error) { rarely.Do(func() { p.notef("waiting: for the database: %v", cause) }) }
		result, err := o.Events.Apply(ctx, selection, b.change(*who), pace)
		return b.report(p, result, err, len(ids) > 0)
	})
}

// report prints what was done. It returns an error if a named event was skipped.
func (b *bulk) report(p Process, result operator.BulkResult, err error, named bool) error {
	err = errors.Join(err, p.print(result, func() {
		p.printf("%s %s\n", b.done, eventsText(result.Done))
		if result.Skipped > 0 {
			p.notef("%s skipped, changed or locked since the selection:", eventsText(result.Skipped))
		}
		for _, left := range result.Reasons[:min(len(result.Reasons), fewEvents)] {
			p.notef("  %s is %s", left.EventID, left.State)
		}
		if more := result.Skipped - fewEvents; more > 0 {
			p.notef("  ... and %d more", more)
		}
	}))
	switch {
	case err != nil && result.NotReached > 0:
		return fmt.Errorf("%w; %s not reached: repeat the command to go on", err, eventsText(result.NotReached))
	case err == nil && named && result.Skipped > 0:
		return fmt.Errorf("%s not %s: `workers events show` says what changed; then repeat the command",
			app.Counted(result.Skipped, "named event"), b.done)
	default:
		return err
	}
}

// noteQuarantined says, and returns, how many quarantined events a filter would select; then follows what to do.
func noteQuarantined(ctx context.Context, p Process, c *operator.Client, f operator.Filter, then string) (int, error) {
	f.Statuses = []operator.Status{operator.Quarantined}
	s, err := c.Select(ctx, f, 0)
	if s.Len() > 0 {
		p.notef("%s left out: %s", app.Counted(s.Len(), "quarantined event"), then)
	}
	return s.Len(), err
}

func eventsText(n int) string { return app.Counted(n, "event") }

// showEvents lists the events that would be changed; with full all of them.
func showEvents(ctx context.Context, p Process, c *operator.Client, s operator.Selection, full bool) error {
	limit := fewEvents
	if full {
		limit = s.Len()
	}
	all, err := c.Shown(ctx, s, limit)
	if err != nil {
		return err
	}
	return p.print(map[string]any{"as_of": s.AsOf.UTC(), "count": s.Len(), "events": all}, func() {
		printEvents(p, all, s.AsOf)
		p.printf("%d of %s\n", len(all), eventsText(s.Len()))
	})
}

func eventsReplayCommand(p Process) *cobra.Command {
	cmd := &cobra.Command{
		Use: "replay [ID...]", Short: "Make failed events run again in a generation",
		Long: `Make failed events pending in the generation --to, with all their retries: those named by id, or all that
match the flags. Handlers that have handled an event do not run again.

The command shows what would happen, and asks. It skips and reports events that changed since. Interrupted, it can be
repeated. --force also replays delivered events that are named by id or selected with --status delivered.`,
		Example: `  workers events replay 0198c5d4-9a52-7c11-8f0e-3b7a4d2f6e10 --to 8
  workers events replay --all --to 8 --rate 200 --by anna --yes
  workers events replay --status delivered --newer-than 1d --to 8 --force`,
	}
	var to events.Generation
	oneFlag(cmd.Flags(), &to, "to", "generation that handles them", events.ParseGeneration)
	force := cmd.Flags().Bool("force", false, "allow delivered events: named by id, or with --status delivered")
	_ = cmd.MarkFlagRequired("to")
	return bulkCommand(p, cmd, bulk{
		verb: "Replay", done: "replayed", further: func() string { return fmt.Sprintf(" into generation %d", to) },
		statuses: []operator.Status{operator.Failed, operator.Delivered}, force: force,
		change: func(by string) operator.Change { return operator.Replay(to, by, *force) },
		show: func(ctx context.Context, p Process, c *operator.Client, s operator.Selection, full bool) error {
			return showReplay(ctx, p, c, s, to, full)
		},
	})
}

// showReplay prints what a replay would do: in sum, and for each event if there are few or full is set.
func showReplay(ctx context.Context, p Process, c *operator.Client, s operator.Selection, to events.Generation,
	full bool) error {
	preview, err := c.PreviewReplay(ctx, s, to, full || s.Len() <= fewEvents)
	if err != nil {
		return err
	}
	return p.print(preview, func() {
		printTable(p, preview.Effects, func(e operator.Effect) []any {
			effect := "would run"
			switch {
			case e.Handler == "":
				effect = "NO HANDLER"
			case e.HandledAt != nil:
				effect, e.Note = "already handled", timestamp(e.HandledAt)
			}
			return []any{e.EventID, e.EventType, e.Handler, effect, e.Note}
		}, "EVENT", "TYPE", "HANDLER", "EFFECT", "NOTE")
		printTable(p, preview.Handlers, func(h operator.HandlerEffect) []any {
			return []any{h.EventType, h.Handler, h.WouldRun, h.Handled}
		}, "TYPE", "HANDLER", "WOULD RUN", "ALREADY HANDLED")
		for _, u := range preview.Unhandled {
			p.printf("NO HANDLER for %s of type %s: %s\n", eventsText(u.Events), u.EventType, u.Note)
		}
		for _, pause := range preview.Paused {
			p.printf("%s\n", pauseLine(pause))
		}
		p.printf("%s into generation %d, as of %s\n", eventsText(preview.Events), preview.To, timestamp(&preview.AsOf))
	})
}

func eventsDiscardCommand(p Process) *cobra.Command {
	var reason *string
	cmd := bulkCommand(p, &cobra.Command{
		Use: "discard [ID...]", Short: "Give up failed events",
		Long: `Give failed events up for good: those named by id, or all that the flags fit. Unless --yes is given, it shows
them first, and asks. For the days of grace ` + "`workers events undiscard`" + ` takes it back.`,
		Example: `  workers events discard 0198c5d4-9a52-7c11-8f0e-3b7a4d2f6e10 --reason gone
  workers events discard --error-contains "no such card" --reason gone --yes`,
	}, bulk{
		verb: "Discard", done: "discarded", statuses: []operator.Status{operator.Failed},
		change: func(by string) operator.Change { return operator.Discard(by, *reason) }, show: showEvents,
	})
	reason = reasonFlag(cmd)
	return cmd
}

func eventsUndiscardCommand(p Process) *cobra.Command {
	return bulkCommand(p, &cobra.Command{
		Use: "undiscard [ID...]", Short: "Make discarded events failed again, within the days of grace",
		Example: `  workers events undiscard 0198c5d4-9a52-7c11-8f0e-3b7a4d2f6e10`,
	}, bulk{
		verb: "Undiscard", done: "undiscarded", statuses: []operator.Status{operator.Discarded},
		change: operator.Undiscard, show: showEvents,
	})
}

func eventsRetryNowCommand(p Process) *cobra.Command {
	tried := true
	return bulkCommand(p, &cobra.Command{
		Use: "retry-now [ID...]", Short: "Make waiting events due now, and end the quarantine of events",
		Long: `Make events due now that wait for a retry: those named by id, or all that match the flags. Their tries so far
count. Events that were published for a later time, and never tried, must be named by id. Quarantined events, also with
--status quarantined, are claimed again: first remove what rejects the change of their rows.`,
		Example: `  workers events retry-now 0198c5d4-9a52-7c11-8f0e-3b7a4d2f6e10`,
	}, bulk{
		verb: "Retry", done: "made due", further: func() string { return " now" },
		statuses: []operator.Status{operator.Scheduled, operator.Quarantined}, tried: &tried,
		change: operator.RetryNow, show: showEvents,
	})
}

func eventsPauseCommand(p Process) *cobra.Command {
	cmd := &cobra.Command{
		Use: "pause TYPE", Short: "Stop handling an event type in a generation",
		Long: `Stop handling an event type in a generation until ` + "`workers events resume`" + `. Publishing goes on, and
workers finish the events that they hold. ` + "`workers events stats`" + ` lists what is paused.`,
		Example: `  workers events pause decision.recorded --generation 8 --reason "bad deploy"`,
	}
	reason := reasonFlag(cmd)
	return pausing(p, cmd, "paused", func(c *operator.Client, ctx context.Context, eventType string,
		g events.Generation, by string) error {
		return c.Pause(ctx, eventType, g, by, *reason)
	})
}

func eventsResumeCommand(p Process) *cobra.Command {
	return pausing(p, &cobra.Command{
		Use: "resume TYPE", Short: "Handle a paused event type again",
		Long: `End a pause of ` + "`workers events pause`" + ` and wake the workers: they handle the events that waited, the
oldest first.`,
		Example: `  workers events resume decision.recorded --generation 8`,
	}, "resumed", (*operator.Client).Resume)
}

// pausing makes cmd change whether an event type is paused in a generation.
func pausing(p Process, cmd *cobra.Command, done string, change func(_ *operator.Client, _ context.Context,
	eventType string, _ events.Generation, by string) error) *cobra.Command {
	var types []string
	var generation events.Generation
	cmd.Args = positional(cobra.ExactArgs(1), &types, word)
	cmd.ValidArgsFunction = cobra.FixedCompletions(knownTypes(), cobra.ShellCompDirectiveNoFileComp)
	oneFlag(cmd.Flags(), &generation, "generation", "deployment generation", events.ParseGeneration)
	_ = cmd.MarkFlagRequired("generation")
	who := by(cmd, p)
	return operating(p, cmd, func(ctx context.Context, p Process, o *app.Operator) error {
		if err := change(o.Events, ctx, types[0], generation, *who); err != nil {
			return err
		}
		result := map[string]any{"event_type": types[0], "generation": generation, "is_paused": done == "paused"}
		return p.print(result, func() { p.printf("%s %s in generation %d\n", done, types[0], generation) })
	})
}

// notePauses prints the paused types beside a result: no worker handles them.
func notePauses(p Process, pauses []operator.Pause) {
	for _, pause := range pauses {
		p.notef("%s", pauseLine(pause))
	}
}

func pauseLine(pause operator.Pause) string {
	reason := ""
	if pause.Reason != nil {
		reason = ": " + *pause.Reason
	}
	return fmt.Sprintf("paused: %s in generation %d, since %s, by %s%s; `workers events resume %[1]s --generation %[2]d` "+
		"ends that", pause.EventType, pause.Generation, timestamp(&pause.PausedAt), pause.PausedBy, reason)
}
