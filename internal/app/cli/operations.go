package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/google/uuid"
	"github.com/spf13/cobra"
	"golang.org/x/time/rate"

	"spectral/internal/app"
	"spectral/internal/core/events/infrastructure/postgres/operator"
)

func operationsCommand(p Process) *cobra.Command {
	return group(&cobra.Command{
		Use: "operations", Short: "See replays and discards of many events; pause, resume, abort them",
		Long: `A replay or discard of what a filter selects is an operation. The workers carry it on, also when the command
that began it has ended. Pausing and aborting stops further events, never those that are replayed already.`,
	}, operationsListCommand(p), operationsShowCommand(p),
		operationsSetCommand(p, (*operator.Client).PauseOperation, &cobra.Command{
			Use: "pause ID", Short: "Stop acting on further events, until `workers operations resume`",
			Example: `  workers operations pause 0198c5d4-9a52-7c11-8f0e-3b7a4d2f6e10`,
		}),
		operationsResumeCommand(p),
		operationsSetCommand(p, (*operator.Client).AbortOperation, &cobra.Command{
			Use: "abort ID", Short: "End an operation: what it has not reached stays as it is",
			Example: `  workers operations abort 0198c5d4-9a52-7c11-8f0e-3b7a4d2f6e10`,
		}))
}

// operationFlags adds the flags that say how an operation goes on.
func operationFlags(cmd *cobra.Command, course *operator.Course) {
	course.MaxFailed = 1
	flags := cmd.Flags()
	oneFlag(flags, &course.Canary, "canary", "act on so many events first, wait until they have settled, and pause",
		between(strconv.Atoi, 1, 1_000_000))
	flags.BoolVar(&course.GoesOn, "go-on", false, "go on after the canary if none of it failed again")
	oneFlag(flags, &course.MaxFailed, "max-failed",
		"pause when a larger share of the settled events has failed again, from 0 to 1; 1: never", between(parseFloat, 0, 1))
}

// follow carries an operation on and prints its progress, until it has acted on all events, or paused. If ctx ends, the
// workers carry it on.
func follow(ctx context.Context, p Process, c *operator.Client, id uuid.UUID, done string) error {
	p.notef("operation %s: the workers carry it on if this command ends", id)
	sometimes, rarely := rate.Sometimes{Interval: progressEvery}, rate.Sometimes{Interval: progressEvery}
	var o operator.Operation
	for {
		next, err := c.Step(ctx, id)
		if err == nil {
			o, err = c.Operation(ctx, id)
		}
		switch {
		case ctx.Err() != nil:
			return fmt.Errorf("interrupted: the workers carry on operation %s; `workers operations pause %[1]s` stops it", id)
		case operator.IsUnavailable(err):
			rarely.Do(func() { p.notef("waiting: for the database: %v", err) })
			next = time.Second
		case err != nil:
			return fmt.Errorf("%w; the workers carry on operation %s", err, id)
		case o.State != operator.OperationRunning || o.Canary == nil && o.Acted+o.Skipped == o.Total:
			return endOfOperation(ctx, p, c, o, done)
		default:
			sometimes.Do(func() { p.notef("%s", progress(o)) })
		}
		select {
		case <-time.After(next):
		case <-ctx.Done():
		}
	}
}

// noteOperations names the operations that are not over: another one may have events in common with them.
func noteOperations(ctx context.Context, p Process, c *operator.Client) error {
	all, err := c.Operations(ctx, operator.DefaultPageSize)
	for _, o := range all {
		if o.State == operator.OperationRunning || o.State == operator.OperationPaused {
			p.notef("operation %s, a %s of %s by %s, is %s: what both select, the first to reach it acts on", o.ID, o.Name,
				eventsText(o.Total), o.CreatedBy, o.State)
		}
	}
	return err
}

func progress(o operator.Operation) string {
	return fmt.Sprintf("%d of %s, %d delivered, %d failed again", o.Acted+o.Skipped, eventsText(o.Total), o.Delivered,
		o.Failed)
}

// endOfOperation prints what a command has done of an operation.
func endOfOperation(ctx context.Context, p Process, c *operator.Client, o operator.Operation, done string) error {
	result := struct {
		OperationID uuid.UUID `json:"operation_id"`
		operator.BulkResult
	}{o.ID, operator.BulkResult{Done: o.Acted, Skipped: o.Skipped, Reasons: []operator.Skipped{},
		NotReached: o.Total - o.Acted - o.Skipped}}
	skipped, err := c.OperationRows(ctx, o.ID, "skipped", maxReasons)
	for _, row := range skipped {
		result.Reasons = append(result.Reasons, operator.Skipped{EventID: row.EventID, OccurredAt: row.OccurredAt,
			State: textOf(row.Note)})
	}
	err = errors.Join(err, p.print(result, func() {
		p.printf("%s %s\n", done, eventsText(o.Acted))
		printSkipped(p, result.BulkResult)
		p.next("workers operations show %s", o.ID)
	}))
	if err == nil && o.State != operator.OperationDone && o.State != operator.OperationRunning {
		return exitError{fmt.Errorf("%s: %s; %s: `workers operations resume %s` goes on, `workers operations abort %[4]s` "+
			"ends it", o.State, cmp.Or(textOf(o.Why), "by "+o.StateBy), progress(o), o.ID), exitAttention}
	}
	return err
}

// maxReasons is how many skipped events a result names.
const maxReasons = 100

func operationsListCommand(p Process) *cobra.Command {
	limit := operator.DefaultPageSize
	cmd := &cobra.Command{
		Use: "list", Short: "List operations, the latest first", Args: cobra.NoArgs,
		Example: `  workers operations list`,
	}
	limitFlag(cmd, &limit, "operations to list")
	return operating(p, cmd, func(ctx context.Context, p Process, o *app.Operator) error {
		all, err := o.Events.Operations(ctx, limit)
		if err != nil {
			return err
		}
		return p.print(map[string]any{"operations": all}, func() {
			printTable(p, all, func(o operator.Operation) []any {
				return []any{o.ID, o.Name, o.State, o.Total, o.Acted, o.Delivered, o.Failed, o.Skipped, timestamp(&o.CreatedAt),
					o.CreatedBy, textOf(o.Why)}
			}, "ID", "OPERATION", "STATE", "TOTAL", "ACTED", "DELIVERED", "FAILED", "SKIPPED", "CREATED", "BY", "NOTE")
			if len(all) == 0 {
				p.notef("there is no operation: `workers events replay` with a filter begins one")
			} else {
				p.next("workers operations show %s", all[0].ID)
			}
		})
	})
}

func operationsShowCommand(p Process) *cobra.Command {
	var ids []uuid.UUID
	outcome, limit := "", operator.DefaultPageSize
	cmd := &cobra.Command{
		Use: "show ID", Short: "Show an operation, and what became of its events",
		Args:    positional(cobra.ExactArgs(1), &ids, operator.ParseID),
		Example: `  workers operations show 0198c5d4-9a52-7c11-8f0e-3b7a4d2f6e10 --outcome failed`,
	}
	outcomes := []string{"not_reached", "acted", "delivered", "failed", "discarded", "skipped", "gone"}
	oneFlag(cmd.Flags(), &outcome, "outcome", "only events with this outcome: "+operator.Joined(outcomes),
		operator.OneOf(outcomes...))
	limitFlag(cmd, &limit, "events to list")
	return operating(p, cmd, func(ctx context.Context, p Process, op *app.Operator) error {
		o, err := op.Events.Operation(ctx, ids[0])
		if err != nil {
			return err
		}
		all, err := op.Events.OperationRows(ctx, o.ID, outcome, limit)
		if err != nil {
			return err
		}
		return p.print(struct {
			operator.Operation
			Rows []operator.OperationRow `json:"rows"`
		}{o, all}, func() {
			p.printf("operation %s  %s\n", o.ID, o.State)
			for _, line := range [][2]string{
				{"act", o.Name}, {"into", textOf(o.Generation)}, {"created", timestamp(&o.CreatedAt) + " by " + o.CreatedBy},
				{"reason", textOf(o.Reason)}, {"command", o.Command}, {"plan", o.Plan},
				{"rate", fmt.Sprintf("%g events/s", o.Rate)}, {"canary", textOf(o.Canary)},
				{"max failed", fmt.Sprintf("%g", o.MaxFailed)},
				{"state", fmt.Sprintf("%s since %s, by %s", o.State, timestamp(&o.StateAt), o.StateBy)}, {"why", textOf(o.Why)},
				{"progress", progress(o) + fmt.Sprintf(", %d skipped", o.Skipped)},
			} {
				if line[1] != "" {
					p.printf("  %-13s %s\n", line[0], visible(line[1]))
				}
			}
			p.printf("\n")
			printTable(p, all, func(r operator.OperationRow) []any { return []any{r.EventID, r.Outcome, textOf(r.Note)} },
				"EVENT", "OUTCOME", "NOTE")
			switch o.State {
			case operator.OperationPaused:
				p.next("workers operations resume %s", o.ID)
			case operator.OperationRunning:
				p.next("workers operations pause %s", o.ID)
			default:
				p.next("workers operations show %s --outcome failed", o.ID)
			}
		})
	})
}

func operationsResumeCommand(p Process) *cobra.Command {
	var ids []uuid.UUID
	var course operator.Course
	var choice operator.Choice
	cmd := &cobra.Command{
		Use: "resume ID", Short: "Go on with a paused operation",
		Args: positional(cobra.ExactArgs(1), &ids, operator.ParseID),
		Long: `Go on with a paused operation: one that was paused, that has ended its canary, or of which too many events
failed again. A canary that has not settled goes on; --canary begins another one. What failed before does not count any
more. The command carries it on and prints its progress; the workers do if the command ends.`,
		Example: `  workers operations resume 0198c5d4-9a52-7c11-8f0e-3b7a4d2f6e10
  workers operations resume 0198c5d4-9a52-7c11-8f0e-3b7a4d2f6e10 --canary 10`,
	}
	operationFlags(cmd, &course)
	course.MaxFailed = -1
	choiceFlags(cmd, &choice)
	oneFlag(cmd.Flags(), &course.Rate, "rate", "events per second at most", between(parseFloat, 1e-6, 1e9))
	who := by(cmd, p)
	return operating(p, cmd, func(ctx context.Context, p Process, o *app.Operator) error {
		if err := o.Events.ResumeOperation(ctx, ids[0], *who, course, choice); err != nil {
			return err
		}
		resumed, err := o.Events.Operation(ctx, ids[0])
		if err != nil {
			return err
		}
		return follow(ctx, p, o.Events, ids[0], resumed.Name+"ed")
	})
}

// choiceFlags adds the flags that say which handlers that act outside run again.
func choiceFlags(cmd *cobra.Command, choice *operator.Choice) {
	listFlag(cmd.Flags(), &choice.Run, "run",
		"handler that acts outside its transaction and runs again, although it had begun", word)
	listFlag(cmd.Flags(), &choice.Skip, "skip", "handler that does not run again where it had begun", word)
	complete(cmd, "run", knownHandlers)
	complete(cmd, "skip", knownHandlers)
}

// operationsSetCommand makes cmd change the state of an operation.
func operationsSetCommand(p Process, set func(_ *operator.Client, _ context.Context, id uuid.UUID, by string) error,
	cmd *cobra.Command) *cobra.Command {
	var ids []uuid.UUID
	cmd.Args = positional(cobra.ExactArgs(1), &ids, operator.ParseID)
	who := by(cmd, p)
	return operating(p, cmd, func(ctx context.Context, p Process, o *app.Operator) error {
		if err := set(o.Events, ctx, ids[0], *who); err != nil {
			return err
		}
		now, err := o.Events.Operation(ctx, ids[0])
		if err != nil {
			return err
		}
		return p.print(now, func() { p.printf("operation %s is %s: %s\n", now.ID, now.State, progress(now)) })
	})
}
