package top

import (
	"cmp"
	"slices"
	"strings"

	"github.com/charmbracelet/x/ansi"
)

// column is a column of a table. Those of the highest rank are left out first, those of rank 0 never.
type column struct {
	title string
	rank  int
}

// number is a cell that is to the right and sorts by its value. Other cells are strings.
type number struct {
	text  string
	value float64
}

// drawn is a cell that is shown whole or not at all.
type drawn string

// row is a line of a table.
type row struct {
	key     string // names it from frame to frame
	cells   []any
	concern bool   // it needs attention
	id      string // for the clipboard
	opens   *page  // by enter
	subject any    // what acts are about
}

type table struct {
	columns []column
	rows    []row
	note    string // instead of rows, or beside them
}

const (
	gap = 2 // columns between two cells
	// A text is cut down to so much before a column is left out, the first column, which is a name, to longName.
	longText, longName = 24, 32
)

func text(cell any) string {
	switch c := cell.(type) {
	case number:
		return c.text
	case drawn:
		return string(c)
	}
	return cell.(string)
}

// filtered leaves rows that have a text in one of their cells.
func (t *table) filtered(by string) {
	by = strings.ToLower(by)
	t.rows = slices.DeleteFunc(t.rows, func(r row) bool {
		return !strings.Contains(strings.ToLower(r.key), by) && !slices.ContainsFunc(r.cells, func(c any) bool {
			s, ok := c.(string)
			return ok && strings.Contains(strings.ToLower(s), by)
		})
	})
}

// sorted sorts by a column: numbers the largest first, texts by the alphabet, or the other way round.
func (t *table) sorted(by int, reversed bool) {
	slices.SortStableFunc(t.rows, func(a, b row) int {
		order := 0
		x, ok := a.cells[by].(number)
		if y, also := b.cells[by].(number); ok && also {
			order = cmp.Compare(y.value, x.value)
		} else {
			order = strings.Compare(text(a.cells[by]), text(b.cells[by]))
		}
		if reversed {
			return -order
		}
		return order
	})
}

// widths returns the width of each column in a line of so many columns; 0: the column is left out. Long texts are cut
// before a column is left out, and get what is left.
func (t *table) widths(available int) []int {
	natural, widths := make([]int, len(t.columns)), make([]int, len(t.columns))
	total := -gap
	for i, c := range t.columns {
		natural[i] = ansi.StringWidth(c.title)
		flexible := true
		for _, r := range t.rows {
			natural[i] = max(natural[i], ansi.StringWidth(text(r.cells[i])))
			_, isText := r.cells[i].(string)
			flexible = flexible && isText
		}
		widths[i] = natural[i]
		if flexible {
			widths[i] = min(natural[i], longText)
		}
		if flexible && i == 0 {
			widths[i] = min(natural[i], longName)
		}
		total += widths[i] + gap
	}
	for total > available {
		last := 0
		for i, c := range t.columns {
			if widths[i] > 0 && c.rank > t.columns[last].rank {
				last = i
			}
		}
		if t.columns[last].rank == 0 || widths[last] == 0 {
			break
		}
		total -= widths[last] + gap
		widths[last] = 0
		t.columns[last].rank = 0
	}
	for i := range widths {
		if widths[i] > 0 {
			more := max(min(natural[i]-widths[i], available-total), min(0, max(available-total, 4-widths[i])))
			widths[i], total = widths[i]+more, total+more
		}
	}
	return widths
}

// line returns cells as a line.
func (o Options) line(cells []any, widths []int) string {
	var line strings.Builder
	for i, width := range widths {
		if width == 0 {
			continue
		}
		s := o.snip(text(cells[i]), width)
		pad := strings.Repeat(" ", max(width-ansi.StringWidth(s), 0))
		if _, ok := cells[i].(number); ok {
			s = pad + s
		} else {
			s += pad
		}
		line.WriteString(s + strings.Repeat(" ", gap))
	}
	return strings.TrimRight(line.String(), " ")
}
