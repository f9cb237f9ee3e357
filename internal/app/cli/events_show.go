package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/spf13/cobra"

	"spectral/internal/app"
	"spectral/internal/core/events"
	"spectral/internal/core/events/infrastructure/postgres/operator"
)

func eventsShowCommand(p Process) *cobra.Command {
	cmd := &cobra.Command{
		Use: "show ID", Short: "Show all that is known about an event", Args: cobra.ExactArgs(1),
		Long: `Show an event: its envelope, routing, attempts and times, the state of each handler, its history, what
operators did to it, and its payload. It lists handlers that have handled or failed it, and those of live workers:

  handled      a replay skips it
  failing      it failed, and is retried
  parked       it failed for good in this cycle; a replay runs it
  to_run       it has not run yet
  not_run      it did not exist when the event settled; a replay runs it
  not_target   the event is for another context: it does not run`,
		Example: `  workers events show 0198c5d4-9a52-7c11-8f0e-3b7a4d2f6e10`,
	}
	asJSON := jsonFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		id, err := parseID(args[0])
		if err != nil {
			return usage(err)
		}
		return operating(p, func(ctx context.Context, _ []string, o *app.Operator) error {
			all, err := o.Events.Show(ctx, id)
			if err != nil {
				return err
			}
			live, err := publishingDefault(ctx, o.Events)
			if err != nil {
				return err
			}
			return printed(p, *asJSON, map[string]any{"events": all}, func() {
				for _, d := range all {
					printDetail(p, d)
				}
				if len(all) == 1 {
					nextOf(p, all[0], live)
				} else {
					p.notef("%d events have this id; they occurred at different times", len(all))
				}
			})
		})(cmd, args)
	}
	return cmd
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
	case d.Paused != nil:
		p.next("workers events resume %s --generation %d", d.EventType, d.Generation)
	case d.Status == operator.Failed && live == 0:
		p.next("workers generation status") // a replay needs a live generation
	case d.Status == operator.Failed:
		p.next("workers events replay %s --to %d --dry-run", d.ID, live)
	case d.Status == operator.Discarded:
		p.next("workers events undiscard %s", d.ID)
	case d.Status == operator.Scheduled:
		p.next("workers events retry-now %s", d.ID)
	case d.Status == operator.Due:
		p.next("workers doctor unhandled listeners transactions")
	case d.Status == operator.InFlight:
		p.next("workers doctor leases transactions")
	default:
		p.next("workers actions list --event %s", d.ID)
	}
}

func printDetail(p Process, d operator.Detail) {
	target := "every context"
	if d.Target != nil {
		target = string(*d.Target)
	}
	leased := ""
	if d.Status == operator.InFlight {
		leased = fmt.Sprintf("%s by %s until %s, running: %s", timestamp(d.ClaimedAt), orDash(d.ClaimedBy),
			timestamp(d.LeaseExpiresAt), orDash(d.LeaseHandler))
	}
	p.printf("event %s  %s\n", d.ID, d.Status)
	for _, line := range [][2]string{
		{"type", fmt.Sprintf("%s version %d", d.EventType, d.EventVersion)},
		{"source", string(d.Source)},
		{"target", target},
		{"workspace", workspace(d.Event)},
		{"occurred", d.OccurredAt.Format("2006-01-02T15:04:05.000000Z")}, // a part of the key
		{"key", d.IdempotencyKey},
		{"trace", orDash(d.TraceContext)},
		{"content", d.ContentClass},
		{"routing", fmt.Sprintf("generation %d, channel %s, class %s", d.Generation, d.Channel, d.Class)},
		{"attempts", fmt.Sprintf("%d in this cycle, %s, %s", d.Attempts, app.Counted(d.PriorReplays, "prior replay"),
			app.Counted(d.Crashes, "crash"))},
		{"published", timestamp(&d.CreatedAt)},
		{"available", timestamp(&d.AvailableAt)},
		{"first failed", timestamp(d.FirstFailedAt)},
		{"failed", timestamp(d.FailedAt)},
		{"leased", leased},
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
		}
		return []any{s.Handler, s.Stage, timestamp(s.HandledAt), s.Failures, s.Free, firstLine(&problem)}
	}, []string{"NOT COUNTED", "FAILURES", "ERROR", "HANDLER"}, "HANDLER", "STATE", "SINCE", "FAILURES", "NOT COUNTED",
		"ERROR")
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
