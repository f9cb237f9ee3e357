package cli

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"spectral/internal/core/events/infrastructure/postgres/operator"
)

// timelineFlags are the flags of `events stats` that count with --since.
var timelineFlags = []string{"since", "type", "generation", "timeout", "json", "log-level", "help"}

// checkTimelineFlags refuses a time that is too long ago, and flags that --since does not heed.
func checkTimelineFlags(cmd *cobra.Command, since time.Duration) error {
	if since > operator.MaxTimeline {
		return usagef("--since: %s is too long ago: statistics are kept for 8d", age(since))
	}
	var others []string
	cmd.Flags().Visit(func(f *pflag.Flag) {
		if !slices.Contains(timelineFlags, f.Name) {
			others = append(others, "--"+f.Name)
		}
	})
	if len(others) > 0 {
		return usagef("with --since only --type and --generation choose what is shown: leave out %s", operator.Joined(others))
	}
	return nil
}

// levels are the heights of a bar. Something is never as low as nothing.
var levels = []rune(" ▁▂▃▄▅▆▇█")

// bars draws numbers, the greatest as high as a line.
func bars(numbers []int64) string {
	most := max(slices.Max(numbers), 1)
	line := make([]rune, len(numbers))
	for i, n := range numbers {
		height := (n*int64(len(levels)-1) + most - 1) / most
		line[i] = levels[height]
	}
	return string(line)
}

func printTimeline(p Process, t operator.Timeline) {
	if len(t.Lines) == 0 {
		p.printf("no worker has counted anything of this since %s\n", t.From.Format(time.RFC3339))
		return
	}
	slot := time.Duration(t.SlotSeconds) * time.Second
	p.printf("from %s to %s; bars: events handled in each %s, highest at the most; ▲ deploy\n",
		t.From.Format(time.RFC3339), t.To.Format(time.RFC3339), age(slot))
	for _, l := range t.Lines {
		if l.HandlerName == "" {
			p.printf("\n%s\n  published %d, delivered %d, retried %d, failed %d; until claimed %s\n  %s\n", l.EventType,
				l.Published, l.Handled, l.Retried, l.Failed, took(l.UntilClaimed), bars(l.Slots))
		} else {
			p.printf("  %s\n    handled %d, failed calls %d; took %s\n  %s\n", l.HandlerName, l.Handled, l.FailedCalls,
				took(l.Took), bars(l.Slots))
		}
	}
	if len(t.Deploys) == 0 {
		return
	}
	marks := []rune(strings.Repeat(" ", len(t.Lines[0].Slots)))
	for _, d := range t.Deploys {
		marks[min(int(d.RegisteredAt.Sub(t.From)/slot), len(marks)-1)] = '▲'
	}
	p.printf("\n  %s\n", strings.TrimRight(string(marks), " "))
	for _, d := range t.Deploys {
		p.printf("  ▲ %s generation %d\n", d.RegisteredAt.Format(time.RFC3339), d.Generation)
	}
}

// took says percentiles of durations in words.
func took(of operator.Percentiles) string {
	return fmt.Sprintf("p50 %s, p99 %s", percentile(of, of.P50), percentile(of, of.P99))
}

// percentile is one of the percentiles as text.
func percentile(of operator.Percentiles, seconds *float64) string {
	switch {
	case of.Count == 0:
		return "-"
	case seconds == nil:
		return "above " + age(operator.LongestMeasured())
	}
	return time.Duration(*seconds * float64(time.Second)).String()
}
