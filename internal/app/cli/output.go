package cli

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode/utf16"

	"github.com/jedib0t/go-pretty/v6/text"
	"golang.org/x/term"

	"spectral/internal/core/check"
	"spectral/internal/core/events"
)

// results is standard output that remembers its first error: a command whose result was not written has failed.
type results struct {
	to  io.Writer
	mu  sync.Mutex
	err error
}

func (r *results) Write(p []byte) (n int, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.err == nil {
		n, r.err = r.to.Write(p)
	}
	return n, r.err
}

// printf prints a part of the result on stdout, safe for a terminal.
func (p Process) printf(format string, args ...any) {
	_, _ = io.WriteString(p.Stdout, visibleLines(fmt.Sprintf(format, args...)))
}

// notef prints a line beside the result on stderr, safe for a terminal.
func (p Process) notef(format string, args ...any) {
	_, _ = io.WriteString(p.Stderr, visibleLines(fmt.Sprintf(format, args...))+"\n")
}

// onStderr returns p with results as text on stderr: what precedes a question is not a result.
func (p Process) onStderr() Process {
	p.Stdout, p.asJSON = p.Stderr, false
	return p
}

// unquotedLines undoes escapes of strconv.Quote that are not needed, those of line ends among them.
var unquotedLines = strings.NewReplacer(`\\`, `\`, `\"`, `"`, `\n`, "\n")

func visible(s string) string { return check.Visible(s) }

// visibleLines is visible for a text of several lines.
func visibleLines(s string) string {
	quoted := strconv.QuoteToGraphic(s)
	return unquotedLines.Replace(quoted[1 : len(quoted)-1])
}

// print prints a result, as JSON if --json is given; otherwise it calls asText. It escapes everything that a terminal
// may act on. [Main] reports an error of writing.
func (p Process) print(result any, asText func()) error {
	if !p.asJSON {
		asText()
		return nil
	}
	var encoded bytes.Buffer
	encoder := json.NewEncoder(&encoded)
	encoder.SetIndent("", "  ")
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(result); err != nil {
		return err
	}
	_, _ = io.WriteString(p.Stdout, escapedJSON(encoded.String()))
	return nil
}

func escapedJSON(s string) string {
	var b strings.Builder
	for _, r := range s {
		if r == '\n' || strconv.IsGraphic(r) {
			_, _ = b.WriteRune(r)
			continue
		}
		for _, unit := range utf16.AppendRune(nil, r) {
			_, _ = fmt.Fprintf(&b, `\u%04x`, unit)
		}
	}
	return b.String()
}

// A column with texts longer than longText is cut down to leastCell before it is left out. Times are shorter.
const longText, leastCell = 24, 12

const gap = 2 // columns between two cells

// leastUseful are the titles of columns that are cut if a table is too wide, in this order.
var leastUseful = []string{"OUTSIDE", "ON REPLAY", "NEXT PROBE", "WORKERS", "WORKSPACES",
	"LOGIN", "DISPOSAL", "CONTENT CLASS", "GRACE DAYS", "NEXT SCHEDULED", "LAST SCHEDULED",
	"OLDEST DUE", "PAUSED", "WORKSPACE", "TARGET", "SOURCE", "LATEST", "OLDEST", "P50", "REPLAYS", "CHANNEL", "GENERATION",
	"NOT COUNTED", "FAILURES", "DETAILS", "EVENTS", "STATUS", "TRIES", "IN FLIGHT, STAYS", "BY", "NOTE", "ERROR", "TYPE",
	"HANDLER"}

// printTable prints a row for each of all under the titles, with numbers to the right and texts safe for a terminal. It
// prints nothing for no rows. If the rows are wider than the output, it cuts the least useful columns, and leaves out
// those that would be too narrow, but never the first.
func printTable[T any](p Process, all []T, rowOf func(T) []any, titles ...string) {
	if len(all) == 0 {
		return
	}
	rows, aligned := [][]string{titles}, make([]text.Align, len(titles))
	for _, one := range all {
		row := make([]string, len(titles))
		for i, cell := range rowOf(one) {
			switch cell.(type) {
			case int, int64, events.Generation, estimate:
				aligned[i] = text.AlignRight
			}
			row[i] = cmp.Or(visible(fmt.Sprint(cell)), "-")
		}
		rows = append(rows, row)
	}
	widths := fit(rows, aligned, width(p))
	for _, row := range rows {
		var line strings.Builder
		for i, width := range widths {
			if width > 0 {
				line.WriteString(paint(p, row[i], aligned[i].Apply(text.Snip(row[i], width, "~"), width)))
				line.WriteString(strings.Repeat(" ", gap))
			}
		}
		_, _ = fmt.Fprintln(p.Stdout, strings.TrimRight(line.String(), " "))
	}
}

// fit returns the width of each column, so that all fit into the available width; 0: the column is left out.
func fit(rows [][]string, aligned []text.Align, available int) []int {
	widths := make([]int, len(rows[0]))
	over := -available - gap
	for i := range widths {
		for _, row := range rows {
			widths[i] = max(widths[i], text.StringWidth(row[i]))
		}
		over += widths[i] + gap
	}
	for _, title := range leastUseful {
		i := slices.Index(rows[0], title)
		switch {
		case i <= 0 || over <= 0:
		case aligned[i] == text.AlignDefault && widths[i] > longText && widths[i]-over >= max(leastCell, len(title)):
			widths[i] -= over
			over = 0
		default:
			over -= widths[i] + gap
			widths[i] = 0
		}
	}
	return widths
}

// width returns the width of results: COLUMNS, or else that of the terminal, or else 80.
func width(p Process) int {
	columns, _ := strconv.Atoi(p.Getenv("COLUMNS"))
	fd, _ := terminalOf(p.Stdout)
	ofTerminal, _, _ := term.GetSize(fd)
	return cmp.Or(max(columns, 0), ofTerminal, 80)
}

var paragraph = regexp.MustCompile(`(?m)^\S.*(?:\n\S.*)*`)

// wrap breaks the lines of paragraphs at a number of columns.
func wrap(s string, columns int) string {
	line := regexp.MustCompile(fmt.Sprintf("(.{1,%d})(?: |$)", columns))
	return paragraph.ReplaceAllStringFunc(s, func(p string) string {
		return strings.TrimRight(line.ReplaceAllString(strings.Join(strings.Fields(p), " "), "$1\n"), "\n")
	})
}

// next prints beside a list what operators usually do next.
func (p Process) next(format string, args ...any) { p.notef("next: "+format, args...) }

// stateColours are the colours of states, by how much they need attention.
var stateColours = map[string]text.Color{
	"failed": text.FgRed, "parked": text.FgRed, "retired": text.FgRed, "critical": text.FgRed,
	"in_flight": text.FgYellow, "failing": text.FgYellow, "draining": text.FgYellow, "warning": text.FgYellow,
	"worse": text.FgRed, "unknown": text.FgYellow, "fine": text.FgGreen, "note": text.FgGreen, "delivered": text.FgGreen,
	"handled": text.FgGreen, "live": text.FgGreen,
}

// paint gives a text the colour of a state, if results may have colours.
func paint(p Process, state, s string) string {
	if colour, ok := stateColours[state]; ok && coloured(p) {
		return colour.Sprint(s)
	}
	return s
}

type estimate int64

func (e estimate) String() string { return fmt.Sprintf("~%d", int64(e)) }

// counted returns the cell of a number that may be estimated.
func counted(n int64, estimated bool) any {
	if estimated {
		return estimate(n)
	}
	return n
}

// coloured reports whether results may have colours (no-color.org).
func coloured(p Process) bool {
	_, ok := terminalOf(p.Stdout)
	return ok && p.Getenv("NO_COLOR") == "" && p.Getenv("TERM") != "dumb"
}

// terminalOf returns the terminal that w writes to, if it is one.
func terminalOf(w io.Writer) (fd int, ok bool) {
	if file := terminalFile(w); file != nil {
		return int(file.Fd()), true
	}
	return -1, false
}

// terminalFile returns the file of the terminal that w writes to; nil: it is none.
func terminalFile(w io.Writer) *os.File {
	if r, wrapped := w.(*results); wrapped {
		w = r.to
	}
	if file, ok := w.(*os.File); ok && term.IsTerminal(int(file.Fd())) {
		return file
	}
	return nil
}

// maxLine is how many characters of an error a table shows.
const maxLine = 120

// firstLine returns the beginning of a text that may have many lines; empty for nil.
func firstLine(s *string) string {
	if s == nil {
		return ""
	}
	line, _, more := strings.Cut(strings.TrimSpace(*s), "\n")
	line = visible(strings.TrimRight(line, "\r"))
	if runes := []rune(line); len(runes) > maxLine {
		line, more = string(runes[:maxLine]), true
	}
	if more {
		line += " ..."
	}
	return line
}

// textOf returns what v points to as text; empty for nil.
func textOf[T any](v *T) string {
	if v == nil {
		return ""
	}
	return fmt.Sprint(*v)
}

// timestamp returns a time in UTC as text; empty for nil.
func timestamp(t *time.Time) string {
	if t == nil {
		return ""
	}
	return t.UTC().Format(time.RFC3339)
}

// distance returns how far a time is from now as text; empty for nil.
func distance(t *time.Time, now time.Time) string {
	switch {
	case t == nil:
		return ""
	case t.After(now):
		return "in " + age(t.Sub(now))
	default:
		return age(now.Sub(*t)) + " ago"
	}
}

// age returns a time span as text: in its largest unit, and from an hour on with the next smaller one.
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
