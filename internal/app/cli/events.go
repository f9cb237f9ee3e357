package cli

import (
	"errors"

	"github.com/spf13/cobra"
)

// eventsCommand groups what operators do with single events and with many by filter.
func eventsCommand(p Process) *cobra.Command {
	cmd := &cobra.Command{
		Use: "events", Short: "Look at events, replay, discard and pause them", Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			return usageError{errors.New("which command of events? see `workers events --help`")}
		},
	}
	cmd.AddCommand(eventsListCommand(p), eventsShowCommand(p), eventsStatsCommand(p),
		eventsReplayCommand(p), eventsDiscardCommand(p), eventsUndiscardCommand(p), eventsRetryNowCommand(p),
		eventsPauseCommand(p), eventsResumeCommand(p))
	return cmd
}
