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
	"spectral/internal/core/events"
	"spectral/internal/core/events/infrastructure/postgres/admin"
)

// generationCommand groups what operators do with deployment generations; docs/deployment.md says when.
func generationCommand(p Process) *cobra.Command {
	cmd := &cobra.Command{
		Use: "generation", Short: "Look at deployment generations, drain, adopt and retire them",
		Long: `A generation's workers handle its own events only. It is live, then draining, then retired; publishing from SQL goes to
the highest live one. docs/deployment.md has the cutover, the rollback and the rest.`,
		Example: `  workers generation status
  workers generation drain 7
  workers generation retire 7`,
	}
	group(cmd, "generation status, register, drain, adopt or retire?")
	cmd.AddCommand(generationStatusCommand(p), generationRegisterCommand(p), generationDrainCommand(p), generationAdoptCommand(p), generationRetireCommand(p))
	return cmd
}

// generations is for commands whose arguments are so many generations.
func generations(least, most int) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) < least || len(args) > most {
			return fmt.Errorf("want %s", strings.TrimPrefix(cmd.UseLine(), cmd.Root().Name()+" "))
		}
		_, err := parseGenerations(args)
		return err
	}
}

func parseGenerations(args []string) ([]events.Generation, error) {
	parsed := make([]events.Generation, len(args))
	for i, arg := range args {
		var err error
		if parsed[i], err = events.ParseGeneration(arg); err != nil {
			return nil, err
		}
	}
	return parsed, nil
}

// completeGenerations offers those of the database that are of one of the statuses, or all, for one argument.
func completeGenerations(p Process, statuses ...string) func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
	return func(cmd *cobra.Command, args []string, _ string) (offered []string, _ cobra.ShellCompDirective) {
		if len(args) == 0 {
			offered = known(cmd, p, func(a *admin.Admin, ctx context.Context) (offered []string, _ error) {
				all, err := a.Generations(ctx, nil)
				for _, g := range all {
					if len(statuses) == 0 || slices.Contains(statuses, g.Status) {
						offered = append(offered, fmt.Sprintf("%d\t%s", g.Generation, g.Status))
					}
				}
				return offered, err
			})
		}
		return offered, cobra.ShellCompDirectiveNoFileComp
	}
}

// completeOpenGenerations offers those that are not retired, but for those given already, for up to so many arguments.
func completeOpenGenerations(p Process, most int) func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
	return func(cmd *cobra.Command, args []string, _ string) (offered []string, _ cobra.ShellCompDirective) {
		if len(args) < most {
			offered = slices.DeleteFunc(known(cmd, p, (*admin.Admin).OpenGenerations), func(offer string) bool {
				generation, _, _ := strings.Cut(offer, "\t")
				return slices.Contains(args, generation)
			})
		}
		return offered, cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveKeepOrder
	}
}

// pollPause lies between two looks of a command that waits.
const pollPause = time.Second

// restUntil waits a pause or until the deadline, and reports whether there is time left.
func restUntil(ctx context.Context, deadline time.Time) bool {
	left := time.Until(deadline)
	return left > 0 && rest(ctx, min(left, pollPause)) == nil
}

func generationStatusCommand(p Process) *cobra.Command {
	var wait time.Duration
	cmd := &cobra.Command{
		Use: "status [N]", Short: "Say what each generation still has to do; exits 3 while N, or any that is not live, is not safe to stop", Args: generations(0, 1),
		Long: `Say what each generation, or N, still has to do: events that are due, scheduled for later, in flight and failed, and how many
worker processes it has.

A generation is safe to stop when it is not live and nothing of it is due, scheduled or in flight. A live one may get events at any
moment: drain it first; --wait does not wait for that. Failed events do not need its workers: they are replayed into a live generation,
or discarded. Exits 0 when N is safe to stop and 3 while it is not. Without N, 3 while any generation that is not live is not.`,
		Example: `  workers generation status
  workers generation status 7 --wait 10m   # a gate in a deploy script
  workers generation status --json`,
		ValidArgsFunction: completeGenerations(p),
	}
	asJSON := jsonFlag(cmd)
	cmd.Flags().DurationVar(&wait, "wait", 0, "wait so long for it to be safe to stop")
	cmd.RunE = operating(p, func(cmd *cobra.Command, args []string, a *admin.Admin) error {
		if wait < 0 {
			return usageError{fmt.Errorf("--wait %s: want a duration from 0", wait)}
		}
		var only *events.Generation
		if parsed, err := parseGenerations(args); err != nil {
			return usageError{err}
		} else if len(parsed) == 1 {
			only = &parsed[0]
		}
		deadline := time.Now().Add(wait)
		said := ""
		for {
			all, err := a.Generations(cmd.Context(), only)
			if err != nil {
				return err
			}
			if only != nil && len(all) == 0 {
				return fmt.Errorf("generation %d is not registered, and no unsettled event names it", *only)
			}
			busy := unsafe(all, only != nil)
			if busy != "" && wait > 0 && (only == nil || all[0].Status != "live") {
				if busy != said {
					said = busy
					_, _ = fmt.Fprintln(p.Stderr, "waiting:", busy)
				}
				if restUntil(cmd.Context(), deadline) {
					continue
				}
				if err := cmd.Context().Err(); err != nil {
					return errors.New("interrupted while " + busy)
				}
			}
			if *asJSON {
				err = printJSON(p, struct {
					Generations []admin.Generation `json:"generations"`
				}{all})
			} else {
				printGenerations(p, all)
			}
			if err == nil && busy != "" {
				err = attentionError{errors.New(busy)}
			}
			return err
		}
	})
	return cmd
}

// unsafe says which generations are not safe to stop, empty for none: of those that are not live, or also of a live
// one that was asked for.
func unsafe(all []admin.Generation, liveToo bool) string {
	var busy []string
	for _, g := range all {
		if g.SafeToStop || g.Status == "live" && !liveToo {
			continue
		}
		if g.Status == "live" {
			busy = append(busy, fmt.Sprintf("generation %d is not safe to stop: it is live, and its producers may publish at any moment; drain it first: workers generation drain %[1]d", g.Generation))
			continue
		}
		scheduled := ""
		if g.LastScheduled != nil {
			scheduled = " until " + g.LastScheduled.Format(time.RFC3339)
		}
		busy = append(busy, fmt.Sprintf("generation %d is not safe to stop: %d due, %d scheduled%s, %d in flight", g.Generation, g.Due, g.Scheduled, scheduled, g.InFlight))
	}
	return strings.Join(busy, "; ")
}

// printGenerations prints a table, and on stderr what is to be known beside it.
func printGenerations(p Process, all []admin.Generation) {
	at := func(t *time.Time) string {
		if t == nil {
			return "-"
		}
		return t.Format(time.RFC3339)
	}
	rows := make([][]any, len(all))
	for i, g := range all {
		safe := "yes"
		if !g.SafeToStop {
			safe = "no"
		}
		rows[i] = []any{int64(g.Generation), g.Status, g.Due, g.Scheduled, g.InFlight, g.Failed, at(g.OldestDue), at(g.NextScheduled), at(g.LastScheduled), g.Workers, len(g.Paused), safe}
	}
	printTable(p, []column{
		{title: "GENERATION", right: true}, {title: "STATUS", colour: statusColour}, {title: "DUE", right: true}, {title: "SCHEDULED", right: true},
		{title: "IN FLIGHT", right: true}, {title: "FAILED", right: true}, {title: "OLDEST DUE"}, {title: "NEXT SCHEDULED"}, {title: "LAST SCHEDULED"},
		{title: "WORKERS", right: true}, {title: "PAUSED", right: true}, {title: "SAFE TO STOP"},
	}, rows)
	for _, g := range all {
		if g.Failed > 0 && g.Status != "live" {
			_, _ = fmt.Fprintf(p.Stderr, "generation %d: its workers are not needed for what failed, %s: replay that into a live generation, or discard it (workers events --help)\n", g.Generation, app.Counted(g.Failed, "event"))
		}
		printPauseLines(p, g.Paused)
		if g.SafeToStop && g.Workers > 0 {
			_, _ = fmt.Fprintf(p.Stderr, "generation %d is %s and has nothing left: its %d live workers can be stopped\n", g.Generation, g.Status, g.Workers)
		}
		if g.SafeToStop || g.Status == "live" {
			continue
		}
		if g.Status == "retired" {
			_, _ = fmt.Fprintf(p.Stderr, "generation %d is retired, and no worker may handle its events: move them with `workers generation adopt %[1]d TO`\n", g.Generation)
			continue
		}
		if g.Workers > 0 {
			continue
		}
		_, _ = fmt.Fprintf(p.Stderr, "generation %d has no live worker: run its build with `workers run --drain`, or move its events with `workers generation adopt`\n", g.Generation)
	}
}

// printGeneration prints what a change has made of a generation.
func printGeneration(cmd *cobra.Command, p Process, a *admin.Admin, g events.Generation, asJSON bool) error {
	all, err := a.Generations(cmd.Context(), nil)
	if err != nil {
		return err
	}
	known, publishing := admin.Generation{Generation: g}, "nowhere: none is live, and it is refused"
	for _, each := range all {
		if each.Generation == g {
			known = each
		}
		if each.PublishingDefault {
			publishing = fmt.Sprintf("to generation %d", each.Generation)
		}
	}
	if asJSON {
		return printJSON(p, known)
	}
	_, err = fmt.Fprintf(p.Stdout, "generation %d is %s; publishing that names no generation goes %s\n", g, known.Status, publishing)
	if known.PublishingDefault && known.Workers == 0 {
		_, _ = fmt.Fprintf(p.Stderr, "no worker of generation %d lives: its events wait until one is started\n", g)
	}
	return err
}

func generationRegisterCommand(p Process) *cobra.Command {
	cmd := &cobra.Command{
		Use: "register N", Short: "Make a generation known and live, a draining one as well", Args: generations(1, 1),
		Long: `Make a generation known and live. A starting worker registers its own; it leaves a draining one draining, which this
command makes live again, as after a rollback. A retired one is refused.`,
		Example:           `  workers generation register 8`,
		ValidArgsFunction: completeGenerations(p, "draining", "closing"),
	}
	who, asJSON := by(cmd, p), jsonFlag(cmd)
	cmd.RunE = operating(p, func(cmd *cobra.Command, args []string, a *admin.Admin) error {
		parsed, err := parseGenerations(args)
		if err != nil {
			return usageError{err}
		}
		if err := a.RegisterGeneration(cmd.Context(), parsed[0], *who); err != nil {
			return err
		}
		return printGeneration(cmd, p, a, parsed[0], *asJSON)
	})
	return cmd
}

func generationDrainCommand(p Process) *cobra.Command {
	var force bool
	cmd := &cobra.Command{
		Use: "drain N", Short: "Let a generation end: publishing from SQL goes elsewhere from now on", Args: generations(1, 1),
		Long: `Make a live generation a draining one: publishing that names no generation goes to the highest live one, from now on to
another. Its own producers, who name it, and its workers run on.

The only live generation is drained with --force only: publishing that names no generation is then refused (SP019) until one is
live.`,
		Example:           `  workers generation drain 7`,
		ValidArgsFunction: completeGenerations(p, "live"),
	}
	who, asJSON := by(cmd, p), jsonFlag(cmd)
	cmd.Flags().BoolVar(&force, "force", false, "drain it even if no other is live")
	cmd.RunE = operating(p, func(cmd *cobra.Command, args []string, a *admin.Admin) error {
		parsed, err := parseGenerations(args)
		if err != nil {
			return usageError{err}
		}
		if err := a.DrainGeneration(cmd.Context(), parsed[0], *who, force); err != nil {
			return err
		}
		return printGeneration(cmd, p, a, parsed[0], *asJSON)
	})
	return cmd
}

func generationRetireCommand(p Process) *cobra.Command {
	var timeout time.Duration
	cmd := &cobra.Command{
		Use: "retire N", Short: "End a draining generation for good, once it is certain that nothing is left", Args: generations(1, 1),
		Long: `End a draining generation for good. When nothing of it is due, scheduled or in flight, publishing into it is refused from then
on; when every transaction that may have published into it before is over, and still nothing is left, it is retired. What comes to
light meanwhile opens it again for its workers, and retiring begins anew.

Which transactions may have published is not known: all that are open when it is closed are waited for, unrelated ones as well.

Exits 1 if it is not retired within --timeout. Interrupting and repeating the command is harmless.`,
		Example: `  workers generation retire 7
  workers generation retire 7 --timeout 1h`,
		ValidArgsFunction: completeGenerations(p, "draining", "closing"),
	}
	who, asJSON := by(cmd, p), jsonFlag(cmd)
	cmd.Flags().DurationVar(&timeout, "timeout", time.Minute, "how long to wait for what is left")
	cmd.RunE = operating(p, func(cmd *cobra.Command, args []string, a *admin.Admin) error {
		parsed, err := parseGenerations(args)
		if err != nil {
			return usageError{err}
		}
		if timeout < 0 {
			return usageError{fmt.Errorf("--timeout %s: want a duration from 0", timeout)}
		}
		if err := retire(cmd.Context(), p, a, parsed[0], *who, timeout); err != nil {
			return err
		}
		if *asJSON {
			return printGeneration(cmd, p, a, parsed[0], true)
		}
		_, err = fmt.Fprintf(p.Stdout, "generation %d is retired\n", parsed[0])
		return err
	})
	return cmd
}

// saysEvery is how often a command that waits says again what for.
const saysEvery = 10 * time.Second

// retire takes a generation step by step to its end.
func retire(ctx context.Context, p Process, a *admin.Admin, g events.Generation, who string, timeout time.Duration) error {
	deadline := time.Now().Add(timeout)
	var last admin.Retiring
	var said time.Time
	for {
		now, err := a.RetireGeneration(ctx, g, who)
		if err != nil && ctx.Err() != nil {
			return fmt.Errorf("interrupted: retiring generation %d goes on when the command is repeated", g)
		}
		if err != nil {
			return err
		}
		if now.Stands == admin.RetiringDone {
			return nil
		}
		if now.Stands != last.Stands || time.Since(said) >= saysEvery {
			said = time.Now()
			if now.Stands == admin.RetiringClosing {
				now.Reason = "publishing into it is refused from now on; looking whether anything came meanwhile"
			}
			_, _ = fmt.Fprintf(p.Stderr, "generation %d: %s: %s\n", g, now.Stands, now.Reason)
		}
		last = now
		if now.Stands == admin.RetiringClosing { // another transaction sees more
			continue
		}
		if restUntil(ctx, deadline) {
			continue
		}
		if ctx.Err() != nil {
			return fmt.Errorf("interrupted: generation %d is not retired, %s: %s; repeat the command, or make it live again: workers generation register %[1]d", g, now.Stands, now.Reason)
		}
		next := "repeat the command, or make it live again: workers generation register " + strconv.FormatInt(int64(g), 10)
		if now.Stands == admin.RetiringNotEmpty {
			next = fmt.Sprintf("let its workers finish (workers run --drain), or move its events: workers generation adopt %d <generation>", g)
		}
		return fmt.Errorf("generation %d is not retired within %s, %s: %s; %s", g, timeout, now.Stands, now.Reason, next)
	}
}

// adoptBatch is how many events one transaction of adopt moves.
const adoptBatch = 1000

func generationAdoptCommand(p Process) *cobra.Command {
	var dryRun, yes bool
	cmd := &cobra.Command{
		Use: "adopt FROM TO", Short: "Move what a generation left undone into another, after a dry run", Args: generations(2, 2),
		Long: `Move pending events of generation FROM, due and scheduled ones, into generation TO, whose code then handles them. What FROM's
workers have in hand stays with them; failed events stay, for workers events replay moves those. So does what is published after the
command began, and, until that is judged, what a worker had in hand that died.

First shows, for each event type, how many would move and how many live workers of TO handle the type, and asks. Events keep what was counted of
them: attempts, and failures by handler.`,
		Example: `  workers generation adopt 7 8 --dry-run
  workers generation adopt 7 8 --type worlds.scan.completed --yes`,
		ValidArgsFunction: completeOpenGenerations(p, 2),
	}
	who, asJSON := by(cmd, p), jsonFlag(cmd)
	types := textsFlag(cmd.Flags(), "type", "event type to move; all of them if left out")
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "show what would be moved, and move nothing")
	cmd.Flags().BoolVar(&yes, "yes", false, "do not ask")
	completeFlag(cmd, "type", knownTypes)
	cmd.RunE = operating(p, func(cmd *cobra.Command, args []string, a *admin.Admin) error {
		parsed, err := parseGenerations(args)
		if err != nil {
			return usageError{err}
		}
		if err := (admin.Filter{EventTypes: *types}).Validate(); err != nil {
			return usageError{fmt.Errorf("--type: %w", err)}
		}
		return adopt(cmd.Context(), p, a, adoption{parsed[0], parsed[1], *types, *who, dryRun, yes, *asJSON})
	})
	return cmd
}

// adoption is what a call of adopt asks for.
type adoption struct {
	from, to     events.Generation
	types        []string
	who          string
	dryRun, yes  bool
	printsAsJSON bool
}

// adopted is its result as JSON.
type adopted struct {
	From     events.Generation `json:"from"`
	To       events.Generation `json:"to"`
	DryRun   bool              `json:"dry_run"`
	Types    []admin.Adoptable `json:"types"` // before anything was moved
	Moved    int               `json:"moved"`
	LeftHeld int64             `json:"left_held"` // pending still: workers of From held them, they came meanwhile, or it was interrupted
}

func adopt(ctx context.Context, p Process, a *admin.Admin, want adoption) error {
	// what comes later stays: a live generation would never be done with
	began, err := a.Now(ctx)
	if err != nil {
		return err
	}
	found, err := a.Adoptable(ctx, want.from, want.to, want.types)
	if err != nil {
		return err
	}
	tellUnknown(ctx, p, a, admin.Filter{EventTypes: want.types}, len(found) > 0)
	result := adopted{From: want.from, To: want.to, DryRun: want.dryRun, Types: found}
	showing := onStderr(p)
	if want.dryRun {
		showing = p
	}
	shown := want
	shown.printsAsJSON = want.dryRun && want.printsAsJSON // a question is asked of people
	pending, err := describeAdoption(ctx, showing, a, shown, found)
	if err != nil {
		return err
	}
	if want.dryRun {
		notDone(p)
		if want.printsAsJSON {
			return printJSON(p, result)
		}
		_, err := fmt.Fprintf(p.Stdout, "%s of generation %d into generation %d\n", eventsText(int(pending)), want.from, want.to)
		return err
	}
	if pending > 0 {
		if err := consent(ctx, p, want.yes, fmt.Sprintf("Move %s of generation %d into generation %d?", eventsText(int(pending)), want.from, want.to)); err != nil {
			return err
		}
	}
	err = result.move(ctx, a, want, began, pending)
	if want.printsAsJSON {
		return errors.Join(err, printJSON(p, result))
	}
	if pending == 0 {
		_, printErr := fmt.Fprintln(p.Stdout, "nothing to move")
		return errors.Join(err, printErr)
	}
	_, _ = fmt.Fprintf(p.Stdout, "moved %s of generation %d into generation %d\n", eventsText(result.Moved), want.from, want.to)
	if err == nil && result.LeftHeld > 0 {
		_, _ = fmt.Fprintf(p.Stderr, "%s pending in generation %d still: its workers held what is left, or it came meanwhile\n", areEvents(result.LeftHeld), want.from)
	}
	return err
}

// moveTimeout bounds the transaction of one batch, which is finished also when the command is to stop.
const moveTimeout = 30 * time.Second

// move moves what was published before began, batch by batch, until nothing is left that can be, or ctx ends, and notes what it
// came to.
func (r *adopted) move(ctx context.Context, a *admin.Admin, want adoption, began time.Time, pending int64) error {
	for pending > 0 {
		moved, err := 0, ctx.Err()
		if err != nil {
			err = errInterrupted
		} else {
			batch, cancel := context.WithTimeout(context.WithoutCancel(ctx), moveTimeout)
			moved, err = a.Adopt(batch, want.from, want.to, want.types, began, adoptBatch, want.who)
			cancel()
		}
		r.Moved += moved
		if err != nil {
			r.LeftHeld = max(pending-int64(r.Moved), 0)
			return fmt.Errorf("moved %d of %s, repeat the command for the rest: %w", r.Moved, app.Counted(pending, "event"), err)
		}
		if moved == 0 {
			break
		}
	}
	if pending == 0 {
		return nil
	}
	left, err := a.Adoptable(ctx, want.from, want.to, want.types)
	for _, t := range left {
		r.LeftHeld += t.Due + t.Scheduled
	}
	return err
}

// describeAdoption shows what would be moved, unless JSON is asked for, warns of what is odd about it, and returns how many
// events it is.
func describeAdoption(ctx context.Context, p Process, a *admin.Admin, want adoption, found []admin.Adoptable) (pending int64, err error) {
	rows := make([][]any, 0, len(found))
	var unhandled, paused []string
	for _, t := range found {
		pending += t.Due + t.Scheduled
		what := t.EventType
		if t.Target != "" {
			what += " for " + t.Target
		}
		handled := app.Counted(t.Workers, "worker")
		if t.Workers == 0 {
			handled = "nobody"
			if t.Due+t.Scheduled > 0 {
				unhandled = append(unhandled, what)
			}
		}
		if t.Paused {
			handled += ", paused"
			if !slices.Contains(paused, t.EventType) {
				paused = append(paused, t.EventType)
			}
		}
		rows = append(rows, []any{what, t.Due, t.Scheduled, t.InFlight, handled})
	}
	if len(rows) > 0 && !want.printsAsJSON {
		printTable(p, []column{
			{title: "EVENT TYPE", cut: true}, {title: "DUE", right: true}, {title: "SCHEDULED", right: true}, {title: "IN FLIGHT, STAYS", right: true},
			{title: fmt.Sprintf("HANDLED IN %d BY", want.to), cut: true},
		}, rows)
	}
	if len(unhandled) > 0 {
		_, _ = fmt.Fprintf(p.Stderr, "no live worker of generation %d handles %s: the events will wait for one\n", want.to, strings.Join(unhandled, ", "))
	}
	if len(paused) > 0 {
		_, _ = fmt.Fprintf(p.Stderr, "paused in generation %d: %s: the events will wait until that is resumed: workers events resume TYPE --generation %[1]d\n", want.to, visible(strings.Join(paused, ", ")))
	}
	from, err := a.Generations(ctx, &want.from)
	if err != nil {
		return 0, err
	}
	if len(from) == 1 && from[0].Status == "live" {
		_, _ = fmt.Fprintf(p.Stderr, "generation %d is live: its workers compete for its events, and more may come: workers generation drain %[1]d\n", want.from)
	}
	return pending, nil
}
