package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"spectral/internal/app"
	"spectral/internal/core/events"
	"spectral/internal/core/events/infrastructure/postgres/operator"
)

func generationCommand(p Process) *cobra.Command {
	return group(&cobra.Command{
		Use: "generation", Short: "Show deployment generations; drain, adopt, retire",
		Long: `The workers of a generation handle only its own events. A generation is live, then draining, closing while
it is being retired, and retired; it is unknown if events name it but no worker registered it. Publishing that names no
generation goes to the highest live one. docs/deployment.md has the cutover and the rollback.`,
		Example: `  workers generation status`,
	}, generationStatusCommand(p), generationRegisterCommand(p), generationDrainCommand(p), generationAdoptCommand(p),
		generationRetireCommand(p))
}

// generations returns the run function of a command whose arguments are generations.
func generations(p Process,
	do func(context.Context, *operator.Client, []events.Generation) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		parsed := make([]events.Generation, len(args))
		for i, arg := range args {
			var err error
			if parsed[i], err = events.ParseGeneration(arg); err != nil {
				return usage(err)
			}
		}
		return operating(p, func(ctx context.Context, _ []string, o *app.Operator) error {
			return do(ctx, o.Events, parsed)
		})(cmd, args)
	}
}

// longest is the longest wait that a flag takes.
const longest = 30 * 24 * time.Hour

// restUntil waits for a second or until the deadline, and reports whether time is left.
func restUntil(ctx context.Context, deadline time.Time) bool {
	select {
	case <-time.After(min(time.Until(deadline), time.Second)):
		return time.Until(deadline) > 0
	case <-ctx.Done():
		return false
	}
}

func generationStatusCommand(p Process) *cobra.Command {
	var wait time.Duration
	cmd := &cobra.Command{
		Use: "status [N]", Args: cobra.MaximumNArgs(1),
		Short: "Show what is left in each generation, and which is safe to stop",
		Long: `Show the events left in each generation, or in N. A generation is safe to stop when it is not live and nothing
of it is due, scheduled or in flight. Exits 3 if N is not safe to stop; without N, if any that is not live is not.`,
		Example: `  workers generation status
  workers generation status 7 --wait 10m   # a gate in a deploy script`,
	}
	asJSON := jsonFlag(cmd)
	oneFlag(cmd.Flags(), &wait, "wait", "how long to wait until it is safe to stop",
		between(time.ParseDuration, 0, longest))
	cmd.RunE = generations(p, func(ctx context.Context, c *operator.Client, args []events.Generation) error {
		all, busy, err := awaitSafe(ctx, p, c, args, wait)
		if err != nil {
			return err
		}
		err = printed(p, *asJSON, map[string]any{"generations": all}, func() { printGenerations(p, all) })
		if err == nil && busy != "" {
			err = exitError{errors.New(busy), exitAttention}
		}
		return err
	})
	return cmd
}

// awaitSafe returns the generations, or the one in args, once they are safe to stop, or at the latest after wait. Busy
// says which are not; a live one counts only if it is in args.
func awaitSafe(ctx context.Context, p Process, c *operator.Client, args []events.Generation,
	wait time.Duration) (all []operator.Generation, busy string, err error) {
	var only *events.Generation
	if len(args) == 1 {
		only = &args[0]
	}
	deadline, printed := time.Now().Add(wait), ""
	for {
		if all, err = c.Generations(ctx, only); err != nil {
			return nil, "", err
		}
		if only != nil && len(all) == 0 {
			return nil, "", fmt.Errorf("generation %d is not registered, and no unsettled event names it: `workers "+
				"generation status` lists those that are", *only)
		}
		var reasons []string
		live := slices.ContainsFunc(all, func(g operator.Generation) bool { return g.Status == "live" })
		for _, g := range all {
			if !g.SafeToStop && (only != nil || g.Status != "live") {
				reasons = append(reasons, unsafe(g))
			}
		}
		busy = strings.Join(reasons, "; ")
		if busy == "" || wait == 0 || only != nil && live {
			return all, busy, nil
		}
		if busy != printed {
			printed = busy
			p.notef("waiting: %s", busy)
		}
		if !restUntil(ctx, deadline) {
			if ctx.Err() != nil {
				err = errors.New("interrupted; " + busy)
			}
			return all, busy, err
		}
	}
}

// unsafe says why a generation is not safe to stop.
func unsafe(g operator.Generation) string {
	why := fmt.Sprintf("%d due, %d scheduled, %d in flight", g.Due, g.Scheduled, g.InFlight)
	if g.Status == "live" {
		why = fmt.Sprintf("it is live, and its producers may publish at any moment; drain it first, while another is live: "+
			"`workers generation drain %d`", g.Generation)
	}
	return fmt.Sprintf("generation %d is not safe to stop: %s", g.Generation, why)
}

// printGenerations prints a table, and on stderr what operators usually do next: about the oldest that is ending.
func printGenerations(p Process, all []operator.Generation) {
	printTable(p, all, func(g operator.Generation) []any {
		return []any{g.Generation, g.Status, g.Due, g.Scheduled, g.InFlight, g.Failed, atOrDash(g.OldestDue),
			atOrDash(g.NextScheduled), atOrDash(g.LastScheduled), g.Workers, len(g.Paused),
			map[bool]string{true: "yes", false: "no"}[g.SafeToStop]}
	}, []string{"NEXT SCHEDULED", "LAST SCHEDULED", "OLDEST DUE", "PAUSED"}, "GENERATION", "STATUS", "DUE", "SCHEDULED",
		"IN FLIGHT", "FAILED", "OLDEST DUE", "NEXT SCHEDULED", "LAST SCHEDULED", "WORKERS", "PAUSED", "SAFE TO STOP")
	next := "workers events stats --by generation,status"
	for _, g := range slices.Backward(all) {
		notePauses(p, g.Paused)
		switch {
		case g.Status == "live":
		case !g.SafeToStop && g.Workers == 0:
			next = "workers doctor generations unhandled" // it says who can handle what is left
		case !g.SafeToStop:
			next = fmt.Sprintf("workers generation status %d --wait 10m", g.Generation)
		case g.Status != "retired":
			next = fmt.Sprintf("workers generation retire %d", g.Generation)
		case g.Failed > 0:
			next = fmt.Sprintf("workers events list --generation %d", g.Generation)
		}
	}
	p.next("%s", next)
}

// changing makes cmd change one generation and print its new state.
func changing(p Process, cmd *cobra.Command,
	do func(_ *operator.Client, _ context.Context, _ events.Generation, by string) error) *cobra.Command {
	cmd.Args = cobra.ExactArgs(1)
	who, asJSON := by(cmd, p), jsonFlag(cmd)
	cmd.RunE = generations(p, func(ctx context.Context, c *operator.Client, args []events.Generation) error {
		if err := do(c, ctx, args[0], *who); err != nil {
			return err
		}
		all, err := c.Generations(ctx, nil)
		if err != nil {
			return err
		}
		changed, publishing := operator.Generation{Generation: args[0]}, "nowhere: none is live, and it is refused"
		for _, g := range all {
			if g.Generation == args[0] {
				changed = g
			}
			if g.PublishingDefault {
				publishing = fmt.Sprintf("to generation %d", g.Generation)
			}
		}
		return printed(p, *asJSON, changed, func() {
			p.printf("generation %d is %s; publishing that names no generation goes %s\n", args[0], changed.Status,
				publishing)
		})
	})
	return cmd
}

func generationRegisterCommand(p Process) *cobra.Command {
	return changing(p, &cobra.Command{
		Use: "register N", Short: "Make a generation live, also a draining one",
		Long:    `Make a generation live: a new one, or, after a rollback, one that is draining. A retired one is refused.`,
		Example: `  workers generation register 8`,
	}, (*operator.Client).RegisterGeneration)
}

func generationDrainCommand(p Process) *cobra.Command {
	var force bool
	cmd := changing(p, &cobra.Command{
		Use: "drain N", Short: "Let a generation end: publishing from SQL goes to another",
		Long: `Make a live generation a draining one. Publishing that names no generation then goes to another live one.
Producers that name this one go on, and so do its workers. To drain the only live generation needs --force.`,
		Example: `  workers generation drain 7`,
	}, func(c *operator.Client, ctx context.Context, g events.Generation, by string) error {
		return c.DrainGeneration(ctx, g, by, force)
	})
	cmd.Flags().BoolVar(&force, "force", false, "drain it even if no other generation is live")
	return cmd
}

func generationRetireCommand(p Process) *cobra.Command {
	timeout := time.Minute
	cmd := changing(p, &cobra.Command{
		Use: "retire N", Short: "End a draining generation for good, once nothing is left",
		Long: `End a draining generation for good. Once nothing is left in it, publishing into it is refused. Once each
transaction that was open then is over, and still nothing is left, the generation is retired.

Exits 1 if it is not retired within --timeout. The command may be interrupted and repeated.`,
		Example: `  workers generation retire 7`,
	}, func(c *operator.Client, ctx context.Context, g events.Generation, by string) error {
		return retire(ctx, p, c, g, by, timeout)
	})
	oneFlag(cmd.Flags(), &timeout, "timeout", "how long to wait for what is left",
		between(time.ParseDuration, 0, longest))
	return cmd
}

func retire(ctx context.Context, p Process, c *operator.Client, g events.Generation, by string,
	timeout time.Duration) error {
	deadline, printed := time.Now().Add(timeout), ""
	for {
		state, reason, err := c.RetireGeneration(ctx, g, by)
		switch {
		case err != nil && ctx.Err() != nil:
			return fmt.Errorf("interrupted: run `workers generation retire %d` again to continue", g)
		case err != nil || state == operator.RetiringDone:
			return err
		case state == operator.RetiringClosing: // another transaction sees more
			p.notef("generation %d: closing: publishing into it is refused from now on", g)
			continue
		case state != printed:
			printed = state
			p.notef("generation %d: %s: %s", g, state, reason)
		}
		if !restUntil(ctx, deadline) {
			why := fmt.Sprintf("not within %s", timeout)
			if ctx.Err() != nil {
				why = "interrupted"
			}
			return fmt.Errorf("%s: generation %d is not retired, %s: %s; end those transactions, let its workers finish, or "+
				"move its events with `workers generation adopt`, and repeat the command; `workers generation register %[2]d` "+
				"makes it live again", why, g, state, reason)
		}
	}
}

// adoptBatch is how many events one transaction of adopt moves, and moveTimeout bounds it. A batch that has begun is
// finished even if the command is to stop.
const (
	adoptBatch  = 1000
	moveTimeout = 30 * time.Second
)

type adoption struct {
	From   events.Generation    `json:"from"`
	To     events.Generation    `json:"to"`
	DryRun bool                 `json:"dry_run"`
	Types  []operator.Adoptable `json:"types"` // before anything was moved
	Moved  int                  `json:"moved"`
	// LeftHeld events are still pending: workers hold them, they are newer, or the command was interrupted.
	LeftHeld int64 `json:"left_held"`
}

func generationAdoptCommand(p Process) *cobra.Command {
	var types []string
	cmd := &cobra.Command{
		Use: "adopt FROM TO", Args: cobra.ExactArgs(2),
		Short: "Move pending events into another generation",
		Long: `Move pending events of generation FROM into generation TO, whose workers then handle them. Events that FROM's
workers hold stay, and so do failed ones and those that are published later. The command shows what would move, and
asks.`,
		Example: `  workers generation adopt 7 8 --dry-run
  workers generation adopt 7 8 --type worlds.scan.completed --yes`,
	}
	who, asJSON := by(cmd, p), jsonFlag(cmd)
	listFlag(cmd.Flags(), &types, "type", "event type to move; all of them if left out", word)
	dryRun := cmd.Flags().Bool("dry-run", false, "show what would be moved, and move nothing")
	yes := yesFlag(cmd)
	complete(cmd, "type", knownTypes)
	cmd.RunE = generations(p, func(ctx context.Context, c *operator.Client, args []events.Generation) error {
		// events that are published later stay: otherwise moving out of a live generation would never end
		began, err := c.Now(ctx)
		if err != nil {
			return err
		}
		r := adoption{From: args[0], To: args[1], DryRun: *dryRun}
		if r.Types, err = c.Adoptable(ctx, r.From, r.To, types); err != nil {
			return err
		}
		pending := pendingOf(r.Types)
		summary := fmt.Sprintf("%s of generation %d into generation %d", eventsText(int(pending)), r.From, r.To)
		switch {
		case *dryRun:
			notDone(p)
			return printed(p, *asJSON, r, func() {
				r.show(p)
				p.printf("%s\n", summary)
			})
		case pending > 0 && !*yes:
			r.show(p.onStderr())
			if err := consent(ctx, p, false, "Move "+summary+"?"); err != nil {
				return err
			}
		}
		err = r.move(ctx, c, types, *who, began, pending)
		if *asJSON {
			return errors.Join(err, printJSON(p, r))
		}
		p.printf("moved %s of generation %d into generation %d\n", eventsText(r.Moved), r.From, r.To)
		if err == nil && r.LeftHeld > 0 {
			p.notef("%s still pending in generation %d: held by its workers, or published since",
				eventsText(int(r.LeftHeld)), r.From)
		}
		return err
	})
	return cmd
}

func pendingOf(types []operator.Adoptable) (n int64) {
	for _, t := range types {
		n += t.Due + t.Scheduled
	}
	return n
}

// move moves events that were published before began, batch by batch, until none is left or ctx ends.
func (r *adoption) move(ctx context.Context, c *operator.Client, types []string, by string,
	began time.Time, pending int64) error {
	for moved := 1; pending > 0 && moved > 0; r.Moved += moved {
		err := errInterrupted
		if moved = 0; ctx.Err() == nil {
			batch, cancel := context.WithTimeout(context.WithoutCancel(ctx), moveTimeout)
			moved, err = c.Adopt(batch, r.From, r.To, types, began, adoptBatch, by)
			cancel()
		}
		if err != nil {
			r.LeftHeld = max(pending-int64(r.Moved), 0)
			return fmt.Errorf("moved %d of %s; repeat the command to go on: %w", r.Moved,
				app.Counted(pending, "event"), err)
		}
	}
	left, err := c.Adoptable(ctx, r.From, r.To, types)
	r.LeftHeld = pendingOf(left)
	return err
}

// show prints what would be moved, and what the events would wait for.
func (r *adoption) show(p Process) {
	printTable(p, r.Types, func(t operator.Adoptable) []any {
		handled := app.Counted(t.Workers, "worker")
		if t.Workers == 0 {
			handled = "no live worker: they will wait"
		}
		if t.Paused {
			handled += ", paused"
		}
		return []any{t.EventType, cmp.Or(t.Target, "all"), t.Due, t.Scheduled, t.InFlight, handled}
	}, []string{"TARGET", "IN FLIGHT, STAYS", "EVENT TYPE"}, "EVENT TYPE", "TARGET", "DUE", "SCHEDULED",
		"IN FLIGHT, STAYS", fmt.Sprintf("HANDLED IN %d BY", r.To))
}
