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
is: no row moves. Producers and workers go on, and wait half a second at most. If it was interrupted, or cannot get a
lock, run it again.

Once core.outbox is partitioned, it makes the partitions that are missing; workers do that too. With --detach it
detaches those whose events are all past their retention, to be archived or dropped. With --undo it makes one table
again.`,
		Example: `  workers outbox partition --dry-run
  workers outbox partition
  workers outbox partition --detach
  workers outbox partition --undo`,
	}
	var dryRun, detach, undo bool
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "show the partitions, or what would be done, and do nothing")
	cmd.Flags().BoolVar(&detach, "detach", false, "detach partitions whose events are all past their retention")
	cmd.Flags().BoolVar(&undo, "undo", false, "make core.outbox one table again")
	yes := yesFlag(cmd)
	jsonFlag(cmd, &p)
	return migrating(p, cmd, func(ctx context.Context, m *app.Migrator, _ events.Generation) error {
		say := func(format string, a ...any) { p.notef(format, a...) }
		switch {
		case dryRun && detach, detach && undo, undo && dryRun:
			return usagef("--dry-run, --detach and --undo do different things: choose one")
		case detach:
			names, err := m.DetachPartitions(ctx)
			if err != nil {
				return err
			}
			return p.print(map[string][]string{"detached": append([]string{}, names...)}, func() { printDetached(p, names) })
		case undo:
			if err := consent(ctx, p, *yes, "Make core.outbox one table again?"); err != nil {
				return err
			}
			return m.UndoPartition(ctx, say)
		}
		d, err := m.DescribePartitions(ctx)
		if err != nil {
			return err
		}
		if dryRun || len(d.Obstacles) > 0 {
			if err := p.print(d, func() { printPartitioning(p, d) }); err != nil || len(d.Obstacles) == 0 {
				return err
			}
			return exitError{fmt.Errorf("core.outbox cannot be partitioned: see above"), exitFailed}
		}
		if !d.Partitioned {
			printPartitioning(p, d)
			if err := consent(ctx, p, *yes, "Make core.outbox a table of monthly partitions?"); err != nil {
				return err
			}
		}
		return m.Partition(ctx, say)
	})
}

func printDetached(p Process, names []string) {
	if len(names) == 0 {
		p.printf("no partition is over: each has an event within its retention, or its time is not over\n")
	}
	for _, name := range names {
		p.printf("detached core.%s; once it is archived: drop table core.%[1]s;\n", name)
	}
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
		p.printf("in the way: %s\n", o)
	}
	p.printf("it becomes the partition of all events before %s; %s and later months each get a partition\n",
		d.Until.Format("2006-01"), d.Until.Format("2006-01"))
	p.printf("a check of all rows takes about %s, while events are published and handled; then they wait some 100 ms\n",
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
