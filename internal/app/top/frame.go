package top

import (
	"fmt"
	"slices"
	"strings"
	"time"

	tea "charm.land/bubbletea/v2"
	"github.com/charmbracelet/x/ansi"

	"spectral/internal/core/events/infrastructure/postgres/operator"
)

// View returns the frame of the terminal's size.
func (m *Model) View() tea.View {
	v := tea.NewView(m.Frame(m.width, m.height))
	v.AltScreen, v.ReportFocus, v.WindowTitle = true, true, "workers top"
	return v
}

// Frame returns the lines of a frame of a size; height 0 is as many lines as there are.
func (m *Model) Frame(width, height int) string {
	head := m.head(width)
	alarms := m.alarms()
	if most := max(height/6, 1); m.help || m.plan != nil {
		alarms = nil
	} else if height > 0 && len(alarms) > most {
		more := fmt.Sprintf("  +%d", len(alarms)-most)
		alarms = alarms[:most]
		alarms[most-1] = m.snip(alarms[most-1], width-len(" ! "+more)) + more
	}
	for _, a := range alarms {
		head = append(head, m.paint(" ! "+a, alarm))
	}
	if !m.once {
		head = append(head, m.tabs(width))
	}
	room := 1 << 30
	if height > 0 {
		room = max(height-len(head)-1, 0)
	}
	m.width = width
	body := m.body(width, room)
	if height > 0 {
		for len(body) < room {
			body = append(body, "")
		}
	}
	lines := slices.Concat(head, body)
	if height > 0 {
		lines = append(lines[:min(len(lines), max(height-1, 0))], m.foot())
	}
	for i, line := range lines {
		if m.stale() && i > 0 && m.plan == nil && !m.Plain {
			line = m.paint(ansi.Strip(line), dim)
		}
		lines[i] = m.snip(strings.TrimRight(line, " "), width)
	}
	return strings.Join(lines, "\n")
}

// stale reports whether the figures are not of this moment.
func (m *Model) stale() bool { return m.failure != nil || m.frozen }

// state says how fresh the figures are.
func (m *Model) state() string {
	old := ""
	if m.live != nil {
		old = ", " + age(m.now.Sub(m.liveAt)) + " old"
	}
	next := ", next try in " + age(m.due.Sub(m.now)+time.Second-1)
	if m.pending {
		next = ", trying"
	}
	switch {
	case m.failure != nil && slow(m.failure):
		return m.paint("! SLOW: no answer within "+readTimeout.String()+old+next, alarm)
	case m.failure != nil && operator.IsUnavailable(m.failure):
		return m.paint("! NO DATABASE"+old+next, alarm)
	case m.failure != nil:
		return m.paint("! NOT READ"+old+next+": "+m.safe(firstLine(m.failure.Error())), alarm)
	case m.frozen:
		return m.paint("FROZEN"+old, warning)
	case m.live == nil:
		return "connecting ..."
	case m.once:
		return ""
	case m.blurred:
		return "every " + max(m.Every, whileBlurred).String() + ", not in focus"
	}
	return "every " + m.Every.String()
}

// head returns the lines above what needs attention.
func (m *Model) head(width int) []string {
	if m.live == nil {
		return []string{" " + m.paint("SPECTRAL", bold) + "  " + m.state()}
	}
	l := m.live
	deploys := make([]string, 0, len(l.Generations))
	for _, g := range l.Generations {
		deploys = append(deploys, fmt.Sprintf("%d %s", g.Generation, m.safe(g.Status)))
	}
	first := " " + m.paint("SPECTRAL", bold) + " " + m.safe(l.Database) + "  "
	if len(deploys) > 0 {
		first += "gen " + strings.Join(deploys, ", ") + "  "
	}
	only := strings.Join(strings.Fields(m.safe(m.Context)+" "+m.safe(m.Type)), " ")
	if only != "" {
		first += "only " + only + "  "
	}
	right := m.state()
	left := first + l.At.UTC().Format("15:04:05") + " UTC  "
	if ansi.StringWidth(left)+ansi.StringWidth(right) > width {
		left = m.snip(first, max(width-ansi.StringWidth(right)-1, 10)) + " "
	}
	backlog, oldest := 0, (*time.Time)(nil)
	for _, t := range l.Types {
		backlog += t.Due + t.Waiting
		if t.OldestDue != nil && (oldest == nil || t.OldestDue.Before(*oldest)) {
			oldest = t.OldestDue
		}
	}
	waiting := "backlog " + thousands(int64(backlog))
	if o := outlook(backlog, l.PublishedPerSecond, l.HandledPerSecond); o != "" {
		waiting += " (" + o + ")"
	}
	flow := []string{"in " + decimals(l.PublishedPerSecond) + "/s", "handled " + decimals(l.HandledPerSecond) + "/s",
		"failed " + counted(l.Failed), waiting}
	if oldest != nil {
		flow = append(flow, "oldest "+age(l.At.Sub(*oldest)))
	}
	flow = append(flow, "retry "+decimals(l.RetriedPerSecond)+"/s")
	pickup, took := l.UntilClaimed, l.Took
	times := []string{"pickup p50 " + millis(pickup, pickup.P50) + " p95 " + millis(pickup, pickup.P95) + " ms",
		"handle p95 " + millis(took, took.P95) + " ms", fmt.Sprintf("workers %d", len(l.Workers)),
		"notify queue " + decimals(l.QueueUsage*100) + " %"}
	if l.OldestSnapshot != nil {
		times = append(times, "snapshot "+age(time.Duration(*l.OldestSnapshot*float64(time.Second))))
	}
	return []string{left + right, joined(flow, width), joined(times, width)}
}

// Bounds from which something needs attention.
const (
	longSnapshot = time.Hour
	fullQueue    = 0.5
	lateDue      = time.Minute
)

// alarms returns what needs attention, the worst first, with the key of the view that shows more.
func (m *Model) alarms() (all []string) {
	if m.live == nil {
		return nil
	}
	l := m.live
	add := func(view kind, format string, args ...any) {
		all = append(all, fmt.Sprintf(format, args...)+fmt.Sprintf("  [%d]", view))
	}
	if len(l.Workers) == 0 {
		add(workers, "no worker is running")
	}
	for _, h := range l.Handlers {
		if h.Breaker != "closed" {
			opened := ""
			if h.OpenedAt != nil {
				opened = " " + age(l.At.Sub(*h.OpenedAt))
			}
			add(handlers, "%s breaker %s%s: %s waiting", m.safe(h.Handler), m.safe(h.Breaker), opened, counted(h.Waiting))
		}
	}
	if l.QueueUsage >= fullQueue {
		add(locks, "the queue of notifications is %s %% full", decimals(l.QueueUsage*100))
	}
	for _, t := range l.Types {
		switch {
		case t.PausedAt != nil:
			add(types, "%s paused %s by %s: %s due", m.safe(t.EventType), age(l.At.Sub(*t.PausedAt)),
				m.safe(value(t.PausedBy)), counted(t.Due))
		case t.Workers == 0 && t.Due > 0 && len(l.Workers) > 0:
			add(types, "%s has no worker in generation %d: %s due", m.safe(t.EventType), t.Generation, counted(t.Due))
		case t.OldestDue != nil && l.At.Sub(*t.OldestDue) > lateDue:
			add(types, "%s waits for %s: %s due", m.safe(t.EventType), age(l.At.Sub(*t.OldestDue)), counted(t.Due))
		}
	}
	for _, o := range l.Operations {
		if o.State == string(operator.OperationPaused) {
			add(operations, "a %s of %s is paused: %s", m.safe(o.Name), eventsText(o.Total), m.safe(firstLine(value(o.Why))))
		}
	}
	if l.Quarantined > 0 {
		add(tail, "%s quarantined: workers events list --status quarantined", eventsText(l.Quarantined))
	}
	if s := time.Duration(value(l.OldestSnapshot) * float64(time.Second)); s > longSnapshot {
		add(locks, "a snapshot is %s old and holds up vacuum", age(s))
	}
	if l.Failed > 0 {
		add(groups, "%s failed", counted(l.Failed))
	}
	return all
}

// tabs names the views, or what is opened.
func (m *Model) tabs(width int) string {
	p := m.page()
	if p.kind > locks {
		return m.paint(">"+m.safe(p.title), bold)
	}
	tabs := func(others bool) string {
		var s strings.Builder
		for i, name := range views {
			switch {
			case kind(i+1) == p.kind:
				s.WriteString(m.paint(fmt.Sprintf(">%d %s", i+1, name), bold))
			case others:
				_, _ = fmt.Fprintf(&s, " %d %s", i+1, name)
			default:
				_, _ = fmt.Fprintf(&s, " %d", i+1)
			}
		}
		return s.String()
	}
	if long := tabs(true); ansi.StringWidth(long) <= width {
		return long
	}
	return tabs(false)
}

// body returns what is below the tabs, in so many lines at most.
func (m *Model) body(width, room int) []string {
	switch {
	case m.help:
		return window(strings.Split(help, "\n"), 0, room)
	case m.plan != nil:
		return window(m.planLines(), 0, room)
	case m.page().kind == oneEvent:
		m.rows = room
		return window(m.eventLines(), m.page().index, room)
	}
	t := m.table()
	widths := t.widths(width - gap)
	titles := make([]any, len(t.columns))
	for i, c := range t.columns {
		titles[i] = c.title
		if len(t.rows) > 0 {
			if _, ok := t.rows[0].cells[i].(number); ok {
				titles[i] = number{text: c.title}
			}
		}
	}
	var lines []string
	if len(t.columns) > 0 {
		lines = append(lines, "  "+m.paint(m.line(titles, widths), bold))
	}
	at := m.place(t)
	m.rows = max(room-len(lines), 1)
	if t.note != "" {
		m.rows = max(m.rows-1, 1)
	}
	m.first = min(max(m.first, at-m.rows+1), at)
	for i := m.first; i < min(len(t.rows), m.first+m.rows); i++ {
		line := m.line(t.rows[i].cells, widths)
		mark := " "
		if t.rows[i].concern {
			mark = "!"
		}
		switch {
		case i == at && !m.once:
			line = m.paint(">"+mark+line, reverse)
		case t.rows[i].concern:
			line = " " + m.paint(mark, alarm) + line
		default:
			line = "  " + line
		}
		lines = append(lines, line)
	}
	if t.note != "" {
		lines = append(lines, m.paint("  "+t.note, dim))
	}
	return lines
}

// window returns some lines from one on.
func window(lines []string, from, room int) []string {
	from = min(max(from, 0), max(len(lines)-room, 0))
	return lines[from:min(len(lines), from+room)]
}

// foot returns the last line: the filter that is typed, what was done, or keys.
func (m *Model) foot() string {
	switch {
	case m.filtering:
		return " / " + m.safe(m.filter) + "_"
	case m.note != "":
		return " " + m.paint(m.note, bold)
	}
	return m.paint(joined([]string{"? help", "q quit", "enter open", "esc back", "/ filter", "s S sort", "space freeze",
		"y copy", "r d p act"}, m.width), dim)
}

const help = `
 1 to 8     types, handlers, workers, error groups, generations, operations,
            tail (the latest events), locks and snapshots
 up down    or k j: select a row; pgup pgdown home end; in an event they scroll
 enter      open: the events of a type, handler, group or generation; an event;
            in an event: unfold the payload
 esc        end the filter, or go back
 /          only rows that have a text; enter keeps it, esc ends it
 s S        sort by the next column, the other way round
 space      freeze the figures, and go on
 + -        ask the database less often, more often
 y          copy the id of the event, group or operation
 r          plan to replay the event, or the failed events of the group
 d          plan to discard it or them
 p          plan to pause an event type, or to end that
            a plan shows what would happen, and asks for its number
 q          quit; ctrl+z suspends
 !          needs attention          > is selected
`
