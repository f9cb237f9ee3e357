package cli

import (
	"context"

	"github.com/spf13/cobra"

	"spectral/internal/core/events/infrastructure/postgres/admin"
)

func eventsDiscardCommand(p Process) *cobra.Command {
	var reason *string
	cmd := bulkCommand(p, &cobra.Command{
		Use: "discard [ID...]", Short: "Give failed events up for good",
		Long: `Give failed events up for good: those named by id, or all that the flags fit. Unless --yes is given, it shows
them first, and asks. For the days of grace ` + "`workers events undiscard`" + ` takes it back.`,
		Example: `  workers events discard 0198c5d4-9a52-7c11-8f0e-3b7a4d2f6e10 --reason "the card is gone"
  workers events discard --type decision.recorded --older-than 7d --dry-run
  workers events discard --workspace 0198c5d4-0000-7000-8000-000000000001 --reason "tenant left" --yes`,
	}, &bulk{
		verb: "Discard", done: "discarded", statuses: []admin.Status{admin.Failed},
		named: (*admin.Admin).SelectToDiscard, show: showEvents,
		do: func(a *admin.Admin, ctx context.Context, s admin.Selection, by string, pace admin.Pace) (admin.Acted, error) {
			return a.Discard(ctx, s, by, *reason, pace)
		},
	})
	reason = reasonFlag(cmd)
	return cmd
}

func eventsUndiscardCommand(p Process) *cobra.Command {
	return bulkCommand(p, &cobra.Command{
		Use: "undiscard [ID...]", Short: "Take discards back, within the days of grace",
		Long: `Take discards back within the days of grace (` + "`workers retention status`" + `): the events are failed again.`,
		Example: `  workers events undiscard 0198c5d4-9a52-7c11-8f0e-3b7a4d2f6e10
  workers events undiscard --type decision.recorded --dry-run`,
	}, &bulk{
		verb: "Undiscard", done: "undiscarded", statuses: []admin.Status{admin.Discarded},
		named: (*admin.Admin).SelectToUndiscard, show: showEvents, do: (*admin.Admin).Undiscard,
	})
}

func eventsRetryNowCommand(p Process) *cobra.Command {
	tried := true
	return bulkCommand(p, &cobra.Command{
		Use: "retry-now [ID...]", Short: "Let waiting events run at once",
		Long: `Make events due at once that wait for a retry after a failure: those named by id, or all that the flags fit.
The tries so far count. Events published for a later time and never tried are made due only by their ids.`,
		Example: `  workers events retry-now 0198c5d4-9a52-7c11-8f0e-3b7a4d2f6e10
  workers events retry-now --error ConnectionError --yes`,
	}, &bulk{
		verb: "Retry", done: "made due", further: " now", statuses: []admin.Status{admin.Scheduled}, tried: &tried,
		named: (*admin.Admin).SelectToRetryNow, show: showEvents, do: (*admin.Admin).RetryNow,
	})
}
