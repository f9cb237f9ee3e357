package cli

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"spectral/internal/app"
	"spectral/internal/core/events"
	"spectral/internal/core/events/infrastructure/postgres/operator"
)

func generationCompareCommand(p Process) *cobra.Command {
	since := 24 * time.Hour
	var args []events.Generation
	cmd := &cobra.Command{
		Use: "compare A B", Args: positional(cobra.ExactArgs(2), &args, events.ParseGeneration),
		Short: "Say whether generation B does worse than generation A",
		Long: `Compare what the workers of generations A and B counted: attempts, failures and durations of each handler. It
also lists handlers and contracts that were added or are gone, and error groups that are new in B. B is worse if a
handler clearly fails more often or is much slower, if an error group is new and not muted, or if a handler or a
contract is gone while events of its type are pending in A or B. A handler needs 100 attempts in both generations.

With --gate it exits 3 if B is worse, or if no handler has enough attempts.`,
		Example: `  workers generation compare 7 8
  workers generation compare 7 8 --since 30m --gate   # before 7 is drained`,
	}
	oneFlag(cmd.Flags(), &since, "since", "how far back to count, like 30m, at most 8d", operator.ParseAge)
	gate := cmd.Flags().Bool("gate", false, "exit 3 if B is worse, or if there are not enough samples")
	cmd.PreRunE = func(*cobra.Command, []string) error {
		if since > operator.MaxTimeline {
			return usagef("--since: %s is too long ago: statistics are kept for 8d", age(since))
		}
		if args[0] == args[1] {
			return usagef("generation %d cannot be compared with itself: name two generations", args[0])
		}
		return nil
	}
	return operating(p, cmd, func(ctx context.Context, p Process, o *app.Operator) error {
		found, err := o.Events.Compare(ctx, args[0], args[1], since)
		if err != nil {
			return err
		}
		if err := p.print(found, func() { printGenerationComparison(p, found) }); err != nil || !*gate {
			return err
		}
		switch found.Verdict {
		case operator.Worse:
			return exitError{errors.New(verdictText(found) + ": " + strings.Join(found.Reasons, "; ")), exitAttention}
		case operator.NotEnough:
			return exitError{fmt.Errorf("not enough samples: no handler has %d attempts in both generations since %s; let "+
				"generation %d handle more events, or look further back with --since", operator.EnoughAttempts,
				timestamp(&found.From), found.B), exitAttention}
		}
		return nil
	})
}

func verdictText(c operator.Comparison) string {
	switch c.Verdict {
	case operator.Worse:
		return fmt.Sprintf("generation %d is worse than generation %d", c.B, c.A)
	case operator.NotEnough:
		return "not enough samples"
	default:
		return fmt.Sprintf("generation %d is not worse than generation %d", c.B, c.A)
	}
}

func printGenerationComparison(p Process, c operator.Comparison) {
	p.printf("from generation %d to %d, since %s\n", c.A, c.B, timestamp(&c.From))
	printTable(p, c.Handlers, func(h operator.HandlerComparison) []any {
		a, b := h.InA, h.InB
		return []any{h.Handler, h.EventType, h.Verdict, fmt.Sprintf("%d to %d", a.Attempts, b.Attempts),
			fmt.Sprintf("%.1f%% to %.1f%%", a.FailureRate*100, b.FailureRate*100),
			percentile(a.Took, a.Took.P50) + " to " + percentile(b.Took, b.Took.P50),
			percentile(a.Took, a.Took.P95) + " to " + percentile(b.Took, b.Took.P95)}
	}, "HANDLER", "TYPE", "VERDICT", "ATTEMPTS", "FAILURE RATE", "P50", "P95")
	printTable(p, c.Contracts, func(d operator.ContractDifference) []any {
		return []any{fmt.Sprintf("%s version %d", d.EventType, d.Version), d.Change}
	}, "CONTRACT", "VERDICT")
	printTable(p, c.Groups, func(g operator.NewGroup) []any {
		return []any{g.GroupID, g.Handler, timestamp(&g.FirstSeen), g.ErrorClass + ": " + firstLine(&g.Message)}
	}, "NEW GROUP", "HANDLER", "FIRST SEEN", "ERROR")
	if c.Contracts == nil {
		p.notef("contracts are not compared: those of a retired generation are not kept")
	}
	p.printf("%s\n", verdictText(c))
	for _, reason := range c.Reasons {
		p.printf("  %s\n", reason)
	}
}
