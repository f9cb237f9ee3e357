package cli

import (
	"context"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"spectral/internal/app"
	"spectral/internal/core/events/infrastructure/postgres/operator"
)

func eventsStatsCommand(p Process) *cobra.Command {
	count := operator.Count{Limit: operator.DefaultPageSize}
	cmd := &cobra.Command{
		Use: "stats", Args: cobra.NoArgs,
		Short: "Count events by status, failed ones by type and error",
		Long: `Count the events that match all flags. Without --by it counts all by status, then the failed ones by type,
source, target and error class. OLDEST and LATEST are the times at which failed events failed, pending ones are due,
events in flight were leased, and others were published.

From 100,000 on, delivered events by status are estimated (~). By other properties they are counted only with --status
delivered or --exact.`,
		Example: `  workers events stats
  workers events stats --by status,generation
  workers events stats --status failed --by source,handler,error --newer-than 1d
  workers events stats --status pending --by channel --json`,
	}
	flags := cmd.Flags()
	filter := filterFlags(cmd)
	asJSON := jsonFlag(cmd)
	dimensions := operator.Dimensions()
	wordsFlag(cmd, &count.By, "by", "properties to count by: "+operator.Joined(dimensions), dimensions)
	oneFlag(flags, &count.Limit, "limit", "groups to show, from 1 to "+strconv.Itoa(operator.MaxPageSize),
		between(strconv.Atoi, 1, operator.MaxPageSize))
	flags.BoolVar(&count.Exactly, "exact", false, "also count delivered events one by one")
	timeoutFlag(cmd, &count.Timeout)
	cmd.RunE = operating(p, func(ctx context.Context, _ []string, o *app.Operator) error {
		summary := len(count.By) == 0
		if summary {
			count.By = []operator.Dimension{operator.ByStatus}
		}
		counted, err := o.Events.Count(ctx, *filter, count)
		if err != nil {
			return err
		}
		all := []operator.Counts{counted}
		if summary && (len(filter.Statuses) == 0 || slices.Contains(filter.Statuses, operator.Failed)) {
			filter.Statuses = []operator.Status{operator.Failed}
			count.By = []operator.Dimension{operator.ByType, operator.BySource, operator.ByTarget, operator.ByError}
			if counted, err = o.Events.Count(ctx, *filter, count); err != nil {
				return err
			}
			all = append(all, counted)
		}
		paused, err := o.Events.Pauses(ctx)
		if err != nil {
			return err
		}
		return printed(p, *asJSON, map[string]any{"counts": all, "paused": paused}, func() {
			printCounted(p, all[0])
			if len(all) > 1 && len(all[1].Groups) > 0 {
				p.printf("\nfailed:\n")
				printCounted(p, all[1])
			}
			notePauses(p, paused)
			if len(all) > 1 && len(all[1].Groups) > 0 {
				p.next("workers events list")
			} else {
				p.next("workers doctor")
			}
		})
	})
	return cmd
}

func printCounted(p Process, c operator.Counts) {
	var titles, cut []string
	if slices.Contains(c.By, operator.ByType) { // which says where an event comes from
		cut = []string{"TARGET", "SOURCE"}
	}
	cut = append(cut, "LATEST", "OLDEST")
	for _, d := range c.By {
		titles = append(titles, strings.ToUpper(string(d)))
	}
	cut = append(cut, titles[1:]...)
	printTable(p, c.Groups, func(g operator.Group) (row []any) {
		for _, d := range c.By {
			value := "-"
			if v := g.Values[d]; v != nil {
				value = firstLine(v)
			}
			row = append(row, value)
		}
		n := any(g.Count)
		if g.Estimated {
			n = estimate(g.Count)
		}
		return append(row, n, distance(g.Oldest, c.AsOf), distance(g.Latest, c.AsOf))
	}, cut, append(titles, "COUNT", "OLDEST", "LATEST")...)
	if len(c.Groups) == 0 {
		p.notef("no event matches")
	}
	if c.More {
		p.notef("there are more groups: --limit takes up to %d", operator.MaxPageSize)
	}
	if c.DeliveredLeftOut {
		p.notef("delivered events are not counted here: --status delivered counts only them, --exact all")
	}
}
