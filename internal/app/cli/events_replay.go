package cli

import (
	"context"
	"fmt"

	"github.com/google/uuid"
	"github.com/spf13/cobra"

	"spectral/internal/core/events"
	"spectral/internal/core/events/infrastructure/postgres/admin"
)

func eventsReplayCommand(p Process) *cobra.Command {
	cmd := &cobra.Command{
		Use: "replay [ID...]", Short: "Let failed events run again under a generation's code",
		Long: `Let failed events run again under the code of the generation --to, with a fresh count of retries: those
named by id, or all that the flags fit. Handlers that have handled an event do not run again.

It shows what would happen, and asks. What has changed since it was shown is left out and reported. Interrupted, the
same command goes on. --force replays delivered events as well: those named by id, or by --status delivered.
docs/runbook.md says more.`,
		Example: `  workers events replay 0198c5d4-9a52-7c11-8f0e-3b7a4d2f6e10 --to 8
  workers events replay --type decision.recorded --error IntegrityError --to 8 --dry-run
  workers events replay --all --to 8 --rate 200 --by anna --yes
  workers events replay --status delivered --type decision.recorded --newer-than 1d --to 8 --force`,
	}
	var to events.Generation
	oneFlag(cmd.Flags(), &to, "to", "generation whose code is to handle them", events.ParseGeneration)
	force := cmd.Flags().Bool("force", false, "delivered events, too: of those named, or with --status delivered")
	_ = cmd.MarkFlagRequired("to")
	b := &bulk{
		verb: "Replay", done: "replayed", statuses: []admin.Status{admin.Failed},
		named: func(a *admin.Admin, ctx context.Context, ids []uuid.UUID) (admin.Selection, error) {
			return a.SelectToReplay(ctx, ids, to, *force)
		},
		show: func(ctx context.Context, p Process, a *admin.Admin, s admin.Selection, full, asJSON bool) error {
			return showReplay(ctx, p, a, s, to, full, asJSON)
		},
		do: func(a *admin.Admin, ctx context.Context, s admin.Selection, by string, pace admin.Pace) (admin.Acted, error) {
			return a.Replay(ctx, s, to, by, *force, pace)
		},
	}
	b.prepare = func() {
		b.further = fmt.Sprintf(" into generation %d", to)
		if *force {
			b.statuses = append(b.statuses, admin.Delivered)
		}
	}
	return bulkCommand(p, cmd, b)
}

// showReplay prints what a replay would do: handler by handler for each event if full or if they are few, and in sum.
func showReplay(ctx context.Context, p Process, a *admin.Admin, s admin.Selection, to events.Generation,
	full, asJSON bool) error {
	preview, err := a.PreviewReplay(ctx, s, to, full || s.Len() <= fewEvents)
	if err != nil {
		return err
	}
	if asJSON {
		return printJSON(p, preview)
	}
	printTable(p, preview.Effects, func(e admin.Effect) []any {
		effect := "would run"
		switch {
		case e.Handler == "":
			e.Handler, effect = "-", "NO HANDLER"
		case e.HandledAt != nil:
			effect = "already handled at " + atOrDash(e.HandledAt)
		}
		return []any{e.EventID, e.EventType, e.Handler, effect, e.Note}
	}, "EVENT", "TYPE", "HANDLER", "EFFECT", "NOTE")
	printTable(p, preview.Handlers, func(h admin.HandlerEffect) []any {
		return []any{h.EventType, h.Handler, h.WouldRun, h.Handled}
	}, "TYPE", "HANDLER", "WOULD RUN", "ALREADY HANDLED")
	for _, u := range preview.Unhandled {
		p.printf("NO HANDLER for %s of type %s: %s\n", eventsText(u.Events), u.EventType, u.Note)
	}
	for _, pause := range preview.Paused {
		p.printf("%s\n", pauseLine(pause))
	}
	p.printf("%s into generation %d, as of %s\n", eventsText(preview.Events), preview.To, atOrDash(&preview.AsOf))
	return nil
}
