package cli

import "github.com/spf13/cobra"

// eventsCommand groups what operators do with single events and with many by filter.
func eventsCommand(p Process) *cobra.Command {
	cmd := &cobra.Command{
		Use: "events", Short: "Look at events, replay, discard and pause them",
		Long: `Look at the events of core.outbox and at what failed; let failed ones run again, give them up, and stop the handling of a type.
What operators do is written to core.operator_actions. docs/runbook.md says what to do when.`,
		Example: `  workers events stats
  workers events list --newer-than 1h
  workers events replay --type decision.recorded --to 8 --dry-run`,
	}
	group(cmd, "which command of events? see `workers events --help`")
	cmd.AddCommand(eventsListCommand(p), eventsShowCommand(p), eventsStatsCommand(p),
		eventsReplayCommand(p), eventsDiscardCommand(p), eventsUndiscardCommand(p), eventsRetryNowCommand(p),
		eventsPauseCommand(p), eventsResumeCommand(p))
	return cmd
}
