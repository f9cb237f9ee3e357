package cli

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
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
		Use: "retention", Short: "See how long rows are kept, and sweep what is past it",
		Long: `See how long rows are kept, by core.retention_policies, and sweep what is past it: first it becomes a tombstone, and after the days
of grace it is deleted. Workers sweep by themselves.`,
		Example: `  workers retention status
  workers retention sweep --dry-run`,
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
}

// retentionStatus is what `retention status --json` prints.
type retentionStatus struct {
	Policies    []retentionPolicy `json:"policies"`
	PolicyFault string            `json:"policy_fault,omitempty"`
	Due         []retention.Count `json:"due"`
	Latest      *retention.Run    `json:"latest_run"`
	// NextRunIn is in how many seconds a worker sweeps next, or somewhat later, as long as one runs.
	NextRunIn         float64    `json:"next_run_in_seconds"`
	FailedExpiring    int64      `json:"failed_expiring"`
	FailedExpireFirst *time.Time `json:"failed_expire_first_at"`
}

func retentionStatusCommand(p Process) *cobra.Command {
	var maxRows int64
	var maxTime time.Duration
	cmd := &cobra.Command{
		Use: "status", Short: "Show the policies, what is due, the latest sweep and failed events about to expire", Args: cobra.NoArgs,
		Long: `Show how long rows are kept, how many are past it and not swept yet, the latest sweep, and the failed events
that will be tombstoned within ` + fmt.Sprint(retention.WarnDays) + ` days unless they are replayed or discarded. Counting ends at --max-rows rows in each step, and
after about --max-time in all; what it ended at is then marked with a +.

Exits 0 whatever it finds.`,
		Example: `  workers retention status
  workers retention status --json`,
	}
	asJSON := jsonFlag(cmd)
	cmd.Flags().Int64Var(&maxRows, "max-rows", 100_000, "count no further in each step")
	cmd.Flags().DurationVar(&maxTime, "max-time", 10*time.Second, "count no longer than about this")
	show := retaining(p, func(cmd *cobra.Command, store *retentionpg.Store) error {
		ctx := cmd.Context()
		policies, err := store.Policies(ctx)
		if err != nil {
			return err
		}
		status, err := store.Status(ctx)
		if err != nil {
			return err
		}
		due, err := store.Preview(ctx, maxRows, maxTime)
		if err != nil {
			return err
		}
		shown := retentionStatus{PolicyFault: status.PolicyFault, Due: due, Latest: status.Latest, FailedExpiring: status.FailedExpiring}
		for _, policy := range policies {
			shown.Policies = append(shown.Policies, retentionPolicy(policy))
		}
		next, err := store.DueIn(ctx, retention.DefaultInterval)
		if err != nil {
			return err
		}
		shown.NextRunIn = next.Seconds()
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
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := checkBounds(maxRows, maxTime); err != nil {
			return err
		}
		return show(cmd, args)
	}
	return cmd
}

// printRetention prints the status for people.
func printRetention(p Process, s retentionStatus) {
	rows := make([][]any, len(s.Policies))
	for i, policy := range s.Policies {
		rows[i] = []any{
			policy.Subject, policy.ContentClass, policy.ActiveTTLDays, policy.TombstonedGraceDays, policy.Disposal,
			dueText(s.Due, policy.Subject, retention.Tombstoned), dueText(s.Due, policy.Subject, retention.Deleted),
		}
	}
	printTable(p, rows, "SUBJECT", "CONTENT CLASS", "KEPT DAYS", "GRACE DAYS", "DISPOSAL", "TO TOMBSTONE", "TO DELETE")
	if s.PolicyFault != "" {
		_, _ = fmt.Fprintf(p.Stdout, "\nnothing is swept: %s\n", s.PolicyFault)
	}
	if run := s.Latest; run == nil {
		_, _ = fmt.Fprintln(p.Stdout, "\nlatest sweep: none; workers sweep once they have run for some minutes")
	} else {
		printRun(p, *run)
		if s.NextRunIn <= 0 {
			_, _ = fmt.Fprintln(p.Stdout, "next sweep: due, by a worker that has run for some minutes")
		} else {
			_, _ = fmt.Fprintf(p.Stdout, "next sweep: by a worker, if one runs, in about %s\n", age(time.Duration(s.NextRunIn*float64(time.Second))))
		}
	}
	if s.FailedExpiring > 0 {
		line := fmt.Sprintf("failed events about to expire: %d, the first at %s; replay or discard them before",
			s.FailedExpiring, s.FailedExpireFirst.Format(time.RFC3339))
		if coloured(p) {
			line = text.FgRed.Sprint(line)
		}
		_, _ = fmt.Fprintln(p.Stdout, line)
	} else {
		_, _ = fmt.Fprintln(p.Stdout, "failed events about to expire: none")
	}
}

func printRun(p Process, run retention.Run) {
	end := "not ended: under way, or cut short; its last batch was at " + run.UpdatedAt.Format(time.RFC3339)
	if run.EndedAt != nil {
		end = "ended " + run.EndedAt.Format(time.RFC3339)
	}
	whose := "a worker"
	if run.ByHand {
		whose = "by hand"
	}
	_, _ = fmt.Fprintf(p.Stdout, "\nlatest sweep: started %s by %s (%s), %s\n", run.StartedAt.Format(time.RFC3339), visible(run.By), whose, end)
	for _, step := range slices.Sorted(maps.Keys(run.Steps)) {
		if run.Steps[step] > 0 {
			subject, what, _ := strings.Cut(step, ".")
			_, _ = fmt.Fprintf(p.Stdout, "  %s %s: %d\n", subject, what, run.Steps[step])
		}
	}
}

// dueText is a count, with a + where there may be more.
func dueText(counts []retention.Count, subject retention.Subject, step retention.Step) string {
	for _, c := range counts {
		if c.Subject == subject && c.Step == step {
			if c.More {
				return fmt.Sprintf("%d+", c.Rows)
			}
			return fmt.Sprint(c.Rows)
		}
	}
	return "-"
}

// checkBounds refuses bounds that no sweep and no count of what is due has.
func checkBounds(maxRows int64, maxTime time.Duration) error {
	if maxRows < 1 || maxRows > 1_000_000_000 {
		return usageError{fmt.Errorf("--max-rows %d: want 1 to 1000000000", maxRows)}
	}
	if maxTime <= 0 || maxTime > 24*time.Hour {
		return usageError{fmt.Errorf("--max-time %s: want a time above 0, at most 24h", maxTime)}
	}
	return nil
}

func retentionSweepCommand(p Process) *cobra.Command {
	var dryRun, yes bool
	var maxRows int64
	var maxTime, pause time.Duration
	cmd := &cobra.Command{
		Use: "sweep", Short: "Tombstone and delete what is past its retention, now", Args: cobra.NoArgs,
		Long: `Sweep until nothing is left that the policies allow, or --max-rows or --max-time is reached. Workers do the same about every
` + retention.DefaultInterval.String() + `; by hand it is for a backlog that must not wait. It first says what it would do, and asks. Many short transactions,
with a pause after each: producers and workers do not wait for it. Interrupted, it keeps what it has done.

Exits 1 if somebody else goes on sweeping for 15s.`,
		Example: `  workers retention sweep --dry-run
  workers retention sweep
  workers retention sweep --yes --max-rows 100000 --max-time 10m`,
	}
	asJSON := jsonFlag(cmd)
	who := by(cmd, p)
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "only say what would be done")
	cmd.Flags().BoolVar(&yes, "yes", false, "do not ask")
	cmd.Flags().Int64Var(&maxRows, "max-rows", 1_000_000, "sweep no more rows than this in all, and count no more in each step")
	cmd.Flags().DurationVar(&maxTime, "max-time", time.Hour, "begin no further batch after this")
	cmd.Flags().DurationVar(&pause, "pause", 100*time.Millisecond, "pause between two batches")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := checkBounds(maxRows, maxTime); err != nil {
			return err
		}
		if pause < 0 || pause > time.Minute {
			return usageError{fmt.Errorf("--pause %s: want 0 to 1m", pause)}
		}
		return retaining(p, func(cmd *cobra.Command, store *retentionpg.Store) error {
			return sweep(cmd, p, store, sweepOptions{
				dryRun: dryRun, yes: yes, asJSON: *asJSON, by: *who, maxRows: maxRows, maxTime: maxTime, pause: pause, leadWithin: leadWithin,
			})
		})(cmd, args)
	}
	return cmd
}

type sweepOptions struct {
	dryRun, yes, asJSON bool
	by                  string
	maxRows             int64
	maxTime, pause      time.Duration
	leadWithin          time.Duration // for how long it is tried while somebody else sweeps
}

const (
	// previewTime bounds the counting before a sweep.
	previewTime = time.Minute
	// leadWithin is how long a sweep by hand waits for another one's batch to end, asking so often.
	leadWithin = 15 * time.Second
	leadPause  = 20 * time.Millisecond
)

func sweep(cmd *cobra.Command, p Process, store *retentionpg.Store, o sweepOptions) error {
	ctx := cmd.Context()
	if o.dryRun || !o.yes {
		due, err := store.Preview(ctx, o.maxRows, previewTime)
		if err != nil {
			return err
		}
		if o.dryRun {
			notDone(p)
			return printSwept(p, wouldBe, due, o.asJSON)
		}
		text := dueLines(due)
		if text == "" {
			_, _ = fmt.Fprintln(p.Stderr, "nothing is due")
			return printSwept(p, "WERE", due, o.asJSON)
		}
		_, _ = fmt.Fprint(p.Stderr, "due:\n"+text)
		if err := consent(ctx, p, o.yes, "Sweep now?"); err != nil {
			return err
		}
	}
	totals, err := sweepBatches(ctx, p, store, o)
	if err != nil && !o.asJSON && len(totals) == 0 {
		return err
	}
	return errors.Join(err, printSwept(p, "WERE", totals, o.asJSON))
}

// dueLines is a line for each step that something is due in, or may be: where counting was cut short, there may be more than
// was counted, also than none.
func dueLines(due []retention.Count) (text string) {
	for _, c := range due {
		if c.Rows > 0 || c.More {
			text += fmt.Sprintf("  %s %s: %s\n", c.Subject, c.Step, dueText(due, c.Subject, c.Step))
		}
	}
	return text
}

// sweeping is what sweeps one batch, as [retention.Store] does.
type sweeping interface {
	Sweep(ctx context.Context, b retention.Batch) ([]retention.Count, error)
}

// sweepBatches sweeps until nothing is left, a bound is reached or ctx ends: not within a batch. With an error it returns what it has come to so
// far, which stays so.
func sweepBatches(ctx context.Context, p Process, store sweeping, o sweepOptions) (totals []retention.Count, err error) {
	run, err := uuid.NewV7()
	if err != nil {
		return nil, err
	}
	until, reported := time.Now().Add(o.maxTime), time.Now()
	totals = []retention.Count{}
	swept, more := int64(0), true
	defer func() {
		if err != nil && swept > 0 {
			err = fmt.Errorf("%w; what was swept before, %s, stays so", err, app.Counted(swept, "row"))
		}
	}()
	ledAt, told := time.Now(), false
	for more {
		if ctx.Err() != nil {
			return totals, errInterrupted
		}
		counts, err := store.Sweep(context.WithoutCancel(ctx), retention.Batch{
			Run: run, By: o.by, MaxRows: int(min(o.maxRows-swept, retention.DefaultBatchRows)), MaxSeconds: 1,
		})
		if errors.Is(err, retention.ErrNotLeading) {
			if time.Since(ledAt) >= o.leadWithin {
				return totals, fmt.Errorf("%w: wait until that has ended, which `workers retention status` tells, and repeat the command", err)
			}
			if !told {
				told = true
				_, _ = fmt.Fprintf(p.Stderr, "somebody else is sweeping: waiting up to %s\n", o.leadWithin)
			}
			if err := rest(ctx, leadPause); err != nil { // a batch of a worker is soon over
				return totals, err
			}
			continue
		}
		if err != nil {
			return totals, err
		}
		ledAt = time.Now()
		more = false
		for i, c := range counts {
			if i == len(totals) {
				totals = append(totals, retention.Count{Subject: c.Subject, Step: c.Step})
			}
			totals[i].Rows += c.Rows
			totals[i].More = c.More
			swept += c.Rows
			more = more || c.More
		}
		if more && (swept >= o.maxRows || time.Now().After(until)) {
			_, _ = fmt.Fprintf(p.Stderr, "stopped at --max-rows or --max-time: more is left, or may be\n")
			break
		}
		if now := time.Now(); more && now.Sub(reported) >= time.Second {
			reported = now
			_, _ = fmt.Fprintf(p.Stderr, "%s swept\n", app.Counted(swept, "row"))
		}
		if more {
			if err := rest(ctx, o.pause); err != nil {
				return totals, err
			}
		}
	}
	return totals, nil
}

// sweepCounts is what `retention sweep --json` prints.
type sweepCounts struct {
	DryRun bool              `json:"dry_run"`
	Steps  []retention.Count `json:"steps"` // of a dry run what would be done
}

// wouldBe heads what a dry run shows.
const wouldBe = "WOULD BE"

// printSwept prints how many rows each step came to.
func printSwept(p Process, verb string, counts []retention.Count, asJSON bool) error {
	if asJSON {
		return printJSON(p, sweepCounts{DryRun: verb == wouldBe, Steps: counts})
	}
	printCounts(p, verb, counts)
	return nil
}

// printCounts prints how many rows each step came to.
func printCounts(p Process, verb string, counts []retention.Count) {
	rows := make([][]any, len(counts))
	for i, c := range counts {
		rows[i] = []any{c.Subject, c.Step, dueText(counts, c.Subject, c.Step)}
	}
	printTable(p, rows, "SUBJECT", verb, "ROWS")
}
