package cli

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/spf13/cobra"
	"golang.org/x/time/rate"

	"spectral/internal/app"
	"spectral/internal/core/events/infrastructure/postgres/operator"
	"spectral/internal/core/retention"
)

func retentionCommand(p Process) *cobra.Command {
	return group(&cobra.Command{
		Use: "retention", Short: "Show how long rows are kept, and sweep expired ones",
		Long: `Each kind of row is kept for a number of days, which core.retention_policies holds. Then a sweep makes it a
tombstone. After the days of grace a sweep deletes it. Workers sweep by themselves.`,
	}, retentionStatusCommand(p), retentionSweepCommand(p))
}

func retentionStatusCommand(p Process) *cobra.Command {
	return operating(p, &cobra.Command{
		Use: "status", Short: "Show how long rows are kept, and what expires soon", Args: cobra.NoArgs,
		Long: fmt.Sprintf(`For each kind of row, show how long it is kept, and how many rows the next sweep will tombstone or
delete. Then show how many failed events expire within %d days.

The numbers are exact for tables of up to 100,000 rows. For larger tables they are estimated (~).`, retention.WarnDays),
		Example: `  workers retention status`,
	}, func(ctx context.Context, p Process, o *app.Operator) error {
		policies, err := o.Retention.Policies(ctx)
		if err != nil {
			return err
		}
		status, err := o.Retention.Status(ctx)
		if err != nil {
			return err
		}
		return p.print(struct {
			Policies []retention.Policy `json:"policies"`
			retention.Status
		}{policies, status}, func() { printRetention(p, policies, status) })
	})
}

func printRetention(p Process, policies []retention.Policy, s retention.Status) {
	printTable(p, policies, func(of retention.Policy) []any {
		return []any{of.Subject, of.ContentClass, of.ActiveTTLDays, of.TombstonedGraceDays, of.Disposal,
			counted(of.ToTombstone, of.Estimated), counted(of.ToDelete, of.Estimated)}
	}, "SUBJECT", "CONTENT CLASS", "KEPT DAYS", "GRACE DAYS", "DISPOSAL", "TO TOMBSTONE", "TO DELETE")
	if s.PolicyFault != "" {
		p.printf("\nnothing is swept: %s\n", s.PolicyFault)
	}
	swept := "never; workers sweep after some minutes"
	if s.SweptAt != nil {
		swept = "begun " + timestamp(s.SweptAt)
	}
	p.printf("\nlatest sweep: %s\n", swept)
	if s.FailedExpiring == 0 {
		p.printf("failed events about to expire: none\n")
		p.next("workers doctor retention")
		return
	}
	line := fmt.Sprintf("failed events about to expire: %d, the first at %s: replay or discard them",
		s.FailedExpiring, timestamp(s.FailedExpireFirst))
	_, _ = fmt.Fprintln(p.Stdout, paint(p, "failed", line))
	for _, of := range policies {
		if of.Subject == "outbox_row" {
			p.next("workers events list --older-than %dd", max(of.ActiveTTLDays-retention.WarnDays, 1))
		}
	}
}

func retentionSweepCommand(p Process) *cobra.Command {
	cmd := &cobra.Command{
		Use: "sweep", Short: "Tombstone and delete expired rows now", Args: cobra.NoArgs,
		Long: fmt.Sprintf(`Tombstone or delete each row that is past its days, in short transactions. Workers do the same
every %g hours. An interrupted sweep keeps what it has done.`, retention.Interval.Hours()),
		Example: `  workers retention sweep
  timeout 10m workers retention sweep --yes --pause 1s`,
	}
	pause := 100 * time.Millisecond
	who := by(cmd, p)
	yes := yesFlag(cmd)
	oneFlag(cmd.Flags(), &pause, "pause", "pause after each transaction", between(time.ParseDuration, 0, time.Minute))
	return operating(p, cmd, func(ctx context.Context, p Process, o *app.Operator) error {
		if err := consent(ctx, p, *yes, "Sweep now?"); err != nil {
			return err
		}
		run, err := uuid.NewV7()
		if err != nil {
			return err
		}
		swept, sometimes := int64(0), rate.Sometimes{Interval: progressEvery}
		counts, err := retention.Sweep(ctx, o.Retention, retention.Options{
			Run: run, Steps: app.RetentionSteps(), By: *who, PageRows: retention.PageRows,
			Pause: func() time.Duration { return pause },
			Progress: func(rows int64) {
				if rows > swept {
					sometimes.Do(func() { p.notef("%s swept", operator.Counted(rows, "row")) })
				}
				swept = rows
			},
		})
		if ctx.Err() != nil {
			err = errInterrupted
		}
		if err != nil && swept > 0 {
			err = fmt.Errorf("%w; before that it swept %s; that is kept", err, operator.Counted(swept, "row"))
		}
		return errors.Join(err, p.print(map[string]any{"steps": counts}, func() {
			printTable(p, counts, func(c retention.Count) []any { return []any{c.Subject, c.Action, c.Rows} }, "SUBJECT",
				"WERE", "ROWS")
		}))
	})
}
