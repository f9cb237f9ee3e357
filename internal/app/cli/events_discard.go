package cli

import (
	"context"

	"github.com/spf13/cobra"

	"spectral/internal/core/events/infrastructure/postgres/admin"
)

func eventsDiscardCommand(p Process) *cobra.Command {
	var reason *string
	return eventsAct{
		use: "discard", verb: "discard", done: "discarded", statuses: []admin.Status{admin.Failed},
		short: "Give failed events up for good",
		long: `Give failed events up for good: those named by id, or all that the flags fit. They are shown first, and it asks, unless
--yes is given. For the days of grace of an outbox_row (` + "`workers retention status`" + `) ` + "`workers events undiscard`" + ` takes it back; then they
are deleted.`,
		example: `  workers events discard 0198c5d4-9a52-7c11-8f0e-3b7a4d2f6e10 --reason "the card is gone"
  workers events discard --type decision.recorded --older-than 7d --dry-run
  workers events discard --workspace 0198c5d4-0000-7000-8000-000000000001 --reason "tenant left" --yes`,
		flags: func(cmd *cobra.Command) {
			reason = reasonFlag(cmd)
		},
		named: (*admin.Admin).SelectToDiscard,
		many: func(ctx context.Context, operator *admin.Admin, s admin.Selection, by string, pace admin.Pace) (admin.Acted, error) {
			return operator.Discard(ctx, s, by, *reason, pace)
		},
	}.command(p)
}

func eventsUndiscardCommand(p Process) *cobra.Command {
	return eventsAct{
		use: "undiscard", verb: "undiscard", done: "undiscarded", statuses: []admin.Status{admin.Discarded},
		short: "Take discards back, within the days of grace",
		long: `Take back what ` + "`workers events discard`" + ` did, within the days of grace of an outbox_row
(` + "`workers retention status`" + `): the events are failed again, as they were, and can be replayed. What is past its retention by then expires again soon: replay it at once.`,
		example: `  workers events undiscard 0198c5d4-9a52-7c11-8f0e-3b7a4d2f6e10
  workers events undiscard --type decision.recorded --dry-run`,
		named: (*admin.Admin).SelectToUndiscard,
		many: func(ctx context.Context, operator *admin.Admin, s admin.Selection, by string, pace admin.Pace) (admin.Acted, error) {
			return operator.Undiscard(ctx, s, by, pace)
		},
	}.command(p)
}

func eventsRetryNowCommand(p Process) *cobra.Command {
	return eventsAct{
		use: "retry-now", verb: "retry", done: "made due", statuses: []admin.Status{admin.Scheduled}, further: " now", waiting: true,
		short: "Let waiting events run at once",
		long: `Make events due at once that wait for a retry after a failure: those named by id, or all that the flags fit. Nothing else about them changes: the
tries so far count, and a handler that has given up stays so, which only a replay undoes once the event has failed.

It is not meant for events that their producer published for a later time. Those that were never tried are left alone by the flags, --all as well, and only
counted; one that is named by its id is made due all the same. Dry run, question and result say how many there are of either kind.`,
		example: `  workers events retry-now 0198c5d4-9a52-7c11-8f0e-3b7a4d2f6e10
  workers events retry-now --error ConnectionError --yes`,
		named: (*admin.Admin).SelectToRetryNow,
		many: func(ctx context.Context, operator *admin.Admin, s admin.Selection, by string, pace admin.Pace) (admin.Acted, error) {
			return operator.RetryNow(ctx, s, by, pace)
		},
	}.command(p)
}
