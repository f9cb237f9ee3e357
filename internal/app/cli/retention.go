package cli

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/spf13/cobra"

	"spectral/internal/app"
	"spectral/internal/core/retention"
)

func retentionCommand(p Process) *cobra.Command {
	cmd := &cobra.Command{
		Use: "retention", Short: "See how long rows are kept, and sweep rows that are past it",
		Long: `Show how long rows are kept (core.retention_policies), and sweep those past their retention: a row becomes a
tombstone, and is deleted after the days of grace. Workers sweep by themselves.`,
		Example: `  workers retention status`,
	}
	return group(cmd, retentionStatusCommand(p), retentionSweepCommand(p))
}

func retentionStatusCommand(p Process) *cobra.Command {
	cmd := &cobra.Command{
		Use: "status", Short: "Show how long rows are kept, and what is about to expire", Args: cobra.NoArgs,
		Long: `Show how long rows are kept, how many are past that, and the failed events that expire within
` + fmt.Sprint(retention.WarnDays) + ` days. Rows are counted in tables of up to 100,000 rows and estimated (~) in
larger ones.`,
		Example: `  workers retention status`,
	}
	asJSON := jsonFlag(cmd)
	cmd.RunE = operating(p, func(ctx context.Context, _ []string, o *app.Operator) error {
		policies, err := o.Retention.Policies(ctx)
		if err != nil {
			return err
		}
		status, err := o.Retention.Status(ctx)
		if err != nil {
			return err
		}
		result := struct {
			Policies []retention.Policy `json:"policies"`
			retention.Status
		}{policies, status}
		return printed(p, *asJSON, result, func() { printRetention(p, policies, status) })
	})
	return cmd
}

func printRetention(p Process, policies []retention.Policy, s retention.Status) {
	printTable(p, policies, func(policy retention.Policy) []any {
		mark := ""
		if policy.Estimated {
			mark = "~"
		}
		return []any{
			policy.Subject, policy.ContentClass, policy.ActiveTTLDays, policy.TombstonedGraceDays, policy.Disposal,
			fmt.Sprint(mark, policy.ToTombstone), fmt.Sprint(mark, policy.ToDelete),
		}
	}, []string{"DISPOSAL", "CONTENT CLASS", "GRACE DAYS"}, "SUBJECT", "CONTENT CLASS", "KEPT DAYS", "GRACE DAYS",
		"DISPOSAL", "TO TOMBSTONE", "TO DELETE")
	if s.PolicyFault != "" {
		p.printf("\nnothing is swept: %s\n", s.PolicyFault)
	}
	swept := "never; workers sweep after some minutes"
	if s.SweptAt != nil {
		swept = "begun " + s.SweptAt.Format(time.RFC3339)
	}
	p.printf("\nlatest sweep: %s\n", swept)
	if s.FailedExpiring == 0 {
		p.printf("failed events about to expire: none\n")
		p.next("workers doctor retention")
		return
	}
	line := fmt.Sprintf("failed events about to expire: %d, the first at %s: replay or discard them",
		s.FailedExpiring, s.FailedExpireFirst.Format(time.RFC3339))
	_, _ = fmt.Fprintln(p.Stdout, paint(p, "failed", line))
	older := ""
	for _, policy := range policies {
		if days := policy.ActiveTTLDays - retention.WarnDays; policy.Subject == "outbox_row" && days > 0 {
			older = fmt.Sprintf(" --older-than %dd", days)
		}
	}
	p.next("workers events list%s", older)
}

func retentionSweepCommand(p Process) *cobra.Command {
	cmd := &cobra.Command{
		Use: "sweep", Short: "Tombstone and delete rows that are past their retention, now", Args: cobra.NoArgs,
		Long: `Sweep until no row is past its retention. Workers do the same every ` + retention.Interval.String() + `.
Interrupted, the command keeps what it has done.`,
		Example: `  workers retention sweep
  timeout 10m workers retention sweep --yes --pause 1s`,
	}
	pause := 100 * time.Millisecond
	asJSON := jsonFlag(cmd)
	who := by(cmd, p)
	yes := yesFlag(cmd)
	oneFlag(cmd.Flags(), &pause, "pause", "pause after each transaction", between(time.ParseDuration, 0, time.Minute))
	cmd.RunE = operating(p, func(ctx context.Context, _ []string, o *app.Operator) error {
		if err := consent(ctx, p, *yes, "Sweep now?"); err != nil {
			return err
		}
		run, err := uuid.NewV7()
		if err != nil {
			return err
		}
		reported, swept := time.Now(), int64(0)
		counts, err := retention.Sweep(ctx, o.Retention, retention.Options{
			Run: run, Steps: app.RetentionSteps(), By: *who, PageRows: retention.PageRows,
			Pause: func() time.Duration { return pause },
			Progress: func(rows int64) {
				if rows > swept && time.Since(reported) >= time.Second {
					reported = time.Now()
					p.notef("%s swept", app.Counted(rows, "row"))
				}
				swept = rows
			},
		})
		if ctx.Err() != nil {
			err = errInterrupted
		}
		if err != nil && swept == 0 {
			return err
		} else if err != nil {
			err = fmt.Errorf("%w; before that it swept %s; that is kept", err, app.Counted(swept, "row"))
		}
		if *asJSON {
			return errors.Join(err, printJSON(p, map[string]any{"steps": counts}))
		}
		printTable(p, counts, func(c retention.Count) []any { return []any{c.Subject, c.Action, c.Rows} }, nil, "SUBJECT",
			"WERE", "ROWS")
		return err
	})
	return cmd
}
