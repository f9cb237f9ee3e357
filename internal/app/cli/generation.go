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
	"golang.org/x/time/rate"

	"spectral/internal/app"
	"spectral/internal/core/events"
	"spectral/internal/core/events/infrastructure/postgres/operator"
)

func generationCommand(p Process) *cobra.Command {
	return group(&cobra.Command{
		Use: "generation", Short: "Show deployment generations; compare, drain, adopt, retire",
		Long: `The workers of a generation handle only its own events. A generation is live, then draining, closing while
it is being retired, and retired; it is unknown if events name it but no worker registered it. Publishing that names no
generation goes to the highest live one. docs/deployment.md has the cutover and the rollback.`,
	}, generationStatusCommand(p), generationRegisterCommand(p), generationDrainCommand(p), generationAdoptCommand(p),
		generationRetireCommand(p), generationCompareCommand(p))
}

// longest is the longest wait that a flag takes.
const longest = 30 * 24 * time.Hour

// await calls check each second until it returns nothing to wait for, or until the timeout, and prints what it waits
// for. It returns the last result of check, with an error if ctx has ended or the database was away.
func await(ctx context.Context, p Process, timeout time.Duration,
	check func() (string, error)) (left string, err error) {
	limited, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	printed, sometimes := "", rate.Sometimes{Interval: progressEvery}
	for {
		left, err = check()
		if operator.IsUnavailable(err) { // while it restarts or fails over
			left = "for the database: " + err.Error()
		} else if err != nil || left == "" {
			return left, err
		}
		if timeout == 0 {
			return left, err
		}
		if left != printed {
			sometimes.Do(func() {
				printed = left
				p.notef("waiting: %s", left)
			})
		}
		select {
		case <-time.After(time.Second):
		case <-limited.Done():
			return left, cmp.Or(ctx.Err(), err)
		}
	}
}

func generationStatusCommand(p Process) *cobra.Command {
	var wait time.Duration
	var args []events.Generation
	cmd := &cobra.Command{
		Use: "status [N]", Args: positional(cobra.MaximumNArgs(1), &args, events.ParseGeneration),
		Short: "Show what is left in each generation, and which is safe to stop",
		Long: `Show the events left in each generation, or in N. A generation is safe to stop when it is not live and nothing
of it is due, scheduled or in flight. Exits 3 if N is not safe to stop; without N, if any that is not live is not.`,
		Example: `  workers generation status
  workers generation status 7 --wait 10m   # a gate in a deploy script`,
	}
	oneFlag(cmd.Flags(), &wait, "wait", "how long to wait until it is safe to stop",
		between(time.ParseDuration, 0, longest))
	return operating(p, cmd, func(ctx context.Context, p Process, o *app.Operator) error {
		var only *events.Generation
		if len(args) == 1 {
			only = &args[0]
		}
		var all []operator.Generation
		var busy string
		_, err := await(ctx, p, wait, func() (_ string, err error) {
			if all, err = o.Events.Generations(ctx, only); err != nil {
				return "", err
			}
			if only != nil && len(all) == 0 {
				return "", fmt.Errorf("generation %d is not registered, and no unsettled event names it: `workers "+
					"generation status` lists those that are", *only)
			}
			var reasons []string
			for _, g := range all {
				if !g.SafeToStop && (only != nil || g.Status != "live") {
					reasons = append(reasons, unsafe(g))
				}
			}
			busy = strings.Join(reasons, "; ")
			if only != nil && all[0].Status == "live" { // waiting does not drain it
				return "", nil
			}
			return busy, nil
		})
		if err != nil {
			return err
		}
		err = p.print(map[string]any{"generations": all}, func() { printGenerations(p, all) })
		if err == nil && busy != "" {
			err = exitError{errors.New(busy), exitAttention}
		}
		return err
	})
}

// unsafe says why a generation is not safe to stop.
func unsafe(g operator.Generation) string {
	why := fmt.Sprintf("%d due, %d scheduled, %d in flight", g.Due, g.Scheduled, g.InFlight)
	if g.Quarantined > 0 {
		why += fmt.Sprintf("; %d of them quarantined: `workers events list --status quarantined --generation %d`",
			g.Quarantined, g.Generation)
	}
	if g.Status == "live" {
		why = fmt.Sprintf("it is live, and its producers may publish at any moment; drain it first, while another is live: "+
			"`workers generation drain %d`", g.Generation)
	}
	return fmt.Sprintf("generation %d is not safe to stop: %s", g.Generation, why)
}

// printGenerations prints a table, and on stderr what operators usually do next: about the oldest that is ending.
func printGenerations(p Process, all []operator.Generation) {
	printTable(p, all, func(g operator.Generation) []any {
		return []any{g.Generation, g.Status, g.Due, g.Scheduled, g.InFlight, g.Failed, timestamp(g.OldestDue),
			timestamp(g.NextScheduled), timestamp(g.LastScheduled), g.Workers, len(g.Paused),
			map[bool]string{true: "yes", false: "no"}[g.SafeToStop]}
	}, "GENERATION", "STATUS", "DUE", "SCHEDULED", "IN FLIGHT", "FAILED", "OLDEST DUE", "NEXT SCHEDULED",
		"LAST SCHEDULED", "WORKERS", "PAUSED", "SAFE TO STOP")
	next := "workers events stats --by generation,status"
	for _, g := range slices.Backward(all) {
		notePauses(p, g.Paused)
		switch {
		case g.Status == "live":
		case g.Quarantined > 0:
			next = fmt.Sprintf("workers events list --status quarantined --generation %d", g.Generation)
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
	var args []events.Generation
	cmd.Args = positional(cobra.ExactArgs(1), &args, events.ParseGeneration)
	who := by(cmd, p)
	return operating(p, cmd, func(ctx context.Context, p Process, o *app.Operator) error {
		if err := do(o.Events, ctx, args[0], *who); err != nil {
			return err
		}
		all, err := o.Events.Generations(ctx, nil)
		if err != nil {
			return err
		}
		changed, publishing := operator.Generation{Generation: args[0]}, "is refused: none is live"
		for _, g := range all {
			if g.Generation == args[0] {
				changed = g
			}
			if g.PublishingDefault {
				publishing = fmt.Sprintf("goes to generation %d", g.Generation)
			}
		}
		return p.print(changed, func() {
			p.printf("generation %d is %s; publishing that names no generation %s\n", args[0], changed.Status,
				publishing)
		})
	})
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
		left, err := await(ctx, p, timeout, func() (string, error) {
			state, reason, err := c.RetireGeneration(ctx, g, by)
			if err == nil && state == operator.RetiringClosing { // another transaction sees more
				p.notef("generation %d is closing: publishing into it is refused from now on", g)
				state, reason, err = c.RetireGeneration(ctx, g, by)
			}
			switch {
			case err != nil || state == operator.RetiringDone:
				return "", err
			case state == operator.RetiringNotEmpty:
				return fmt.Sprintf("generation %d is not retired yet: it still has events: %s", g, reason), nil
			default:
				return fmt.Sprintf("generation %d is not retired yet: it waits %s", g, reason), nil
			}
		})
		switch {
		case err != nil && ctx.Err() != nil:
			return fmt.Errorf("interrupted: run `workers generation retire %d` again to continue", g)
		case err != nil || left == "":
			return err
		default:
			return fmt.Errorf("%s; let its workers finish or move its events with `workers generation adopt`, or end the "+
				"transactions that it waits for; then repeat the command; `workers generation register %d` makes it live again",
				left, g)
		}
	})
	oneFlag(cmd.Flags(), &timeout, "timeout", "how long to wait for what is left",
		between(time.ParseDuration, 0, longest))
	return cmd
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
	// Quarantined events are among them, and stay.
	Quarantined int `json:"quarantined"`
	Moved       int `json:"moved"`
}

func generationAdoptCommand(p Process) *cobra.Command {
	var args []events.Generation
	var types []string
	cmd := &cobra.Command{
		Use: "adopt FROM TO", Args: positional(cobra.ExactArgs(2), &args, events.ParseGeneration),
		Short: "Move pending events into another generation",
		Long: `Move pending events of generation FROM into generation TO, whose workers then handle them. Events that FROM's
workers hold stay, and so do failed and quarantined ones, and those that are published later. The command shows what
would move, and asks.`,
		Example: `  workers generation adopt 7 8 --dry-run
  workers generation adopt 7 8 --type worlds.scan.completed --yes`,
	}
	who := by(cmd, p)
	listFlag(cmd.Flags(), &types, "type", "event type to move; all of them if left out", word)
	dryRun := cmd.Flags().Bool("dry-run", false, "show what would be moved, and move nothing")
	yes := yesFlag(cmd)
	complete(cmd, "type", knownTypes)
	return operating(p, cmd, func(ctx context.Context, p Process, o *app.Operator) error {
		// events that are published later stay: otherwise moving out of a live generation would never end
		began, err := o.Events.Now(ctx)
		if err != nil {
			return err
		}
		r := adoption{From: args[0], To: args[1], DryRun: *dryRun}
		if r.Types, err = o.Events.Adoptable(ctx, r.From, r.To, types); err != nil {
			return err
		}
		pending := 0
		for _, t := range r.Types {
			pending += int(t.Due + t.Scheduled)
		}
		r.Quarantined, err = noteQuarantined(ctx, p, o.Events,
			operator.Filter{Generations: []events.Generation{r.From}, EventTypes: types},
			fmt.Sprintf("`workers events list --status quarantined --generation %d` says why", r.From))
		if err != nil {
			return err
		}
		route := fmt.Sprintf("of generation %d into generation %d", r.From, r.To)
		switch {
		case *dryRun:
			notDone(p)
			return p.print(r, func() {
				r.show(p)
				p.printf("%s %s\n", eventsText(pending), route)
			})
		case pending > 0 && !*yes:
			r.show(p.onStderr())
			if err := consent(ctx, p, false, fmt.Sprintf("Move %s %s?", eventsText(pending), route)); err != nil {
				return err
			}
		}
		for moved := 1; pending > 0 && moved > 0 && err == nil; r.Moved += moved {
			batch, cancel := context.WithTimeout(context.WithoutCancel(ctx), moveTimeout)
			moved, err = o.Events.Adopt(batch, r.From, r.To, types, began, adoptBatch, *who)
			cancel()
			if err == nil && ctx.Err() != nil {
				err = errInterrupted
			}
		}
		if err != nil {
			err = fmt.Errorf("moved %d of %s; repeat the command to go on: %w", r.Moved, eventsText(pending), err)
		}
		return errors.Join(err, p.print(r, func() {
			p.printf("moved %s %s\n", eventsText(r.Moved), route)
			p.next("workers generation status %d", r.From)
		}))
	})
}

// show prints what would be moved, and what the events would wait for.
func (r *adoption) show(p Process) {
	printTable(p, r.Types, func(t operator.Adoptable) []any {
		handled := operator.Counted(t.Workers, "worker")
		if t.Workers == 0 {
			handled = "no live worker, will wait"
		}
		if t.Paused {
			handled += ", paused"
		}
		return []any{t.EventType, cmp.Or(t.Target, "all"), t.Due, t.Scheduled, t.InFlight, handled}
	}, "EVENT TYPE", "TARGET", "DUE", "SCHEDULED", "IN FLIGHT, STAYS", fmt.Sprintf("HANDLED IN %d BY", r.To))
}
