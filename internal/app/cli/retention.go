package cli

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jedib0t/go-pretty/v6/text"
	"github.com/spf13/cobra"

	"spectral/internal/app"
	"spectral/internal/core/retention"
	retentionpg "spectral/internal/core/retention/infrastructure/postgres"
)

// retentionCommand groups what operators do about the age of what is stored.
func retentionCommand(p Process) *cobra.Command {
	cmd := &cobra.Command{
		Use: "retention", Short: "See how long rows are kept, and sweep rows that are past it",
		Long: `See how long rows are kept, by core.retention_policies, and sweep those that are past it: a row first becomes a
tombstone, and is deleted after the days of grace. Workers sweep without a command.`,
		Example: `  workers retention status
  workers retention sweep`,
	}
	return group(cmd, retentionStatusCommand(p), retentionSweepCommand(p))
}

// retaining wraps a command about retention: DATABASE_URL in, a store for the time it runs.
func retaining(p Process, do func(cmd *cobra.Command, store *retentionpg.Store) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, _ []string) error {
		url, err := app.ReadDatabaseURL(p.Getenv)
		if err != nil {
			return err
		}
		store, closeStore, err := app.OpenRetention(cmd.Context(), url)
		if err != nil {
			return err
		}
		defer closeStore()
		return do(cmd, store)
	}
}

// retentionPolicy is a stored policy as --json prints it.
type retentionPolicy struct {
	Subject             retention.Subject  `json:"subject"`
	ContentClass        string             `json:"content_class"`
	ActiveTTLDays       int                `json:"active_ttl_days"`
	TombstonedGraceDays int                `json:"tombstoned_grace_days"`
	Disposal            retention.Disposal `json:"disposal"`
	ToTombstone         int64              `json:"to_tombstone"`
	ToDelete            int64              `json:"to_delete"`
	Estimated           bool               `json:"estimated"`
}

// retentionStatus is what `retention status --json` prints.
type retentionStatus struct {
	Policies          []retentionPolicy `json:"policies"`
	PolicyFault       string            `json:"policy_fault,omitempty"`
	SweptAt           *time.Time        `json:"swept_at"` // when a sweep last began
	FailedExpiring    int64             `json:"failed_expiring"`
	FailedExpireFirst *time.Time        `json:"failed_expire_first_at"`
}

func retentionStatusCommand(p Process) *cobra.Command {
	cmd := &cobra.Command{
		Use: "status", Short: "Show the policies, the rows that are past them, and failed events about to expire", Args: cobra.NoArgs,
		Long: `Show how long rows are kept, how many are past it and not swept yet, when a sweep last began, and the failed events
that will be tombstoned within ` + fmt.Sprint(retention.WarnDays) + ` days unless they are replayed or discarded. Rows are counted in tables
of up to 100,000 rows, and estimated in larger ones, which a ~ marks.

Exits 0 whatever it finds.`,
		Example: `  workers retention status
  workers retention status --json`,
	}
	asJSON := jsonFlag(cmd)
	cmd.RunE = retaining(p, func(cmd *cobra.Command, store *retentionpg.Store) error {
		policies, err := store.Policies(cmd.Context())
		if err != nil {
			return err
		}
		status, err := store.Status(cmd.Context())
		if err != nil {
			return err
		}
		shown := retentionStatus{PolicyFault: status.PolicyFault, SweptAt: status.SweptAt, FailedExpiring: status.FailedExpiring}
		for _, stored := range policies {
			shown.Policies = append(shown.Policies, retentionPolicy{
				stored.Subject, stored.ContentClass, stored.ActiveTTLDays, stored.TombstonedGraceDays, stored.Disposal,
				stored.ToTombstone, stored.ToDelete, stored.Estimated,
			})
		}
		if status.FailedExpiring > 0 {
			at := status.FailedExpireFirst.UTC()
			shown.FailedExpireFirst = &at
		}
		if *asJSON {
			return printJSON(p, shown)
		}
		printRetention(p, shown)
		return nil
	})
	return cmd
}

// printRetention prints the status for people.
func printRetention(p Process, s retentionStatus) {
	rows := make([][]any, len(s.Policies))
	for i, policy := range s.Policies {
		mark := ""
		if policy.Estimated {
			mark = "~"
		}
		rows[i] = []any{
			policy.Subject, policy.ContentClass, policy.ActiveTTLDays, policy.TombstonedGraceDays, policy.Disposal,
			fmt.Sprint(mark, policy.ToTombstone), fmt.Sprint(mark, policy.ToDelete),
		}
	}
	printTable(p, rows, "SUBJECT", "CONTENT CLASS", "KEPT DAYS", "GRACE DAYS", "DISPOSAL", "TO TOMBSTONE", "TO DELETE")
	if s.PolicyFault != "" {
		_, _ = fmt.Fprintf(p.Stdout, "\nnothing is swept: %s\n", s.PolicyFault)
	}
	swept := "never; workers sweep once they have run for some minutes"
	if s.SweptAt != nil {
		swept = "begun " + s.SweptAt.Format(time.RFC3339)
	}
	_, _ = fmt.Fprintf(p.Stdout, "\nlatest sweep: %s\n", swept)
	if s.FailedExpiring == 0 {
		_, _ = fmt.Fprintln(p.Stdout, "failed events about to expire: none")
		return
	}
	line := fmt.Sprintf("failed events about to expire: %d, the first at %s; replay or discard them before",
		s.FailedExpiring, s.FailedExpireFirst.Format(time.RFC3339))
	if coloured(p) {
		line = text.FgRed.Sprint(line)
	}
	_, _ = fmt.Fprintln(p.Stdout, line)
}

type sweepOptions struct {
	yes, asJSON    bool
	by             string
	maxRows        int64
	maxTime, pause time.Duration
}

func retentionSweepCommand(p Process) *cobra.Command {
	var o sweepOptions
	cmd := &cobra.Command{
		Use: "sweep", Short: "Tombstone and delete rows that are past their retention, now", Args: cobra.NoArgs,
		Long: `Sweep until no row is left that the policies allow to sweep, or --max-rows or --max-time is reached. Workers do the same every
` + retention.DefaultInterval.String() + `; the command is for a backlog that must not wait. Many short transactions, with a pause after each: producers and
workers do not wait for it. Interrupted, it keeps what it has done.`,
		Example: `  workers retention sweep
  workers retention sweep --yes --max-rows 100000 --max-time 10m`,
	}
	asJSON := jsonFlag(cmd)
	who := by(cmd, p)
	cmd.Flags().BoolVar(&o.yes, "yes", false, "do not ask")
	cmd.Flags().Int64Var(&o.maxRows, "max-rows", 1_000_000, "sweep no more rows than this in all")
	cmd.Flags().DurationVar(&o.maxTime, "max-time", time.Hour, "begin no further transaction after this")
	cmd.Flags().DurationVar(&o.pause, "pause", 100*time.Millisecond, "pause after each transaction")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		o.asJSON, o.by = *asJSON, *who
		switch {
		case o.maxRows < 1 || o.maxRows > 1_000_000_000:
			return usageError{fmt.Errorf("--max-rows %d: want 1 to 1000000000", o.maxRows)}
		case o.maxTime <= 0 || o.maxTime > 24*time.Hour:
			return usageError{fmt.Errorf("--max-time %s: want a time above 0, at most 24h", o.maxTime)}
		case o.pause < 0 || o.pause > time.Minute:
			return usageError{fmt.Errorf("--pause %s: want 0 to 1m", o.pause)}
		}
		return retaining(p, func(cmd *cobra.Command, store *retentionpg.Store) error { return sweep(cmd.Context(), p, store, o) })(cmd, args)
	}
	return cmd
}

// sweepCounts is what `retention sweep --json` prints.
type sweepCounts struct {
	Steps []retention.Count `json:"steps"`
}

func sweep(ctx context.Context, p Process, store *retentionpg.Store, o sweepOptions) error {
	if err := consent(ctx, p, o.yes, "Sweep now?"); err != nil {
		return err
	}
	run, err := uuid.NewV7()
	if err != nil {
		return err
	}
	until, reported, swept := time.Now().Add(o.maxTime), time.Now(), int64(0)
	counts, err := retention.Sweep(ctx, store, retention.Options{
		Steps: app.RetentionSteps(), Run: run, By: o.by, PageRows: retention.DefaultPageRows, MaxRows: o.maxRows,
		Pause: func() time.Duration { return o.pause },
		Stop: func(rows int64) bool {
			now := time.Now()
			if rows > swept && now.Sub(reported) >= time.Second {
				reported = now
				_, _ = fmt.Fprintf(p.Stderr, "%s swept\n", app.Counted(rows, "row"))
			}
			swept = rows
			return now.After(until)
		},
	})
	switch {
	case ctx.Err() != nil:
		err = errInterrupted
	case err == nil && counts[len(counts)-1].More:
		_, _ = fmt.Fprintf(p.Stderr, "stopped at --max-rows or --max-time: more is left, or may be\n")
	}
	if err != nil && swept == 0 {
		return err
	} else if err != nil {
		err = fmt.Errorf("%w; %s swept before, and stay so", err, app.Counted(swept, "row"))
	}
	if o.asJSON {
		return errors.Join(err, printJSON(p, sweepCounts{counts}))
	}
	rows := make([][]any, len(counts))
	for i, c := range counts {
		n := fmt.Sprint(c.Rows)
		if c.More {
			n += "+"
		}
		rows[i] = []any{c.Subject, c.Action, n}
	}
	printTable(p, rows, "SUBJECT", "WERE", "ROWS")
	return err
}
