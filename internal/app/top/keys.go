package top

import (
	"slices"

	tea "charm.land/bubbletea/v2"
)

// press does what a key says.
func (m *Model) press(key tea.KeyPressMsg) tea.Cmd {
	name := key.String()
	switch {
	case name == "ctrl+c":
		return tea.Quit
	case name == "ctrl+z":
		return tea.Suspend
	case m.plan != nil:
		return m.confirm(name, key.Text)
	case m.filtering:
		m.edit(name, key.Text)
		return nil
	case m.help:
		m.help = false
		return nil
	}
	m.note = ""
	p := m.page()
	switch name {
	case "q":
		return tea.Quit
	case "?":
		m.help = true
	case "1", "2", "3", "4", "5", "6", "7", "8":
		return m.show(page{kind: kind(name[0] - '0'), sort: -1})
	case "up", "k":
		m.move(-1)
	case "down", "j":
		m.move(1)
	case "pgup":
		m.move(-m.rows)
	case "pgdown":
		m.move(m.rows)
	case "home", "g":
		m.move(-1 << 30)
	case "end", "G":
		m.move(1 << 30)
	case "enter":
		return m.enter()
	case "esc":
		switch {
		case m.filter != "":
			m.filter = ""
		case len(m.pages) > 1:
			return m.show(m.pages[:len(m.pages)-1]...)
		}
	case "/":
		m.filtering = p.kind != oneEvent
	case "s":
		if columns := len(m.table().columns); columns > 0 {
			p.sort, p.reversed = (p.sort+2)%(columns+1)-1, false
			m.noteSort()
		}
	case "S":
		p.reversed = !p.reversed
		m.noteSort()
	case "space":
		m.frozen, m.due = !m.frozen, m.now
		return m.next()
	case "+", "=":
		m.interval(1)
	case "-":
		m.interval(-1)
	case "y":
		return m.copy()
	case "r", "R", "d", "D", "p":
		return m.act(name)
	}
	return nil
}

// noteSort says how rows are sorted: the column may be left out of a narrow frame.
func (m *Model) noteSort() {
	p, by := m.page(), "as they are read"
	if t := m.table(); p.sort >= 0 && p.sort < len(t.columns) {
		by = "by " + t.columns[p.sort].title
	}
	if m.note = "sorted " + by; p.reversed {
		m.note += ", reversed"
	}
}

// edit changes the filter.
func (m *Model) edit(name, typed string) {
	switch runes := []rune(m.filter); {
	case name == "enter":
		m.filtering = false
	case name == "esc":
		m.filtering, m.filter = false, ""
	case name == "backspace" && len(runes) > 0:
		m.filter = string(runes[:len(runes)-1])
	default:
		m.filter += typed
	}
}

// interval makes the time between two statements the next longer or shorter one.
func (m *Model) interval(by int) {
	at, _ := slices.BinarySearch(intervals, m.Every)
	if by > 0 && at < len(intervals) && intervals[at] == m.Every {
		at++
	} else if by < 0 {
		at--
	}
	m.Every = intervals[min(max(at, 0), len(intervals)-1)]
	m.due = m.now
}

// current returns the row that is selected, if there is one.
func (m *Model) current() (row, bool) {
	t := m.table()
	if len(t.rows) == 0 {
		return row{}, false
	}
	return t.rows[m.place(t)], true
}

// place returns where the selected row is: another place if it has moved, the same one if it is gone.
func (m *Model) place(t table) int {
	p := m.page()
	if at := slices.IndexFunc(t.rows, func(r row) bool { return r.key == p.selected }); at >= 0 {
		return at
	}
	return min(max(p.index, 0), max(len(t.rows)-1, 0))
}

// move selects another row, or scrolls lines.
func (m *Model) move(by int) {
	p := m.page()
	if p.kind == oneEvent {
		p.index = max(min(p.index+by, len(m.eventLines())-m.rows), 0)
		return
	}
	t := m.table()
	if p.index = min(max(m.place(t)+by, 0), max(len(t.rows)-1, 0)); len(t.rows) > 0 {
		p.selected = t.rows[p.index].key
	}
}

// enter opens the selected row, or unfolds what is folded.
func (m *Model) enter() tea.Cmd {
	if p := m.page(); p.kind == oneEvent {
		p.unfolded = !p.unfolded
		return nil
	}
	r, ok := m.current()
	if !ok || r.opens == nil {
		return nil
	}
	m.page().selected = r.key
	below := *r.opens
	below.sort = -1
	return m.show(append(slices.Clone(m.pages), below)...)
}

// copy puts the id of the selected row on the clipboard of the terminal.
func (m *Model) copy() tea.Cmd {
	id := ""
	if p := m.page(); p.kind == oneEvent {
		id = p.id.String()
	} else if r, ok := m.current(); ok {
		id = r.id
	}
	if id == "" {
		m.note = "this row has no id"
		return nil
	}
	m.note = "copied " + m.safe(id)
	return tea.SetClipboard(id)
}
