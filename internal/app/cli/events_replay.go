package cli

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"spectral/internal/core/events"
	"spectral/internal/core/events/infrastructure/postgres/admin"
)

func eventsReplayCommand(p Process) *cobra.Command {
	cmd := &cobra.Command{
		Use: "replay [ID...]", Short: "Let failed events run again under a generation's code",
		Long: `Let failed events run again under the code of the generation --to, at once and with a fresh count of retries: those named
by id, or all that the flags fit. Handlers that have handled an event do not run again.

First it shows what would happen: which handlers would run, and which have handled the event already; for each event if
they are few or with --dry-run, else in sum. Handlers are those of the generation's live workers. Then it asks, unless --yes
is given, and replays what it has shown and nothing else: what has changed meanwhile is left out and reported.

Many are replayed in batches, beside live traffic. Interrupted, the same command goes on: what is replayed is no longer
failed. Of two operators who do it at once each event is replayed by one. What fails again is not replayed again.

--force replays delivered events as well, for a handler that came later: those named by id, or asked for by --status delivered;
--all and the other flags fit failed ones. Interrupted, such a command begins anew, for what is replayed is delivered then.`,
		Example: `  workers events replay 0198c5d4-9a52-7c11-8f0e-3b7a4d2f6e10 --to 8
  workers events replay --type decision.recorded --error IntegrityError --to 8 --dry-run
  workers events replay --all --to 8 --rate 200 --by anna --yes
  workers events replay --status delivered --type decision.recorded --newer-than 1d --to 8 --force`,
	}
	to := generationFlag(cmd, p, "to", "generation whose code is to handle them", (*admin.Admin).OpenGenerations)
	a := newActing(p, cmd, "replay", "replayed", admin.Failed)
	force := cmd.Flags().Bool("force", false, "delivered events, too: of those named, or with --status delivered")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if *force {
			a.statuses = []admin.Status{admin.Failed, admin.Delivered}
			a.anew = true
		}
		ids, filter, err := a.chosen(args)
		if err != nil {
			return err
		}
		generation, err := to()
		if err != nil {
			return err
		}
		return operating(p, func(cmd *cobra.Command, _ []string, operator *admin.Admin) error {
			ctx := cmd.Context()
			var selection admin.Selection
			if len(ids) > 0 {
				selection, err = operator.SelectToReplay(ctx, ids, generation, *force)
			} else {
				selection, err = a.selected(ctx, operator, filter)
			}
			if err != nil {
				return err
			}
			if a.dryRun {
				if err := previewReplay(ctx, p, operator, selection, generation, *a.asJSON, true); err != nil {
					return err
				}
				notDone(p)
				return nil
			}
			if err := previewReplay(ctx, onStderr(p), operator, selection, generation, false, selection.Len() <= fewEvents && !a.yes); err != nil {
				return err
			}
			if selection.Len() == 0 && !*a.asJSON {
				return nil
			}
			if selection.Len() > 0 {
				if err := consent(ctx, p, a.yes, a.question(selection.Len(), fmt.Sprintf(" into generation %d", generation))); err != nil {
					return err
				}
			}
			return a.run(len(ids) > 0, selection, func(ctx context.Context, pace admin.Pace) (admin.Acted, error) {
				return operator.Replay(ctx, selection, generation, *a.by, *force, pace)
			})
		})(cmd, args)
	}
	return cmd
}

// previewReplay prints what a replay would do: handler by handler for each event if asked, and in sum.
func previewReplay(ctx context.Context, p Process, operator *admin.Admin, s admin.Selection, to events.Generation, asJSON, inFull bool) error {
	var each func([]admin.Effect) error
	effects := []admin.Effect{}
	if inFull {
		each = func(page []admin.Effect) error {
			if asJSON {
				effects = append(effects, page...)
			} else {
				printEffects(p, page)
			}
			return nil
		}
	}
	preview, err := operator.PreviewReplay(ctx, s, to, each)
	if err != nil {
		return err
	}
	if asJSON {
		return printJSON(p, struct {
			admin.Preview
			Effects []admin.Effect `json:"effects"`
		}{preview, effects})
	}
	printPreview(p, preview, inFull)
	return nil
}

func printEffects(p Process, effects []admin.Effect) {
	if len(effects) == 0 {
		return
	}
	rows := make([][]any, len(effects))
	for i, e := range effects {
		effect, handler := "would run", visible(e.Handler)
		switch {
		case e.Handler == "":
			handler, effect = "-", "NOBODY HANDLES IT"
		case e.HandledAt != nil:
			effect = "already handled at " + e.HandledAt.Format(time.RFC3339)
		}
		rows[i] = []any{e.EventID, visible(e.EventType), handler, effect, visible(e.Note)}
	}
	printTable(p, []column{{title: "EVENT"}, {title: "TYPE", cut: true}, {title: "HANDLER", cut: true}, {title: "EFFECT"}, {title: "NOTE", cut: true}}, rows)
}

// printPreview prints the sum.
func printPreview(p Process, preview admin.Preview, inFull bool) {
	if preview.Events == 0 {
		_, _ = fmt.Fprintln(p.Stderr, "no event fits")
		return
	}
	if inFull {
		_, _ = fmt.Fprintln(p.Stdout)
	}
	if len(preview.Handlers) > 0 {
		rows := make([][]any, len(preview.Handlers))
		for i, h := range preview.Handlers {
			rows[i] = []any{visible(h.EventType), visible(h.Handler), h.WouldRun, h.Handled}
		}
		printTable(p, []column{{title: "TYPE", cut: true}, {title: "HANDLER", cut: true}, {title: "WOULD RUN", right: true}, {title: "ALREADY HANDLED", right: true}}, rows)
	}
	for _, u := range preview.Unhandled {
		_, _ = fmt.Fprintf(p.Stdout, "NOBODY WOULD HANDLE %s of type %s: %s\n", strings.ToUpper(eventsText(u.Events)), visible(u.EventType), visible(u.Note))
	}
	for _, pause := range preview.Paused {
		_, _ = fmt.Fprintln(p.Stdout, pauseLine(pause))
	}
	_, _ = fmt.Fprintf(p.Stdout, "%s into generation %d, as of %s\n", eventsText(preview.Events), preview.To, preview.AsOf.Format(time.RFC3339))
}
