package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
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
	operation  bool              // what a filter selects becomes an operation
	change     func(by string) operator.Change
	// show prints what would be done; with full it prints all, as the result of a dry run.
	show func(_ context.Context, _ Process, _ *operator.Client, _ operator.Selection, _ plan, full bool) error
	// check returns an error if the flags do not say all that is needed, before an operation begins. Nil: they do.
	check func(context.Context, *operator.Client, operator.Selection) error
}

// plan is what a command says of its plan, besides what it would do.
type plan struct {
	Plan    string  `json:"plan"`    // its name, which binds a run to it
	Command string  `json:"command"` // that carries it out
	Seconds float64 `json:"seconds"` // that it takes at its rate
	Changed int     `json:"changed"` // events of the plan that was passed, left out because they have changed since
}

func (pl plan) print(p Process) {
	if pl.Changed > 0 {
		p.printf("%s changed since the plan: left out\n", eventsText(pl.Changed))
	}
	p.printf("about %s at its rate; this plan: %s\n", age(time.Duration(pl.Seconds*float64(time.Second))), pl.Command)
}

// bulkRun is one run of a bulk command.
type bulkRun struct {
	bulk
	filter  *operator.Filter
	ids     []uuid.UUID
	pace    operator.Pace
	course  operator.Course
	planned operator.PlanName // that was passed; the zero value: none
	timeout time.Duration
	by      *string
	dryRun  bool
	yes     *bool
	command func() string // the command line, without --plan
}

// bulkCommand gives cmd the flags and the run function of b.
func bulkCommand(p Process, cmd *cobra.Command, b bulk) *cobra.Command {
	r := &bulkRun{bulk: b, pace: operator.Pace{Batch: operator.DefaultBatch, Rate: operator.DefaultRate}}
	flags := cmd.Flags()
	r.filter = filterFlags(cmd, b.statuses[0], b.statuses...)
	all := flags.Bool("all", false, "all "+string(b.statuses[0])+" events")
	flags.BoolVar(&r.dryRun, "dry-run", false, "show what would be done, and change nothing")
	r.yes = yesFlag(cmd)
	oneFlag(flags, &r.pace.Batch, "batch", fmt.Sprintf("events in a transaction, from 1 to %d", operator.MaxBatch),
		between(strconv.Atoi, 1, operator.MaxBatch))
	oneFlag(flags, &r.pace.Rate, "rate", "events per second at most; 0: no limit", between(parseFloat, 0, 1e9))
	timeoutFlag(cmd, &r.timeout)
	r.by = by(cmd, p)
	if b.operation {
		oneFlag(flags, &r.planned, "plan",
			"carry out the plan that --dry-run printed, with the same flags; what changed since is left out",
			operator.ParsePlanName)
	}
	r.command = func() string { return commandLine(cmd) }
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		filtered := *all || !reflect.DeepEqual(*r.filter, operator.Filter{})
		switch {
		case len(args) > 0 && filtered:
			return errors.New("events are named by id, and a filter or --all is given too: leave one of them out")
		case len(args) > 0 && (r.planned != operator.PlanName{} || r.course.Canary > 0):
			return errors.New("--plan and --canary are for events that a filter selects: leave out the ids")
		case len(args) == 0 && !filtered: // it would select everything
			return errors.New("which events? name them by id, or by a filter like --type, or pass --all; `workers events " +
				"list` shows them")
		case slices.Contains(r.filter.Statuses, operator.Delivered) && !*b.force:
			return errors.New("--status delivered: delivered events are replayed only with --force")
		}
		err := positional(cobra.ArbitraryArgs, &r.ids, operator.ParseID)(cmd, args)
		slices.SortFunc(r.ids, func(a, b uuid.UUID) int { return bytes.Compare(a[:], b[:]) })
		r.ids = slices.Compact(r.ids)
		return err
	}
	if b.operation {
		operationFlags(cmd, &r.course)
	}
	return operating(p, cmd, func(ctx context.Context, p Process, o *app.Operator) error {
		return r.run(ctx, p, o.Events)
	})
}

func (r *bulkRun) run(ctx context.Context, p Process, c *operator.Client) error {
	if len(r.filter.Statuses) == 0 {
		r.filter.Statuses = r.statuses[:1]
	}
	r.filter.Tried = r.tried
	if r.pace.Rate == 0 {
		r.pace.Rate = -1
	}
	change := r.change(*r.by)
	s, about, err := r.selected(ctx, p, c, change)
	if err != nil {
		return err
	}
	n := s.Len()
	if r.operation && n > 0 {
		if err := noteOperations(ctx, p, c); err != nil {
			return err
		}
	}
	switch {
	case r.dryRun:
		notDone(p)
		return r.show(ctx, p, c, s, about, true)
	case n > 0 && !*r.yes:
		if err := r.show(ctx, p.onStderr(), c, s, about, false); err != nil {
			return err
		}
		question := r.verb + " " + eventsText(n)
		if r.further != nil {
			question += r.further()
		}
		if err := consent(ctx, p, false, question+"?"); err != nil {
			return err
		}
	}
	if about.Changed > 0 {
		p.notef("%s changed since the plan: left out", eventsText(about.Changed))
	}
	if r.operation && len(r.ids) == 0 && n > 0 {
		if r.check != nil {
			if err := r.check(ctx, c, s); err != nil {
				return err
			}
		}
		r.course.Rate, r.course.Batch = r.pace.Rate, r.pace.Batch
		id, err := c.BeginOperation(ctx, s, change, r.command(), about.Plan, r.course)
		if err != nil {
			return err
		}
		return follow(ctx, p, c, id, r.done)
	}
	sometimes := rate.Sometimes{Interval: progressEvery}
	r.pace.Progress = func(through int) {
		if through < n {
			sometimes.Do(func() { p.notef("%d of %s", through, eventsText(n)) })
		}
	}
	rarely := rate.Sometimes{Interval: progressEvery}
	r.pace.Waiting = func(cause error) { rarely.Do(func() { p.notef("waiting: for the database: %v", cause) }) }
	result, err := c.Apply(ctx, s, change, r.pace)
	return r.report(p, result, err, len(r.ids) > 0)
}

// selected returns the events that the flags select, as of the plan that was passed, and what is to be said of it.
func (r *bulkRun) selected(ctx context.Context, p Process, c *operator.Client, change operator.Change) (
	s operator.Selection, about plan, err error) {
	if len(r.ids) > 0 {
		s, err = c.SelectNamed(ctx, r.ids, change)
	} else {
		r.filter.AsOf = r.planned.AsOf
		s, err = c.Select(ctx, *r.filter, r.timeout)
		if err == nil && slices.Contains(r.statuses, operator.Quarantined) &&
			!slices.Contains(r.filter.Statuses, operator.Quarantined) {
			_, err = noteQuarantined(ctx, p, c, *r.filter, "`workers events list --status quarantined` says why; "+
				"when that is removed, name them by id")
		}
	}
	if err != nil {
		return s, about, err
	}
	name := operator.Plan(s, change, *r.filter)
	if (r.planned != operator.PlanName{}) {
		about.Changed, err = r.planned.Check(name)
	}
	about.Plan, about.Command = name.String(), r.command()
	if r.operation && len(r.ids) == 0 {
		about.Command += " --plan " + about.Plan
	}
	if r.pace.Rate > 0 {
		about.Seconds = float64(s.Len()) / r.pace.Rate
	}
	return s, about, err
}

// commandLine returns the command as it was called, without what is about its plan.
func commandLine(cmd *cobra.Command) string {
	words := strings.Fields(cmd.CommandPath())
	for _, arg := range cmd.Flags().Args() {
		words = append(words, operator.ShellWord(arg))
	}
	cmd.Flags().Visit(func(f *pflag.Flag) {
		switch f.Name {
		case "plan", "dry-run", "yes", "json", "log-level":
			return
		}
		words = append(words, "--"+f.Name)
		if f.Value.Type() != "bool" {
			words = append(words, operator.ShellWord(f.Value.String()))
		}
	})
	return strings.Join(words, " ")
}

// report prints what was done. It returns an error if a named event was skipped.
func (b *bulk) report(p Process, result operator.BulkResult, err error, named bool) error {
	err = errors.Join(err, p.print(result, func() {
		p.printf("%s %s\n", b.done, eventsText(result.Done))
		printSkipped(p, result)
	}))
	switch {
	case err != nil && result.NotReached > 0:
		return fmt.Errorf("%w; %s not reached: repeat the command to go on", err, eventsText(result.NotReached))
	case err == nil && named && result.Skipped > 0:
		return fmt.Errorf("%s not %s: `workers events show` says what changed; then repeat the command",
			operator.Counted(result.Skipped, "named event"), b.done)
	default:
		return err
	}
}

func printSkipped(p Process, result operator.BulkResult) {
	if result.Skipped > 0 {
		p.notef("%s skipped, changed or locked since the selection:", eventsText(result.Skipped))
	}
	for _, left := range result.Reasons[:min(len(result.Reasons), fewEvents)] {
		p.notef("  %s is %s", left.EventID, left.State)
	}
	if more := result.Skipped - fewEvents; more > 0 {
		p.notef("  ... and %d more", more)
	}
}

// noteQuarantined says, and returns, how many quarantined events a filter would select; then follows what to do.
func noteQuarantined(ctx context.Context, p Process, c *operator.Client, f operator.Filter, then string) (int, error) {
	f.Statuses = []operator.Status{operator.Quarantined}
	s, err := c.Select(ctx, f, 0)
	if s.Len() > 0 {
		p.notef("%s left out: %s", operator.Counted(s.Len(), "quarantined event"), then)
	}
	return s.Len(), err
}

func eventsText(n int) string { return operator.Counted(n, "event") }

// showEvents lists the events that would be changed; with full all of them.
func showEvents(ctx context.Context, p Process, c *operator.Client, s operator.Selection, about plan, full bool) error {
	limit := fewEvents
	if full {
		limit = s.Len()
	}
	all, err := c.Shown(ctx, s, limit)
	if err != nil {
		return err
	}
	return p.print(struct {
		AsOf   time.Time        `json:"as_of"`
		Count  int              `json:"count"`
		Events []operator.Event `json:"events"`
		plan
	}{s.AsOf.UTC(), s.Len(), all, about}, func() {
		printEvents(p, all, s.AsOf)
		p.printf("%d of %s\n", len(all), eventsText(s.Len()))
		about.print(p)
	})
}

func eventsReplayCommand(p Process) *cobra.Command {
	cmd := &cobra.Command{
		Use: "replay [ID...]", Short: "Make failed events run again in a generation",
		Long: `Make failed events pending in the generation --to, with all their retries: those named by id, or all that
match the flags. Handlers that have handled an event do not run again.

The command shows what would happen, and asks. It skips and reports events that changed since. What a filter selects
becomes an operation, which the workers carry on if the command ends: see ` + "`workers operations`" + `. A handler that
acts outside its transaction and had begun with an event runs again as its policy says, or by --run and --skip. --force
also replays delivered events that are named by id or selected with --status delivered.`,
		Example: `  workers events replay 0198c5d4-9a52-7c11-8f0e-3b7a4d2f6e10 --to 8
  workers events replay --all --to 8 --rate 200 --by anna --yes
  workers events replay --status delivered --newer-than 1d --to 8 --force`,
	}
	var to events.Generation
	oneFlag(cmd.Flags(), &to, "to", "generation that handles them", events.ParseGeneration)
	var choice operator.Choice
	choiceFlags(cmd, &choice)
	force := cmd.Flags().Bool("force", false, "allow delivered events: named by id, or with --status delivered")
	_ = cmd.MarkFlagRequired("to")
	return bulkCommand(p, cmd, bulk{
		verb: "Replay", done: "replayed", further: func() string { return fmt.Sprintf(" into generation %d", to) },
		statuses: []operator.Status{operator.Failed, operator.Delivered}, force: force,
		change:    func(by string) operator.Change { return operator.Replay(to, by, *force, choice) },
		operation: true,
		show: func(ctx context.Context, p Process, c *operator.Client, s operator.Selection, about plan, full bool) error {
			return showReplay(ctx, p, c, s, to, choice, about, full)
		},
		check: func(ctx context.Context, c *operator.Client, s operator.Selection) error {
			preview, err := c.PreviewReplay(ctx, s, to, choice, false)
			if asking := preview.Asking(); err == nil && len(asking) > 0 {
				err = fmt.Errorf("had begun, and act outside their transaction: %s: pass --run or --skip with each name",
					strings.Join(asking, ", "))
			}
			return err
		},
	})
}

// showReplay prints what a replay would do: in sum, and for each event if there are few or full is set.
func showReplay(ctx context.Context, p Process, c *operator.Client, s operator.Selection, to events.Generation,
	choice operator.Choice, about plan, full bool) error {
	preview, err := c.PreviewReplay(ctx, s, to, choice, full || s.Len() <= fewEvents)
	if err != nil {
		return err
	}
	return p.print(struct {
		operator.Preview
		plan
	}{preview, about}, func() {
		printTable(p, preview.Effects, func(e operator.Effect) []any {
			effect := "would run"
			switch {
			case e.Handler == "":
				effect = "NO HANDLER"
			case e.HandledAt != nil:
				effect, e.Note = "already handled", timestamp(e.HandledAt)
			case e.OnReplay == events.ReplayAsk:
				effect = "ASKS: --run or --skip"
			case e.OnReplay == events.ReplaySkip:
				effect = "skipped, had begun"
			case e.Outside != "":
				effect = "would run: " + e.Outside
			}
			return []any{e.EventID, e.EventType, e.Handler, effect, e.Note}
		}, "EVENT", "TYPE", "HANDLER", "EFFECT", "NOTE")
		printTable(p, preview.Handlers, func(h operator.HandlerEffect) []any {
			return []any{h.EventType, h.Handler, h.WouldRun, h.Handled, h.Skipped, h.Asks, h.Outside}
		}, "TYPE", "HANDLER", "WOULD RUN", "ALREADY HANDLED", "SKIPPED", "ASKS", "OUTSIDE")
		for _, u := range preview.Unhandled {
			p.printf("NO HANDLER for %s of type %s: %s\n", eventsText(u.Events), u.EventType, u.Note)
		}
		for _, pause := range preview.Paused {
			p.printf("%s\n", pauseLine(pause))
		}
		for _, h := range preview.Breakers {
			p.printf("the breaker of %s is open: its events will wait; see `workers handlers list`\n", h)
		}
		noops := 0
		for _, h := range preview.Handlers {
			noops += h.Handled
			if h.WouldRun > 0 && h.Outside != "" {
				p.printf("acts outside: %s %s, up to %d times\n", h.Handler, h.Outside, h.WouldRun)
			}
		}
		if noops > 0 {
			p.printf("%s no-ops: handled before\n", operator.Counted(noops, "call"))
		}
		p.printf("%s into generation %d, as of %s\n", eventsText(preview.Events), preview.To, timestamp(&preview.AsOf))
		about.print(p)
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
		verb: "Discard", done: "discarded", statuses: []operator.Status{operator.Failed}, operation: true,
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
