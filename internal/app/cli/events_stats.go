package cli

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"spectral/internal/core/events/infrastructure/postgres/admin"
)

func eventsStatsCommand(p Process) *cobra.Command {
	count := admin.Count{}
	cmd := &cobra.Command{
		Use: "stats", Short: "Count events by status, and failed ones by type and error, or by anything else", Args: noArguments,
		Long: `Count the events that all the given flags fit. Without --by: all by status, then the failed ones by type, source,
target and error class. With --by: in one table, the largest group first.

OLDEST and LATEST are when failed events failed, pending ones are due, those in flight were leased, and others were
published.

Delivered events are the many. From 100,000 on their number is an estimate (~) by the statistics of the table; by
anything else than their status they are counted only with --status delivered, or with --exact.`,
		Example: `  workers events stats
  workers events stats --by status,generation
  workers events stats --status failed --by source,handler,error --newer-than 1d
  workers events stats --status pending --by channel --json`,
	}
	filter := filterFlags(cmd, p)
	asJSON := jsonFlag(cmd)
	by := textsFlag(cmd.Flags(), "by", "what to count by: "+admin.Joined(admin.Dimensions()))
	completeFlag(cmd, "by", func() []string { return admin.Texts(admin.Dimensions()) })
	cmd.Flags().IntVar(&count.Limit, "limit", admin.DefaultPageSize, fmt.Sprintf("groups to show, from 1 to %d", admin.MaxPageSize))
	cmd.Flags().BoolVar(&count.Exactly, "exact", false, "count delivered events one by one, too")
	timeout := timeoutFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		chosen, err := filter()
		if err != nil {
			return err
		}
		if count.Timeout, err = timeout(); err != nil {
			return err
		}
		for _, d := range *by {
			count.By = append(count.By, admin.Dimension(d))
		}
		counts := []counting{{chosen, count}}
		if len(*by) == 0 {
			counts = summary(chosen, count)
		}
		if count.Limit < 1 || count.Limit > admin.MaxPageSize {
			return usageError{fmt.Errorf("--limit %d: want a number from 1 to %d", count.Limit, admin.MaxPageSize)}
		}
		for _, c := range counts {
			if err := c.count.Validate(); err != nil {
				return usageError{fmt.Errorf("--by: %w", err)}
			}
		}
		return operating(p, func(cmd *cobra.Command, _ []string, a *admin.Admin) error {
			var all []admin.Counted
			found := false
			for _, c := range counts {
				counted, err := a.Count(cmd.Context(), c.filter, c.count)
				if err != nil {
					return err
				}
				all, found = append(all, counted), found || len(counted.Groups) > 0
			}
			tellUnknown(cmd.Context(), p, a, chosen, found)
			paused, err := a.Pauses(cmd.Context())
			if err != nil {
				return err
			}
			if *asJSON {
				return printJSON(p, struct {
					Counts []admin.Counted `json:"counts"`
					Paused []admin.Pause   `json:"paused"`
				}{all, paused})
			}
			for i, counted := range all {
				if i > 0 { // a further table is there for what it has
					if len(counted.Groups) == 0 {
						continue
					}
					_, _ = fmt.Fprintln(p.Stdout, "\nfailed:")
				}
				printCounted(p, counted)
			}
			printPauseLines(p, paused)
			return nil
		})(cmd, args)
	}
	return cmd
}

// counting is one table.
type counting struct {
	filter admin.Filter
	count  admin.Count
}

// summary is what is counted of a filter when nothing is said: its statuses, and what fails, if it asks for that.
func summary(filter admin.Filter, count admin.Count) []counting {
	count.By = []admin.Dimension{admin.ByStatus}
	counts := []counting{{filter, count}}
	if len(filter.Statuses) == 0 || slices.Contains(filter.Statuses, admin.Failed) {
		filter.Statuses = []admin.Status{admin.Failed}
		count.By = []admin.Dimension{admin.ByType, admin.BySource, admin.ByTarget, admin.ByError}
		counts = append(counts, counting{filter, count})
	}
	return counts
}

func printCounted(p Process, c admin.Counted) {
	if len(c.Groups) > 0 {
		columns := make([]column, 0, len(c.By)+3)
		for _, d := range c.By {
			columns = append(columns, column{title: strings.ToUpper(string(d)), cut: true, colour: statusColour})
		}
		columns = append(columns, column{title: "COUNT", right: true}, column{title: "OLDEST"}, column{title: "LATEST"})
		rows := make([][]any, len(c.Groups))
		for i, g := range c.Groups {
			for _, d := range c.By {
				value := "-"
				if v := g.Values[d]; v != nil {
					value = firstLine(v)
				}
				rows[i] = append(rows[i], value)
			}
			n := fmt.Sprint(g.Count)
			if g.Estimated {
				n = "~" + n
			}
			rows[i] = append(rows[i], n, distance(g.Oldest, c.AsOf), distance(g.Latest, c.AsOf))
		}
		printTable(p, columns, rows)
	} else {
		_, _ = fmt.Fprintln(p.Stderr, "no event fits")
	}
	if c.More {
		_, _ = fmt.Fprintf(p.Stderr, "there are more groups: --limit shows up to %d\n", admin.MaxPageSize)
	}
	if c.DeliveredLeftOut {
		_, _ = fmt.Fprintln(p.Stderr, "delivered events are not counted here: --status delivered counts them, --exact all")
	}
}

// distance is how far a time is from now.
func distance(t *time.Time, now time.Time) string {
	switch {
	case t == nil:
		return "-"
	case t.After(now):
		return "in " + age(t.Sub(now))
	default:
		return age(now.Sub(*t)) + " ago"
	}
}
