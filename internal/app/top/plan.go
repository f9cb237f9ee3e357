package top

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	tea "charm.land/bubbletea/v2"
	"github.com/charmbracelet/x/ansi"
	"github.com/google/uuid"

	"spectral/internal/core/events"
	"spectral/internal/core/events/infrastructure/postgres/operator"
)

// plan says what an act would do, before it is done.
type plan struct {
	title   string
	lines   []string
	command string // that does the same
	word    string // what the person types to confirm it; empty: it cannot be done here
	typed   string
	running bool
	run     func(context.Context) done
}

// act makes the plan of an act on what is selected. Nothing is changed.
func (m *Model) act(key string) tea.Cmd {
	var subject any
	if own, ok := m.own.(opened); ok {
		subject = own.detail.Event
	} else if r, ok := m.current(); ok {
		subject = r.subject
	}
	o, client := m.Options, m.client
	var prepare func(context.Context) (*plan, error)
	switch s := subject.(type) {
	case operator.LiveType:
		if key == "p" {
			m.plan = o.pausePlan(client, s)
			return nil
		}
	case operator.Event:
		prepare = o.eventPlan(client, key, s.ID, m.highestLive())
	case operator.ErrorGroup:
		prepare = o.groupPlan(client, key, s.GroupID, m.highestLive())
	}
	if prepare == nil {
		m.note = "nothing to do here with " + key + ": r, d act on events and groups of errors, p on types"
		return nil
	}
	m.note = "making the plan ..."
	ctx, opened := m.ctx, m.opened
	return func() tea.Msg {
		ctx, cancel := context.WithTimeout(ctx, actTimeout)
		defer cancel()
		p, err := prepare(ctx)
		return planned{opened, p, err}
	}
}

// highestLive is the generation that replayed events go to; 0: none is live.
func (m *Model) highestLive() (highest events.Generation) {
	if m.live != nil {
		for _, g := range m.live.Generations {
			if g.Status == "live" {
				highest = max(highest, g.Generation)
			}
		}
	}
	return highest
}

// confirm takes a key while a plan is shown.
func (m *Model) confirm(name, typed string) tea.Cmd {
	p := m.plan
	switch {
	case p.running:
	case name == "esc" || p.word == "":
		m.plan, m.note = nil, "nothing was done"
	case name == "backspace":
		p.typed = p.typed[:max(len(p.typed)-1, 0)]
	case name == "enter" && p.typed == p.word:
		p.running = true
		ctx, run := m.ctx, p.run
		return func() tea.Msg {
			ctx, cancel := context.WithTimeout(ctx, actTimeout)
			defer cancel()
			return run(ctx)
		}
	case len(typed) == 1 && len(p.typed) < len(p.word):
		p.typed += typed
	}
	return nil
}

func eventsText(n int) string {
	if n == 1 {
		return "1 event"
	}
	return thousands(int64(n)) + " events"
}

// change returns the change of a key, its name and the part of its command that names no events.
func (o Options) change(key string, to events.Generation) (_ operator.Change, verb, flags string) {
	if key == "d" || key == "D" {
		return operator.Discard(o.By, ""), "discard", ""
	}
	return operator.Replay(to, o.By, false, operator.Choice{}), "replay", fmt.Sprintf(" --to %d", to)
}

// eventPlan plans to replay or discard one event.
func (o Options) eventPlan(c Client, key string, id uuid.UUID, to events.Generation,
) func(context.Context) (*plan, error) {
	change, verb, flags := o.change(key, to)
	return o.planOf(c, verb, to, func(ctx context.Context) (operator.Selection, error) {
		return c.SelectNamed(ctx, []uuid.UUID{id}, change)
	}, func(p *plan, s operator.Selection) {
		p.command = "workers events " + verb + " " + id.String() + flags
		p.run = func(ctx context.Context) done {
			result, err := c.Apply(ctx, s, change, operator.Pace{})
			d := done{text: verb + ": " + eventsText(result.Done) + " done", err: err}
			if result.Skipped > 0 {
				d.text += fmt.Sprintf(", %d skipped: changed since the plan", result.Skipped)
			}
			return d
		}
	})
}

// groupPlan plans to replay or discard the failed events of a group, as an operation.
func (o Options) groupPlan(c Client, key, group string, to events.Generation) func(context.Context) (*plan, error) {
	change, verb, flags := o.change(key, to)
	filter := operator.Filter{Statuses: []operator.Status{operator.Failed}, Groups: []string{group}}
	command := "workers events " + verb + " --group " + group + flags
	return o.planOf(c, verb, to, func(ctx context.Context) (operator.Selection, error) {
		return c.Select(ctx, filter, actTimeout)
	}, func(p *plan, s operator.Selection) {
		name := operator.Plan(s, change, filter).String()
		p.command = command + " --plan " + name
		p.run = func(ctx context.Context) done {
			id, err := c.BeginOperation(ctx, s, change, command, name, operator.Course{MaxFailed: 1})
			return done{text: "operation " + id.String() + " has begun: the workers carry it on", err: err, begun: err == nil}
		}
	})
}

// planOf returns what makes a plan: it selects the events, says what would happen to them, and how to do it.
func (o Options) planOf(c Client, verb string, to events.Generation,
	selected func(context.Context) (operator.Selection, error), complete func(*plan, operator.Selection),
) func(context.Context) (*plan, error) {
	return func(ctx context.Context) (*plan, error) {
		if verb == "replay" && to == 0 {
			return nil, fmt.Errorf("no generation is live: workers generation list")
		}
		s, err := selected(ctx)
		if err != nil {
			return nil, err
		}
		p := &plan{title: verb + " " + eventsText(s.Len()), word: strconv.Itoa(s.Len())}
		if complete(p, s); s.Len() == 0 {
			p.word = ""
			return p, nil
		}
		if verb == "discard" {
			all, err := c.Shown(ctx, s, 10)
			for _, e := range all {
				p.lines = append(p.lines, e.ID.String()+"  "+o.safe(e.EventType)+"  "+o.safe(firstLine(value(e.LastError))))
			}
			if s.Len() > len(all) {
				p.lines = append(p.lines, "and "+thousands(int64(s.Len()-len(all)))+" more")
			}
			return p, err
		}
		p.title += fmt.Sprintf(" into generation %d", to)
		preview, err := c.PreviewReplay(ctx, s, to, operator.Choice{}, false)
		p.lines = o.effects(preview)
		if asking := preview.Asking(); len(asking) > 0 {
			p.word = ""
			p.lines = append(p.lines, "! these had begun and act outside: choose with --run or --skip on the command line: "+
				o.safe(operator.Joined(asking)))
		}
		return p, err
	}
}

// effects says what a replay would do.
func (o Options) effects(preview operator.Preview) (lines []string) {
	for _, h := range preview.Handlers {
		line := fmt.Sprintf("%s: %d would run, %d handled already", o.safe(h.Handler), h.WouldRun, h.Handled)
		if h.Skipped > 0 {
			line += fmt.Sprintf(", %d skipped: had begun", h.Skipped)
		}
		if h.Outside != "" && h.WouldRun > 0 {
			line = "! " + line + "; acts outside: " + o.safe(h.Outside)
		}
		lines = append(lines, line)
	}
	for _, u := range preview.Unhandled {
		lines = append(lines, fmt.Sprintf("! no handler for %s of %s: %s", eventsText(u.Events), o.safe(u.EventType),
			o.safe(u.Note)))
	}
	for _, pause := range preview.Paused {
		lines = append(lines, "! paused: "+o.safe(pause.EventType)+": its events will wait")
	}
	for _, h := range preview.Breakers {
		lines = append(lines, "! the breaker of "+o.safe(h)+" is open: its events will wait")
	}
	return lines
}

// pausePlan plans to pause a type in a generation, or to end that.
func (o Options) pausePlan(c Client, t operator.LiveType) *plan {
	verb, what := "pause", "publishing goes on, and workers finish the events that they hold"
	change := func(ctx context.Context) error { return c.Pause(ctx, t.EventType, t.Generation, o.By, "") }
	if t.PausedAt != nil {
		verb, what = "resume", "workers handle the events that waited, the oldest first"
		change = func(ctx context.Context) error { return c.Resume(ctx, t.EventType, t.Generation, o.By) }
	}
	name := fmt.Sprintf("%s %s in generation %d", verb, o.safe(t.EventType), t.Generation)
	return &plan{title: name, lines: []string{what}, word: "yes",
		command: fmt.Sprintf("workers events %s %s --generation %d", verb, o.safe(t.EventType), t.Generation),
		run:     func(ctx context.Context) done { return done{text: name + ": done", err: change(ctx)} }}
}

// planLines shows the plan.
func (m *Model) planLines() []string {
	p := m.plan
	lines := []string{"", " " + m.paint("PLAN", bold) + " " + p.title, ""}
	for _, line := range p.lines {
		as := style(nil)
		if strings.HasPrefix(line, "!") {
			as = alarm
		}
		lines = append(lines, "   "+m.paint(line, as))
	}
	command := ansi.Hardwrap(m.safe(p.command), max(m.width-1, 1), false) // it is shown whole
	lines = slices.Concat(lines, []string{"", " the same on the command line:"}, strings.Split(command, "\n"),
		[]string{""})
	switch {
	case p.running:
		return append(lines, " doing it ...")
	case p.word == "":
		return append(lines, " any key goes back")
	}
	return append(lines, fmt.Sprintf(" type %s and enter to do it, esc to go back: %s_", p.word, p.typed))
}
