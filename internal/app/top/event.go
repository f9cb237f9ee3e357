package top

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"spectral/internal/core/events/infrastructure/postgres/operator"
)

const laneWidth = 24

// eventLines returns the open event as lines: why it has not run, its handlers, what it caused, its payload.
func (m *Model) eventLines() []string {
	switch own := m.own.(type) {
	case opened:
		return m.eventText(own)
	case error:
		return []string{" " + m.safe(firstLine(own.Error()))}
	}
	return []string{" reading ..."}
}

func (m *Model) eventText(e opened) (lines []string) {
	d := e.detail
	add := func(format string, args ...any) { lines = append(lines, fmt.Sprintf(format, args...)) }
	workspace := ""
	if d.WorkspaceID.Valid {
		workspace = "  workspace " + d.WorkspaceID.UUID.String()
	}
	add(" %s  %s  generation %d", m.safe(string(d.Status)), m.safe(d.EventType), d.Generation)
	add(" published %s, attempts %d, replays %d%s", d.CreatedAt.UTC().Format(time.RFC3339), d.Attempts, d.PriorReplays,
		workspace)
	add(" key %s", m.safe(d.IdempotencyKey))
	for _, x := range e.explanations {
		for _, c := range x.Causes {
			add(" %s: %s", m.paint(m.safe(c.Code), bold), m.safe(c.Fact))
			add("   %s", m.paint(m.safe(c.Command), dim))
		}
	}
	add("")
	add(" %s", m.paint("HANDLERS", bold))
	for _, h := range d.Handlers {
		add(" %-30s  %-10s %s", m.snip(m.safe(h.Handler), 30), m.safe(h.Stage), m.lane(d, h))
		if h.Error != "" {
			add("   ! %s: %s", m.safe(h.Class), m.safe(firstLine(h.Error)))
		}
	}
	if len(d.Handlers) == 0 {
		add(" none")
	}
	for _, of := range []struct {
		title string
		all   []operator.Relative
	}{{"CAUSED BY", d.Causes}, {"CAUSED", d.Effects}} {
		if len(of.all) > 0 {
			add("")
			add(" %s", m.paint(of.title, bold))
		}
		for _, r := range of.all {
			add(" %s%s  %s  %s", strings.Repeat("  ", max(r.Depth, 1)-1), r.EventID, m.safe(string(r.Status)),
				m.safe(r.EventType))
		}
	}
	add("")
	if !m.page().unfolded {
		add(" %s %d bytes, enter unfolds it", m.paint("PAYLOAD", bold), len(d.Payload))
		return lines
	}
	add(" %s", m.paint("PAYLOAD", bold))
	var indented bytes.Buffer
	if json.Indent(&indented, d.Payload, "", "  ") != nil {
		indented.Reset()
		_, _ = indented.Write(d.Payload)
	}
	for line := range strings.Lines(indented.String()) {
		add(" %s", m.safe(strings.TrimRight(line, "\n")))
	}
	return lines
}

// lane draws the calls of a handler from the publication of an event to the last call of any: ! failed, + handled.
func (m *Model) lane(d operator.Detail, h operator.HandlerState) string {
	end := d.CreatedAt
	for _, a := range d.FailedAttempts {
		end = later(end, a.StartedAt)
	}
	for _, other := range d.Handlers {
		end = later(end, value(other.HandledAt))
	}
	empty := "·"
	if m.ASCII {
		empty = "."
	}
	lane := []rune(strings.Repeat(empty, laneWidth))
	mark := func(at time.Time, r rune) {
		part := float64(at.Sub(d.CreatedAt)) / float64(max(end.Sub(d.CreatedAt), 1))
		lane[min(max(int(part*laneWidth), 0), laneWidth-1)] = r
	}
	failed := 0
	for _, a := range d.FailedAttempts {
		if a.Handler == h.Handler {
			mark(a.StartedAt, '!')
			failed++
		}
	}
	if h.HandledAt != nil {
		mark(*h.HandledAt, '+')
	}
	if failed > 0 {
		return fmt.Sprintf("%s %d failed", string(lane), failed)
	}
	return string(lane)
}

func later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}
