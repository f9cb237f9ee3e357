package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jedib0t/go-pretty/v6/progress"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"spectral/internal/app"
	"spectral/internal/core/events"
	"spectral/internal/core/events/infrastructure/postgres/admin"
)

// fewEvents is how many events are shown one by one before something is done to them; of more there is a sum.
const fewEvents = 20

// acting is what all commands have that do something to events: those named by id, or those that fit a filter.
type acting struct {
	p        Process
	cmd      *cobra.Command
	verb     string         // of what is done, like replay
	done     string         // its past, like replayed
	statuses []admin.Status // that it can be done to
	ordinary []admin.Status // that it is done to unless --status asks for others
	filter   func() (admin.Filter, error)
	filters  []string // the names of the filter's flags
	by       *string
	asJSON   *bool
	all      bool
	anew     bool // what is done may be done once more
	dryRun   bool
	yes      bool
	pace     admin.Pace
	limit    func() (time.Duration, error)
	timeout  time.Duration
	tried    bool // by a filter only events that have been tried
}

// newActing adds the flags. Statuses are those that it can be done to.
func newActing(p Process, cmd *cobra.Command, verb, done string, statuses ...admin.Status) *acting {
	a := &acting{p: p, cmd: cmd, verb: verb, done: done, statuses: statuses, ordinary: statuses}
	flags := cmd.Flags()
	before := flagNames(cmd)
	a.filter = filterFlags(cmd, p, statuses...)
	for _, name := range flagNames(cmd) {
		if !slices.Contains(before, name) {
			a.filters = append(a.filters, name)
		}
	}
	flags.BoolVar(&a.all, "all", false, "all "+admin.Joined(statuses)+" events")
	flags.BoolVar(&a.dryRun, "dry-run", false, "show what would be done, and stop")
	flags.BoolVar(&a.yes, "yes", false, "do not ask")
	flags.IntVar(&a.pace.Batch, "batch", admin.DefaultBatch, fmt.Sprintf("events in a transaction, from 1 to %d", admin.MaxBatch))
	flags.Float64Var(&a.pace.Rate, "rate", admin.DefaultRate, "events a second at most; 0 for as fast as it goes")
	a.limit = timeoutFlag(cmd)
	a.by = by(cmd, p)
	a.asJSON = jsonFlag(cmd)
	return a
}

func flagNames(cmd *cobra.Command) (names []string) {
	cmd.Flags().VisitAll(func(flag *pflag.Flag) { names = append(names, flag.Name) })
	return names
}

// chosen reads what the events are: named ones, or a filter. Whether that asks for anything is a question to the filter and
// not to the flags: what comes to nothing would ask for everything.
func (a *acting) chosen(args []string) (ids []uuid.UUID, filter admin.Filter, err error) {
	var given []string
	for _, name := range a.filters {
		if a.cmd.Flags().Changed(name) {
			given = append(given, "--"+name)
		}
	}
	if a.all {
		given = append(given, "--all")
	}
	if filter, err = a.filter(); err != nil {
		return nil, filter, err
	}
	if a.tried {
		filter.Tried = &a.tried
	}
	switch {
	case len(args) > 0 && len(given) > 0:
		return nil, filter, usageError{fmt.Errorf("events are named, and %s is given as well: leave one of them out", strings.Join(given, " and "))}
	case len(args) == 0 && !a.all && !asks(filter):
		return nil, filter, usageError{errors.New("which events? name them by their ids, or by at least one filter like --type, or pass --all; `workers events list` shows them")}
	case a.pace.Batch < 1 || a.pace.Batch > admin.MaxBatch:
		return nil, filter, usageError{fmt.Errorf("--batch %d: want a number from 1 to %d", a.pace.Batch, admin.MaxBatch)}
	case !(a.pace.Rate >= 0 && a.pace.Rate <= 1e9):
		return nil, filter, usageError{fmt.Errorf("--rate %g: want a number from 0 on", a.pace.Rate)}
	}
	if a.pace.Rate == 0 {
		a.pace.Rate = -1
	}
	for _, arg := range args {
		id, err := parseID(arg)
		if err != nil {
			return nil, filter, usageError{err}
		}
		if !slices.Contains(ids, id) {
			ids = append(ids, id)
		}
	}
	if a.timeout, err = a.limit(); err != nil {
		return nil, filter, err
	}
	for _, s := range filter.Statuses {
		if !slices.Contains(a.statuses, s) {
			return nil, filter, usageError{fmt.Errorf("--status %s: %s is for %s events", s, a.verb, admin.Joined(a.statuses))}
		}
	}
	return ids, orOf(filter, a.ordinary...), nil
}

// selected is all events that the filter fits, and says of what the database does not know that it does not.
func (a *acting) selected(ctx context.Context, operator *admin.Admin, filter admin.Filter) (admin.Selection, error) {
	selection, err := operator.Select(ctx, filter, a.timeout)
	if err != nil {
		return admin.Selection{}, err
	}
	tellUnknown(ctx, a.p, operator, filter, selection.Len() > 0)
	if a.tried {
		a.tellNeverTried(ctx, operator, filter)
	}
	return selection, nil
}

// tellNeverTried says on stderr how many events would fit, but were never tried. Like [tellUnknown] it is a word beside a result.
func (a *acting) tellNeverTried(ctx context.Context, operator *admin.Admin, filter admin.Filter) {
	ctx, cancel := context.WithTimeout(ctx, tellingTimeout)
	defer cancel()
	filter.Tried = new(bool)
	counted, err := operator.Count(ctx, filter, admin.Count{By: []admin.Dimension{admin.ByStatus}, Limit: 1})
	if err != nil || counted.Groups[0].Count == 0 {
		return
	}
	_, _ = fmt.Fprintf(a.p.Stderr, "left alone: %s published for a later time and never tried; to run one now, name it by its id\n",
		eventsText(int(counted.Groups[0].Count)))
}

// waits says what n events wait for, if it is known how many of them were never tried.
func waits(n int, neverTried *int) string {
	if neverTried == nil {
		return ""
	}
	return fmt.Sprintf(": %d waiting for a retry, %d published for a later time and never tried", n-*neverTried, *neverTried)
}

// question asks for consent to do it to n events.
func (a *acting) question(n int, more string) string {
	return fmt.Sprintf("%s%s %s%s?", strings.ToUpper(a.verb[:1]), a.verb[1:], eventsText(n), more)
}

func eventsText(n int) string { return app.Counted(n, "event") }

// shown prints what the events are: one by one if they are few.
func (a *acting) shown(p Process, operator *admin.Admin, s admin.Selection) error {
	limit := fewEvents
	if a.dryRun {
		limit = admin.MaxPageSize
	}
	all, err := operator.Shown(a.cmd.Context(), s, limit)
	if err != nil {
		return err
	}
	printEvents(p, all, s.AsOf)
	if more := s.Len() - len(all); more > 0 {
		_, _ = fmt.Fprintf(p.Stdout, "... and %d more\n", more)
	}
	return nil
}

// onStderr is p with all that is printed going to stderr: what leads up to a question is no result.
func onStderr(p Process) Process {
	p.Stdout = p.Stderr
	return p
}

// run does it, with progress on stderr, and prints what it came to. Of named events every one has to be done.
func (a *acting) run(named bool, s admin.Selection, do func(context.Context, admin.Pace) (admin.Acted, error)) error {
	ctx := a.cmd.Context()
	end := a.progress(s.Len())
	acted, err := do(ctx, a.pace)
	end()
	if *a.asJSON {
		if printErr := printJSON(a.p, acted); printErr != nil {
			return errors.Join(err, printErr)
		}
	} else {
		a.sum(acted)
	}
	if err != nil && acted.Pending > 0 {
		goesOn := "goes on with them, for what is " + a.done + " is passed over"
		if a.anew {
			goesOn = "begins anew, also with those that are delivered since"
		}
		err = fmt.Errorf("%w; %s not reached: the same command %s", err, eventsText(acted.Pending), goesOn)
	}
	if err == nil && named && acted.LeftOut > 0 {
		err = fmt.Errorf("of the named events, %d of %d left out: not %s", acted.LeftOut, s.Len(), a.done)
		if slices.ContainsFunc(acted.Reasons, func(left admin.LeftOut) bool { return strings.HasSuffix(left.State, " anew") }) {
			err = fmt.Errorf("%w; what failed or was delivered again since it was shown is not what you decided on: look again (`workers events show`), and ask again", err)
		}
	}
	return err
}

func (a *acting) sum(acted admin.Acted) {
	_, _ = fmt.Fprintf(a.p.Stdout, "%s %s%s\n", a.done, eventsText(acted.Done), waits(acted.Done, acted.NeverTried))
	if acted.LeftOut == 0 {
		return
	}
	_, _ = fmt.Fprintf(a.p.Stderr, "%s left out: changed meanwhile, being changed by somebody, or nothing to do this to:\n", eventsText(acted.LeftOut))
	for _, left := range acted.Reasons[:min(len(acted.Reasons), fewEvents)] {
		_, _ = fmt.Fprintf(a.p.Stderr, "  %s is %s\n", left.EventID, left.State)
	}
	if more := acted.LeftOut - min(len(acted.Reasons), fewEvents); more > 0 {
		_, _ = fmt.Fprintf(a.p.Stderr, "  ... and %d more\n", more)
	}
}

// progressEvery is how often progress is told where there is no terminal.
const progressEvery = 5 * time.Second

// progress shows how far it is: a bar on a terminal, else a line now and then. The function returned ends it.
func (a *acting) progress(total int) (end func()) {
	started := time.Now()
	if batch, _ := a.pace.Steps(); total <= batch {
		return func() {}
	}
	if _, ok := terminalOf(a.p.Stderr); !ok {
		told := started
		a.pace.Progress = func(through int) {
			if now := time.Now(); now.Sub(told) >= progressEvery && through < total {
				told = now
				_, _ = fmt.Fprintf(a.p.Stderr, "%d of %s, %.0f/s\n", through, eventsText(total), float64(through)/now.Sub(started).Seconds())
			}
		}
		return func() {}
	}
	bar := progress.NewWriter()
	bar.SetOutputWriter(a.p.Stderr)
	bar.SetUpdateFrequency(100 * time.Millisecond)
	bar.SetAutoStop(true) // with the tracker: Stop would be lost on a bar that is not being drawn yet
	bar.Style().Visibility.Speed = true
	bar.Style().Visibility.ETA = true
	tracker := &progress.Tracker{Message: a.verb, Total: int64(total)}
	bar.AppendTracker(tracker)
	rendered := make(chan struct{})
	go func() {
		defer close(rendered)
		bar.Render()
	}()
	a.pace.Progress = func(through int) { tracker.SetValue(int64(through)) }
	return func() {
		if !tracker.IsDone() {
			tracker.MarkAsErrored() // it was interrupted
		}
		<-rendered
	}
}

// eventsAct is a command that does something to events, shows them before and asks.
type eventsAct struct {
	use, short, long, example string
	verb, done                string
	statuses                  []admin.Status
	flags                     func(*cobra.Command)
	further                   string                                                                    // of the question: when or where
	named                     func(*admin.Admin, context.Context, []uuid.UUID) (admin.Selection, error) // all, or why not
	many                      func(context.Context, *admin.Admin, admin.Selection, string, admin.Pace) (admin.Acted, error)
	waiting                   bool // it is about what waits: a filter means events that have been tried only, and it says how many have not
}

func (e eventsAct) command(p Process) *cobra.Command {
	cmd := &cobra.Command{Use: e.use + " [ID...]", Short: e.short, Long: e.long, Example: e.example}
	if e.flags != nil {
		e.flags(cmd)
	}
	a := newActing(p, cmd, e.verb, e.done, e.statuses...)
	a.tried = e.waiting
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		ids, filter, err := a.chosen(args)
		if err != nil {
			return err
		}
		return operating(p, func(cmd *cobra.Command, _ []string, operator *admin.Admin) error {
			ctx := cmd.Context()
			var selection admin.Selection
			if len(ids) > 0 {
				selection, err = e.named(operator, ctx, ids)
			} else {
				selection, err = a.selected(ctx, operator, filter)
			}
			if err != nil {
				return err
			}
			showing := onStderr(p)
			if a.dryRun {
				showing = p
			}
			var neverTried *int
			further := e.further
			if e.waiting {
				n := selection.NeverTried()
				neverTried = &n
				if n > 0 {
					further += fmt.Sprintf(", %d of them published for a later time and never tried", n)
				}
			}
			switch {
			case a.dryRun && *a.asJSON:
				all, err := operator.Shown(ctx, selection, selection.Len())
				if err != nil {
					return err
				}
				notDone(p)
				return printJSON(p, struct {
					AsOf       time.Time     `json:"as_of"`
					Count      int           `json:"count"`
					NeverTried *int          `json:"never_tried,omitempty"`
					Events     []admin.Event `json:"events"`
				}{selection.AsOf.UTC(), selection.Len(), neverTried, append([]admin.Event{}, all...)})
			case selection.Len() > 0 && (a.dryRun || !a.yes):
				if err := a.shown(showing, operator, selection); err != nil {
					return err
				}
			case selection.Len() == 0:
				_, _ = fmt.Fprintln(p.Stderr, "no event fits")
				if !*a.asJSON && !a.dryRun {
					return nil
				}
			}
			if a.dryRun {
				_, _ = fmt.Fprintln(p.Stdout, eventsText(selection.Len())+waits(selection.Len(), neverTried))
				notDone(p)
				return nil
			}
			if selection.Len() > 0 {
				if err := consent(ctx, p, a.yes, a.question(selection.Len(), further)); err != nil {
					return err
				}
			}
			return a.run(len(ids) > 0, selection, func(ctx context.Context, pace admin.Pace) (admin.Acted, error) {
				return e.many(ctx, operator, selection, *a.by, pace)
			})
		})(cmd, args)
	}
	return cmd
}

// generationFlag adds a flag that names a generation, completed by those offered, and returns what reads it.
func generationFlag(cmd *cobra.Command, p Process, name, usage string, offered func(*admin.Admin, context.Context) ([]string, error)) func() (events.Generation, error) {
	value := cmd.Flags().String(name, "", usage)
	completeFlag(cmd, name, func() []string { return known(cmd, p, offered) })
	return func() (events.Generation, error) {
		if *value == "" {
			return 0, usageError{fmt.Errorf("--%s is missing: %s; core.deployments has those that are live", name, usage)}
		}
		generation, err := events.ParseGeneration(*value)
		if err != nil {
			return 0, usageError{fmt.Errorf("--%s: %w", name, err)}
		}
		return generation, nil
	}
}
