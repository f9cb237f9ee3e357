package cli

import (
	"fmt"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/jedib0t/go-pretty/v6/text"
)

// column of a table that people read.
type column struct {
	title string
	right bool // numbers
	cut   bool // a text that may be cut
	// colour of a value; nil: none
	colour func(value any) text.Colors
}

// leastColumn is how far a column is cut: beginnings tell types and handlers apart.
const leastColumn = 16

// printTable prints rows under titles, in plain text columns two blanks apart; with colours only on a terminal, where
// texts that are longer than its width has room for are cut, the longest first. Numbers, states and times are not: rather does a line
// go on in the next.
func printTable(p Process, columns []column, rows [][]any) {
	writer := table.NewWriter()
	writer.SetOutputMirror(p.Stdout)
	style := table.StyleDefault
	style.Options = table.OptionsNoBordersAndSeparators
	style.Box.PaddingLeft, style.Box.PaddingRight = "", "  "
	style.Format.Header = text.FormatDefault
	writer.SetStyle(style)
	writer.SuppressTrailingSpaces()
	room := roomFor(columns, rows, terminalWidth(p.Stdout))
	colours := coloured(p)
	titles := make(table.Row, len(columns))
	configs := make([]table.ColumnConfig, len(columns))
	for i, c := range columns {
		titles[i] = c.title
		configs[i] = table.ColumnConfig{Number: i + 1}
		if room[i] > 0 {
			configs[i].WidthMax = room[i]
			configs[i].WidthMaxEnforcer = func(s string, width int) string { return text.Snip(s, width, "~") }
		}
		if c.right {
			configs[i].Align, configs[i].AlignHeader = text.AlignRight, text.AlignRight
		}
	}
	writer.AppendHeader(titles)
	writer.SetColumnConfigs(configs)
	for _, row := range rows {
		cells := make(table.Row, len(row))
		for i, value := range row {
			cells[i] = value
			if colours && columns[i].colour != nil {
				cells[i] = columns[i].colour(value).Sprint(value)
			}
		}
		writer.AppendRow(cells)
	}
	writer.Render()
}

// roomFor says how wide each column may be that is cut for a terminal of a width; 0: as wide as it is.
func roomFor(columns []column, rows [][]any, width int) []int {
	room, widths := make([]int, len(columns)), make([]int, len(columns))
	over := -width
	for i, c := range columns {
		widths[i] = text.StringWidthWithoutEscSequences(c.title)
		for _, row := range rows {
			widths[i] = max(widths[i], text.StringWidthWithoutEscSequences(fmt.Sprint(row[i])))
		}
		over += widths[i] + 2
	}
	if width <= 0 {
		return room
	}
	for over > 2 { // the last column has no blanks behind it
		longest := -1
		for i, c := range columns {
			if c.cut && widths[i] > leastColumn && (longest < 0 || widths[i] > widths[longest]) {
				longest = i
			}
		}
		if longest < 0 {
			break
		}
		widths[longest]--
		room[longest] = widths[longest]
		over--
	}
	return room
}

// statusColour marks what needs an eye.
func statusColour(value any) text.Colors {
	switch value {
	case "failed", "retired":
		return text.Colors{text.FgRed}
	case "in_flight", "draining", "paused":
		return text.Colors{text.FgYellow}
	case "delivered", "live":
		return text.Colors{text.FgGreen}
	default:
		return nil
	}
}
