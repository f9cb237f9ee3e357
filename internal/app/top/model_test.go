package top

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	tea "charm.land/bubbletea/v2"
	"github.com/charmbracelet/x/ansi"
	"github.com/google/uuid"

	"spectral/internal/core/events"
	"spectral/internal/core/events/infrastructure/postgres/operator"
)

// fake is a database that has no events. It records what it is asked to do. Other calls panic.
type fake struct {
	Client
	did []string
}

func (f *fake) Pause(_ context.Context, eventType string, g events.Generation, by, _ string) error {
	f.did = append(f.did, fmt.Sprint("pause ", eventType, " ", g, " by ", by))
	return nil
}

func (f *fake) SelectNamed(context.Context, []uuid.UUID, operator.Change) (operator.Selection, error) {
	return operator.Selection{}, errors.New("SP031: \x1b[2J is delivered")
}

func order(m *Model) (names []string) {
	for _, r := range m.table().rows {
		names = append(names, text(r.cells[0])[:8])
	}
	return names
}

func shows(t *testing.T, m *Model, texts ...string) {
	t.Helper()
	frame := m.Frame(80, 24)
	checkFits(t, frame, 80, 24)
	for _, s := range texts {
		if !strings.Contains(frame, s) {
			t.Errorf("the frame does not show %q:\n%s", s, frame)
		}
	}
}

func TestSortByAColumnAndTheOtherWayRound(t *testing.T) {
	t.Parallel()
	m := model()
	press(m, "s", "s", "s") // RATE/s
	fastest := order(m)
	shows(t, m, "RATE/sv", "sorted by RATE/sv")
	if m.table().rows[0].subject.(operator.LiveType).EventType != "decision.recorded" {
		t.Errorf("by rate: %q", fastest)
	}
	press(m, "S")
	slowest := order(m)
	shows(t, m, "RATE/s^")
	slices.Reverse(slowest)
	if !slices.Equal(fastest, slowest) {
		t.Errorf("by rate: %q, the other way round %q", fastest, order(m))
	}
}

func TestFilterLeavesRowsWithAText(t *testing.T) {
	t.Parallel()
	m := model()
	press(m, "/", "S", "c", "a", "x", "backspace")
	m.Update(tea.PasteMsg{Content: "n.\nrm -rf"})
	shows(t, m, "/ Scan. ..._")
	press(m, "esc", "/", "s", "c", "a", "n", "q", "backspace", "enter")
	if got := m.table().rows; len(got) != 1 || got[0].subject.(operator.LiveType).EventType != "worlds.scan.requested" {
		t.Errorf("%d rows match", len(got))
	}
	shows(t, m, "1 of 4 match scan")
	press(m, "esc")
	if got := len(m.table().rows); got != 4 {
		t.Errorf("%d rows without a filter", got)
	}
	m.Update(tea.PasteMsg{Content: "q1r\n"}) // is no key
	shows(t, m, ">1 types")
}

func TestSelectionFollowsItsRow(t *testing.T) {
	t.Parallel()
	m := model()
	press(m, "down", "j")
	was, _ := m.current()
	next := fixture()
	next.Types = next.Types[1:] // the first is gone
	m.Update(answer{live: next, at: start})
	if now, _ := m.current(); now.key != was.key {
		t.Errorf("%q is selected, want %q", now.key, was.key)
	}
	press(m, "j", "j", "j", "j")
	if now, _ := m.current(); now.key != m.table().rows[2].key {
		t.Errorf("below the last row: %q", now.key)
	}
}

func TestFreezeKeepsTheFiguresAndAsksNothing(t *testing.T) {
	t.Parallel()
	m := model()
	press(m, "space")
	m.Update(clock(start.Add(7 * time.Second)))
	if m.pending {
		t.Error("it asks")
	}
	later := fixture()
	later.Database = "other"
	m.Update(answer{live: later, at: start})
	shows(t, m, "FROZEN, 7s old", "prod-eu")
	if press(m, "space") == nil || !m.pending {
		t.Error("it does not ask when it goes on")
	}
}

func TestALostDatabaseIsAskedAgainLaterAndLater(t *testing.T) {
	t.Parallel()
	m := model()
	now := start
	var waits []time.Duration
	for range 7 {
		now = m.due
		if m.Update(clock(now)); !m.pending {
			t.Fatal("it does not ask")
		}
		m.Update(answer{err: context.DeadlineExceeded, at: now})
		waits = append(waits, m.due.Sub(now))
	}
	want := []time.Duration{firstRetry, 2 * firstRetry, 4 * firstRetry, 8 * firstRetry, 16 * firstRetry, longestRetry,
		longestRetry}
	if !slices.Equal(waits, want) {
		t.Errorf("it waits %v, want %v", waits, want)
	}
	shows(t, m, "! SLOW: no answer within 2s, 26s old, next try in 10s", "decision.recorded")
	m.jitter = func() float64 { return 0 }
	m.Update(answer{err: errors.New("refused: \x1b[2J"), at: now})
	if wait := m.due.Sub(now); wait != longestRetry/2 {
		t.Errorf("with the least jitter it waits %s", wait)
	}
	m.Update(answer{live: fixture(), at: now})
	shows(t, m, "every 1s")
	if m.failures != 0 {
		t.Errorf("%d failures after an answer", m.failures)
	}
}

// A page's own query takes turns with the live figures, and a slow one leaves the database alone for a while.
func TestOneStatementAtATime(t *testing.T) {
	t.Parallel()
	m := opensAt(model(), page{kind: groups})
	for _, own := range []bool{false, true, false} {
		m.Update(clock(m.due))
		if !m.pending || m.ownLast != own {
			t.Fatalf("it asks: %t, its own query: %t, want %t", m.pending, m.ownLast, own)
		}
		if m.next() != nil {
			t.Fatal("it asks twice")
		}
		m.Update(answer{page: m.opened, isOwn: own, live: fixture(), own: answers()[groups], at: m.now})
	}
	m.Update(clock(m.due))
	asked := m.asked
	m.Update(answer{page: m.opened, isOwn: true, own: answers()[groups], at: m.now, took: time.Second})
	if m.due.Sub(asked) != quietFor*time.Second {
		t.Errorf("after a statement of 1s the next one follows after %s", m.due.Sub(asked))
	}
	m.Update(tea.BlurMsg{})
	m.Update(clock(m.due))
	m.Update(answer{page: m.opened, live: fixture(), at: m.now})
	if m.due.Sub(m.asked) != whileBlurred {
		t.Errorf("without focus it asks after %s", m.due.Sub(m.asked))
	}
}

func TestAnswersToAClosedPageAreIgnored(t *testing.T) {
	t.Parallel()
	m := opensAt(model(), page{kind: groups})
	closed := m.opened
	press(m, "7")
	m.Update(answer{page: closed, isOwn: true, own: answers()[groups], at: start})
	shows(t, m, ">7 tail", "reading ...")
}

func TestEnterOpensAndEscGoesBack(t *testing.T) {
	t.Parallel()
	m := opensAt(model(), page{kind: tail})
	press(m, "enter")
	if p := m.page(); p.kind != oneEvent || p.id != id(2) {
		t.Fatalf("opened %+v", p)
	}
	press(m, "esc")
	if p := m.page(); p.kind != tail || len(m.pages) != 1 {
		t.Fatalf("back at %+v", p)
	}
	press(m, "esc", "1", "enter")
	if p := m.page(); p.kind != listing || p.filter.EventTypes[0] != "decision.recorded" {
		t.Fatalf("opened %+v", p)
	}
}

// Nothing is done before the person has typed what the plan asks for.
func TestAnActNeedsItsWord(t *testing.T) {
	t.Parallel()
	f := new(fake)
	m := model()
	m.client, m.By = f, "anna"
	press(m, "p")
	shows(t, m, "PLAN pause decision.recorded in generation 8",
		"workers events pause decision.recorded --generation 8", "type yes and enter")
	m.Update(tea.PasteMsg{Content: "yes"})
	if press(m, "enter") != nil || press(m, "y", "e", "enter") != nil {
		t.Fatal("it goes on without its word")
	}
	if cmd := press(m, "s", "enter"); cmd == nil {
		t.Fatal("it does not go on")
	} else {
		m.Update(cmd())
	}
	if want := []string{"pause decision.recorded 8 by anna"}; !slices.Equal(f.did, want) {
		t.Errorf("it did %q, want %q", f.did, want)
	}
	shows(t, m, "pause decision.recorded in generation 8: done")
}

func TestARefusedPlanSaysWhy(t *testing.T) {
	t.Parallel()
	m := opensAt(model(), page{kind: tail})
	m.client = new(fake)
	refusal := press(m, "r")()
	m.Update(refusal)
	shows(t, m, `no plan: SP031: \x1b[2J is delivered`)
	m.note = ""
	press(m, "1")
	if m.Update(refusal); m.note != "" {
		t.Errorf("the plan of a closed page says %q", m.note)
	}
}

func TestIntervalsAreChosenByKeys(t *testing.T) {
	t.Parallel()
	m := model()
	m.Every = 3 * time.Second // as --every may have it
	for _, step := range []struct {
		key  string
		want time.Duration
	}{{"+", 5 * time.Second}, {"-", 2 * time.Second}, {"-", time.Second}, {"-", 500 * time.Millisecond},
		{"-", 250 * time.Millisecond}, {"-", 250 * time.Millisecond}} {
		if press(m, step.key); m.Every != step.want {
			t.Errorf("after %s every %s, want %s", step.key, m.Every, step.want)
		}
	}
}

func TestEverySizeIsHarmless(t *testing.T) {
	t.Parallel()
	for k := types; k <= oneEvent; k++ {
		m := opensAt(model(), page{kind: k, id: id(2)})
		for _, size := range [][2]int{{20, 5}, {1, 1}, {0, 0}, {3, 60}, {300, 2}, {80, 24}} {
			m.Update(tea.WindowSizeMsg{Width: size[0], Height: size[1]})
			m.View()
			press(m, "G", "down", "pgdown", "up", "g", "?", "?")
			checkFits(t, m.Frame(size[0], size[1]), size[0], size[1])
		}
	}
}

// Colours are beside the text, never instead of it.
func TestColoursAddNothing(t *testing.T) {
	t.Parallel()
	plain, coloured := model(), model()
	coloured.Plain = false
	frame := coloured.Frame(80, 24)
	if frame == ansi.Strip(frame) || ansi.Strip(frame) != plain.Frame(80, 24) {
		t.Errorf("with colours stripped:\n%s", ansi.Strip(frame))
	}
}

func TestScopeLeavesOutOtherContexts(t *testing.T) {
	t.Parallel()
	o := Options{Context: "platform", ContextOf: func(eventType string) string {
		return map[string]string{"decision.recorded": "platform"}[eventType]
	}}
	got := o.Scoped(fixture())
	if len(got.Types) != 1 || got.Types[0].EventType != "decision.recorded" || len(got.Handlers) != 1 {
		t.Errorf("platform has %d types and %d handlers", len(got.Types), len(got.Handlers))
	}
	if got = (Options{Type: "worlds.scan.requested"}).Scoped(fixture()); len(got.Types) != 1 || len(got.Handlers) != 0 {
		t.Errorf("the type has %d types and %d handlers", len(got.Types), len(got.Handlers))
	}
}
