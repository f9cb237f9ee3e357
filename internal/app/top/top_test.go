package top

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
	"unicode"

	tea "charm.land/bubbletea/v2"
	"github.com/charmbracelet/x/ansi"
	"github.com/google/uuid"

	"spectral/internal/core/events/infrastructure/postgres/operator"
)

var update = flag.Bool("update", false, "write the goldens")

var start = time.Date(2026, 11, 30, 14, 2, 11, 0, time.UTC)

// hostile is a name that must not reach a terminal as it is: it clears the screen, turns the direction of writing, and
// is wide.
const hostile = "worlds.\x1b[2J\u202eevil\u0007世界\nsecond line, and it goes on for very much longer than any column"

func ago(d time.Duration) *time.Time {
	t := start.Add(-d)
	return &t
}

func id(n int) uuid.UUID { return uuid.MustParse(fmt.Sprintf("0198c5d4-9a52-7c11-8f0e-%012d", n)) }

func percentiles(p50, p95 float64) operator.Percentiles {
	return operator.Percentiles{Count: 100, P50: &p50, P95: &p95, P99: nil}
}

// fixture is a database in which much is wrong.
func fixture() operator.Live {
	wave := make([]int64, operator.LiveMinutes)
	for i := range wave {
		wave[i] = int64(i * i % 37)
	}
	return operator.Live{
		At: start, Database: "prod-eu", PublishedPerSecond: 1204.2, HandledPerSecond: 1228.4, RetriedPerSecond: 12.5,
		UntilClaimed: percentiles(0.0014, 0.009), Took: percentiles(0.005, 0.022), Failed: 3, Retrying: 14, Quarantined: 1,
		QueueUsage: 0.001, OldestSnapshot: new(12.0),
		Types: []operator.LiveType{
			{EventType: "decision.recorded", Generation: 8, Due: 12, OldestDue: ago(300 * time.Millisecond),
				PublishedPerSecond: 610, HandledPerSecond: 612, UntilClaimed: percentiles(0.001, 0.008), Published: wave,
				Handled: wave, Workers: 4},
			{EventType: "worlds.world_model_card.published", Generation: 8, Due: 190, OldestDue: ago(2 * time.Second),
				Retrying: 2, Failed: 1, PublishedPerSecond: 400, HandledPerSecond: 401, Waiting: 4102,
				UntilClaimed: percentiles(0.001, 0.011), Published: wave, Handled: wave, Workers: 4},
			{EventType: "worlds.scan.requested", Generation: 7, Due: operator.MaxWaiting + 1, OldestDue: ago(26 * time.Hour),
				Published: wave[:3], Handled: wave[:3], PausedAt: ago(time.Hour), PausedBy: new("anna")},
			{EventType: hostile, Generation: 8, HandledPerSecond: 0.4, UntilClaimed: operator.Percentiles{Count: 3},
				Published: wave, Handled: make([]int64, operator.LiveMinutes), Workers: 1},
		},
		Handlers: []operator.LiveHandler{
			{Handler: "platform.mailer", EventType: "worlds.world_model_card.published", Generation: 8, Workers: 4,
				HandledPerSecond: 12, Calls: 100, FailedCalls: 60, Took: percentiles(0.1, 0.9), Breaker: "open",
				OpenedAt: ago(12 * time.Minute), Cause: new("SMTPError: no answer\nstack"), Waiting: 4102,
				ActsOutside: "sends mail"},
			{Handler: "worlds." + hostile, EventType: hostile, Generation: 8, Breaker: "closed", ActsOutside: hostile,
				Cause: new(hostile)},
		},
		Workers: []operator.LiveWorker{
			{Name: "host-a 4711", Generation: 8, RegisteredAt: *ago(50 * time.Hour), Types: 12, Running: 3, Leased: 1},
			{Name: hostile, Generation: 7, RegisteredAt: *ago(time.Minute)},
		},
		Generations: []operator.LiveDeploy{{Generation: 7, Status: "draining", RegisteredAt: *ago(90 * time.Hour)},
			{Generation: 8, Status: "live", RegisteredAt: *ago(50 * time.Hour)}},
		Operations: []operator.LiveOperation{{ID: id(1), Name: "replay", State: "paused", Why: new(hostile), Total: 1200}},
	}
}

func failedEvent() operator.Event {
	return operator.Event{ID: id(2), EventType: hostile, Status: operator.Failed, Generation: 8, Attempts: 6,
		OccurredAt: start, CreatedAt: *ago(3 * time.Hour), FailedAt: ago(time.Hour), LastError: new(hostile)}
}

// answers are what the pages' own queries return, by kind.
func answers() map[kind]any {
	return map[kind]any{
		groups: operator.ErrorGroups{AsOf: start, Muted: 1, Groups: []operator.ErrorGroup{
			{GroupID: "3fa9c15b2e7d", Handler: "platform.mailer", ErrorClass: "SMTPError", Message: "no answer", Failed: 41,
				Retrying: 2, FirstSeen: *ago(5 * time.Hour), LastSeen: *ago(time.Minute), FirstGeneration: 8, New: true},
			{GroupID: "91ab04c2d7e6", Handler: hostile, ErrorClass: hostile, Message: hostile, Failed: 1, CameBack: 1,
				FirstSeen: *ago(50 * time.Hour), LastSeen: *ago(time.Hour), FirstGeneration: 7}}},
		generations: []operator.Generation{{Generation: 6, Status: "retired"},
			{Generation: 7, Status: "draining", RegisteredAt: ago(90 * time.Hour), Due: 12, OldestDue: ago(time.Hour)},
			{Generation: 8, Status: "live", RegisteredAt: ago(50 * time.Hour), Workers: 2}},
		operations: []operator.Operation{{ID: id(1), Name: "replay", State: operator.OperationPaused, Total: 1200, Acted: 300,
			Delivered: 290, Failed: 8, CreatedAt: *ago(time.Hour), CreatedBy: "anna", Why: new(hostile)}},
		outcome: []operator.OperationRow{{EventID: id(2), Outcome: "failed", Note: new(hostile)}},
		tail: operator.EventPage{AsOf: start, Next: "more", Events: []operator.Event{failedEvent(),
			{ID: id(3), EventType: "decision.recorded", Status: operator.Delivered, Generation: 8, CreatedAt: start}}},
		locks: []operator.Session{{PID: 4711, Login: "app", Application: hostile, State: "active",
			Wait: "Lock: tuple", StartedAt: *ago(2 * time.Minute), HasSnapshot: true, BlockedBy: []int{12},
			Query: "update core.outbox\nset x"}},
		oneEvent: opened{operator.Detail{Event: failedEvent(), Payload: json.RawMessage(`{"a": "\u001b[2J", "b": [1, 2]}`),
			IdempotencyKey: hostile, Handlers: []operator.HandlerState{
				{Handler: "platform.mailer", Stage: "parked", Failures: 2, Class: "SMTPError", Error: hostile},
				{Handler: "worlds.index", Stage: "handled", HandledAt: ago(2 * time.Hour)}},
			FailedAttempts: []operator.FailedAttempt{{Handler: "platform.mailer", StartedAt: *ago(150 * time.Minute)},
				{Handler: "platform.mailer", StartedAt: *ago(time.Hour)}},
			Effects: []operator.Relative{{EventID: id(4), Depth: 1, EventType: hostile, Status: operator.Due}}},
			[]operator.Explanation{{Causes: []operator.Cause{{Code: "failed", Fact: "failed at 13:02: " + hostile,
				Command: "workers events replay " + id(2).String() + " --to 8 --dry-run"}}}}},
	}
}

// model returns a model that has read the fixture.
func model() *Model {
	m := New(context.Background(), nil, Options{Every: time.Second, Plain: true}, start, func() float64 { return 1 })
	m.asked, m.pending = start, true
	m.take(answer{live: fixture(), at: start})
	return m
}

// opensAt makes a page the current one, with its answer.
func opensAt(m *Model, p page) *Model {
	p.sort = -1
	m.show(p)
	if own, ok := answers()[p.kind]; ok {
		m.pending = true
		m.take(answer{page: m.opened, isOwn: true, own: own, at: start})
	}
	return m
}

// press sends keys: by their names, or a character.
func press(m *Model, keys ...string) (last tea.Cmd) {
	special := map[string]tea.Key{"enter": {Code: tea.KeyEnter}, "esc": {Code: tea.KeyEscape},
		"backspace": {Code: tea.KeyBackspace}, "down": {Code: tea.KeyDown}, "up": {Code: tea.KeyUp},
		"space": {Code: tea.KeySpace, Text: " "}, "ctrl+z": {Code: 'z', Mod: tea.ModCtrl}}
	for _, name := range keys {
		key, ok := special[name]
		if !ok {
			key = tea.Key{Code: []rune(name)[0], Text: name}
		}
		_, last = m.Update(tea.KeyPressMsg(key))
	}
	return last
}

func golden(t *testing.T, name, frame string) {
	t.Helper()
	file := filepath.Join("testdata", name+".txt")
	if *update {
		if err := os.WriteFile(file, []byte(frame+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file) //nolint:gosec // of this package
	if err != nil {
		t.Fatal(err)
	}
	if frame+"\n" != string(want) {
		t.Errorf("%s: go test -update writes it; the frame is\n%s", file, frame)
	}
}

// checkFits fails if a frame has another size, or anything that a terminal may act on.
func checkFits(t *testing.T, frame string, width, height int) {
	t.Helper()
	lines := strings.Split(frame, "\n")
	if height > 0 && len(lines) != height {
		t.Errorf("%d lines, want %d", len(lines), height)
	}
	for _, line := range lines {
		if ansi.StringWidth(line) > width {
			t.Errorf("%d columns, want at most %d: %s", ansi.StringWidth(line), width, line)
		}
		for _, r := range line {
			if !unicode.IsGraphic(r) {
				t.Errorf("%q reaches the terminal: %q", r, line)
			}
		}
	}
}

func TestFrames(t *testing.T) {
	t.Parallel()
	for _, size := range [][2]int{{80, 24}, {120, 40}, {200, 50}} {
		frame := model().Frame(size[0], size[1])
		checkFits(t, frame, size[0], size[1])
		golden(t, fmt.Sprintf("types-%d", size[0]), frame)
	}
	for k := types; k <= oneEvent; k++ {
		m := opensAt(model(), page{kind: k, title: "events of " + hostile, id: id(2)})
		frame := m.Frame(80, 24)
		checkFits(t, frame, 80, 24)
		golden(t, fmt.Sprintf("view-%d", k), frame)
		checkFits(t, m.Frame(200, 50), 200, 50)
	}
	unfolded := opensAt(model(), page{kind: oneEvent, id: id(2)})
	press(unfolded, "enter", "G")
	golden(t, "payload", unfolded.Frame(80, 30))
	helped := model()
	press(helped, "?")
	golden(t, "help", helped.Frame(80, 24))
	ascii := model()
	ascii.ASCII = true
	golden(t, "ascii", ascii.Frame(80, 24))
}
