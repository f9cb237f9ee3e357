package top

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/charmbracelet/x/ansi"

	"spectral/internal/core/check"
	"spectral/internal/core/events/infrastructure/postgres/operator"
)

// style is a way to show a text. Whatever it says stands in the text too.
type style ansi.Style

var (
	bold    = style{"1"}
	dim     = style{"2"}
	reverse = style{"7"}
	alarm   = style{"1", "31"}
	warning = style{"33"}
)

// paint gives a text a style, if the terminal shows any.
func (o Options) paint(s string, as style) string {
	if o.Plain || s == "" {
		return s
	}
	return ansi.Style(as).Styled(s)
}

// safe returns a text as one that no terminal acts on.
func (o Options) safe(s string) string {
	s = check.Visible(s)
	if o.ASCII {
		s = strings.Map(func(r rune) rune {
			if r > '~' {
				return '?'
			}
			return r
		}, s)
	}
	return s
}

// firstLine returns the first line of a text of others.
func firstLine(s string) string {
	line, _, more := strings.Cut(strings.TrimSpace(s), "\n")
	if line = strings.TrimRight(line, "\r"); more {
		line += " ..."
	}
	return line
}

// snip cuts a text to a width.
func (o Options) snip(s string, width int) string {
	more := "…"
	if o.ASCII {
		more = "~"
	}
	return ansi.Truncate(s, max(width, 0), more)
}

// joined joins the first parts that fit into a width.
func joined(parts []string, width int) string {
	line := ""
	for _, part := range parts {
		if part == "" {
			continue
		}
		if ansi.StringWidth(line)+gap+ansi.StringWidth(part) > width && line != "" {
			break
		}
		line += strings.Repeat(" ", min(gap, len(line)+1)) + part
	}
	return line
}

// middle shortens an id in the middle.
func (o Options) middle(id string) string {
	if len(id) <= 16 {
		return id
	}
	more := "…"
	if o.ASCII {
		more = "~"
	}
	return id[:8] + more + id[len(id)-6:]
}

// levels are the heights of a bar. Something is never as low as nothing.
var levels, levelsASCII = []rune(" ▁▂▃▄▅▆▇█"), []rune(" .:-=+*#@")

// bars draws numbers, the greatest as high as a line.
func (o Options) bars(numbers []int64) string {
	if len(numbers) == 0 {
		return ""
	}
	heights := levels
	if o.ASCII {
		heights = levelsASCII
	}
	most := max(slices.Max(numbers), 1)
	line := make([]rune, len(numbers))
	for i, n := range numbers {
		line[i] = heights[(max(n, 0)*int64(len(heights)-1)+most-1)/most]
	}
	return string(line)
}

// thousands returns a number with a comma before each three digits.
func thousands(n int64) string {
	s := strconv.FormatInt(n, 10)
	for i := len(s) - 3; i > 0 && s[i-1] != '-'; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

// counted returns a number that is exact up to [operator.MaxWaiting].
func counted(n int) string {
	if n > operator.MaxWaiting {
		return thousands(operator.MaxWaiting) + "+"
	}
	return thousands(int64(n))
}

func decimals(f float64) string {
	if f != 0 && f < 9.95 {
		return strconv.FormatFloat(f, 'f', 1, 64)
	}
	return thousands(int64(math.Round(f)))
}

// millis returns one of the percentiles in milliseconds.
func millis(of operator.Percentiles, seconds *float64) string {
	switch {
	case of.Count == 0:
		return "-"
	case seconds == nil:
		return ">" + age(operator.LongestMeasured())
	}
	return decimals(*seconds * 1000)
}

// age returns a time span in its largest unit, and from an hour on with the next smaller one.
func age(d time.Duration) string {
	switch d = max(d, 0); {
	case d < time.Minute:
		return fmt.Sprintf("%ds", int(d.Seconds()))
	case d < time.Hour:
		return fmt.Sprintf("%dm", int(d.Minutes()))
	case d < 24*time.Hour:
		return fmt.Sprintf("%dh%02dm", int(d.Hours()), int(d.Minutes())%60)
	default:
		return fmt.Sprintf("%dd%02dh", int(d.Hours())/24, int(d.Hours())%24)
	}
}

// outlook says when a backlog is empty, if rates stay as they are.
func outlook(backlog int, in, handled float64) string {
	switch {
	case backlog == 0:
		return ""
	case handled > in:
		return "empties in " + age(time.Duration(float64(backlog)/(handled-in)*float64(time.Second)))
	case in > handled:
		return "grows"
	}
	return "stands still"
}

func value[T any](v *T) (zero T) {
	if v == nil {
		return zero
	}
	return *v
}
