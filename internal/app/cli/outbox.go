package cli

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"spectral/internal/app"
	"spectral/internal/core/events"
)

func outboxCommand(p Process) *cobra.Command {
	return group(&cobra.Command{
		Use: "outbox", Short: "Divide the outbox table into partitions",
		Long: `Make core.outbox a table of monthly partitions, or take that back. DATABASE_URL is of the login that
migrates.`,
	}, outboxPartitionCommand(p))
}

func outboxPartitionCommand(p Process) *cobra.Command {
	cmd := &cobra.Command{
		Use: "partition", Short: "Make core.outbox a table of monthly partitions",
		Long: `Make core.outbox a table of monthly partitions by occurred_at. What it holds becomes the first partition as it
is: no row moves. Producers and workers go on. It asks for a lock for up to ten minutes, each time for half a second, in
which they wait. If it was interrupted, run it again.

Once core.outbox is partitioned, it makes the partitions that are missing; workers do that too. With --detach it
detaches and drops the months that are over and whose events retention has deleted. With --undo it makes one table
again; until that ends, delivered and discarded events of all but the largest partition are not found.`,
		Example: `  workers outbox partition --dry-run
  workers outbox partition
  workers outbox partition --detach
  workers outbox partition --undo`,
	}
	var dryRun, detach, undo bool
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "show the partitions, or what would be done, and do nothing")
	cmd.Flags().BoolVar(&detach, "detach", false, "detach and drop months that are over and empty")
	cmd.Flags().BoolVar(&undo, "undo", false, "make core.outbox one table again")
	cmd.MarkFlagsMutuallyExclusive("dry-run", "detach", "undo")
	yes := yesFlag(cmd)
	jsonFlag(cmd, &p)
	return migrating(p, cmd, func(ctx context.Context, m *app.Migrator, _ events.Generation) error {
		var err error
		switch {
		case dryRun:
		case detach:
			if err = consent(ctx, p, *yes, "Drop the months that are over and empty?"); err == nil {
				err = m.DropPartitions(ctx, func(name string) { p.notef("dropped core.%s", name) })
			}
		case undo:
			if err = consent(ctx, p, *yes, "Make core.outbox one table again?"); err == nil {
				err = m.UndoPartition(ctx, p.notef)
			}
		default:
			err = m.Partition(ctx, func(d app.Partitioning) error {
				printPartitioning(p.onStderr(), d)
				return consent(ctx, p, *yes, "Make core.outbox a table of monthly partitions?")
			}, p.notef)
		}
		if err != nil {
			return err
		}
		d, err := m.DescribePartitions(ctx)
		if err != nil {
			return err
		}
		return p.print(d, func() { printPartitioning(p, d) })
	})
}

func printPartitioning(p Process, d app.Partitioning) {
	if d.Partitioned {
		printTable(p, d.Partitions, func(of app.Partition) []any {
			return []any{"core." + of.Name, of.Bound, counted(int64(of.Rows), true), size(of.Bytes)}
		}, "PARTITION", "EVENTS", "ROWS", "SIZE")
		return
	}
	p.printf("core.outbox is one table, with %v rows and %s\n", counted(int64(d.Rows), true), size(d.Bytes))
	for _, o := range d.Obstacles {
		p.printf("not to be partitioned: %s\n", o)
	}
	month := d.FirstMonth.Format("2006-01")
	p.printf("it would become the partition of all events before %s; each month from then on gets another\n", month)
	p.printf("a check of all rows would take about %s, beside producers and workers, which then wait some 100 ms\n",
		max(time.Duration(d.ScanSeconds*float64(time.Second)).Round(time.Second), time.Second))
}

// size returns bytes as text.
func size(bytes int64) string {
	value, unit := float64(bytes), 0
	units := []string{"bytes", "kB", "MB", "GB", "TB"}
	for ; value >= 1024 && unit < len(units)-1; unit++ {
		value /= 1024
	}
	return fmt.Sprintf("%.4g %s", value, units[unit])
}
