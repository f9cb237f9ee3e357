package cli

import (
	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/jedib0t/go-pretty/v6/text"
)

// column of a table that people read.
type column struct {
	title string
	right bool // numbers
	// colour of a value; nil: none
	colour func(value any) text.Colors
}

// printTable prints rows under titles, in plain text columns two blanks apart; with colours only on a terminal, where
// lines are also cut to its width.
func printTable(p Process, columns []column, rows [][]any) {
	writer := table.NewWriter()
	writer.SetOutputMirror(p.Stdout)
	style := table.StyleDefault
	style.Options = table.OptionsNoBordersAndSeparators
	style.Box.PaddingLeft, style.Box.PaddingRight = "", "  "
	style.Format.Header = text.FormatDefault
	writer.SetStyle(style)
	writer.SuppressTrailingSpaces()
	if width := terminalWidth(p.Stdout); width > 0 {
		writer.Style().Size.WidthMax = width
	}
	colours := coloured(p)
	titles := make(table.Row, len(columns))
	configs := make([]table.ColumnConfig, len(columns))
	for i, c := range columns {
		titles[i] = c.title
		configs[i] = table.ColumnConfig{Number: i + 1}
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
