package console

import (
	"encoding/xml"
	"flag"
	"html/template"
	"io"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"spectral/internal/core/events/infrastructure/postgres/operator"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// live is a small system, with the hostile name at some places.
func live(busy float64) operator.Live {
	paused := fixtureNow
	some := func(name string, due int) operator.LiveType {
		return operator.LiveType{EventType: name, Generation: 8, Due: due, PublishedPerSecond: busy, Handled: []int64{1}}
	}
	l := operator.Live{At: fixtureNow, Types: []operator.LiveType{some("a.made", 1), some("b.made", 20_000),
		some(hostile, 0),
		{EventType: "old", Generation: 7}, {EventType: "quiet.made", Generation: 8}}}
	l.Types[1].PausedAt = &paused
	for _, h := range []operator.LiveHandler{{Handler: "z.first", EventType: "a.made", HandledPerSecond: busy, Calls: 100},
		{Handler: "a.second", EventType: "b.made", Breaker: "open"},
		{Handler: "m.third", EventType: "a.made", Calls: 10, FailedCalls: 1},
		{Handler: "m.third", EventType: hostile, Calls: 10}, {Handler: "unknown", EventType: "nothing"}} {
		h.Generation = 8
		if h.Breaker == "" {
			h.Breaker = "closed"
		}
		l.Handlers = append(l.Handlers, h)
	}
	return l
}

var sources = map[string]string{"a.made": "worlds", "b.made": "platform"}

func TestChartsLookAsBefore(t *testing.T) {
	t.Parallel()
	second := fixtureNow.Add(time.Second)
	late := fixtureNow.Add(90 * time.Second)
	event := operator.Detail{Event: operator.Event{CreatedAt: fixtureNow, FailedAt: &late},
		Handlers: []operator.HandlerState{{Handler: "a.done", Stage: "handled", HandledAt: &second},
			{Handler: hostile, Stage: "parked"}},
		FailedAttempts: []operator.FailedAttempt{{Handler: hostile, Attempt: 1, StartedAt: second, DurationMs: 40_000,
			ErrorClass: hostile},
			{Handler: "gone.handler", Attempt: 2, StartedAt: late, DurationMs: 3, ErrorClass: "E"}}}
	for name, chart := range map[string]template.HTML{
		"sparkline":       sparkline(hostile, []int64{0, 5, 10, -3}, []int64{1, 2}),
		"sparkline-empty": sparkline("", nil, nil),
		"bar":             bar("progress", 10, "ok", 4, "bad", 3, "skip", 99),
		"bar-empty":       bar("", 0, "ok", -1),
		"lanes":           lanes(event),
		"lanes-empty":     lanes(operator.Detail{}),
		"topology":        topologyChart(topologyOf(live(10), 8, sources)),
		"topology-empty":  topologyChart(topology{}),
	} {
		golden := "testdata/" + name + ".svg"
		if *update {
			if err := os.WriteFile(golden, []byte(chart), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(golden)
		if err != nil || string(want) != string(chart) {
			t.Errorf("%s differs (%v): go test ./internal/app/console -update, and look at it", golden, err)
		}
		d := xml.NewDecoder(strings.NewReader(string(chart)))
		for err = error(nil); err == nil; {
			_, err = d.Token()
		}
		if err != io.EOF { //nolint:errorlint // the decoder returns it as it is
			t.Errorf("%s is not XML: %v", name, err)
		}
		if wrong := regexp.MustCompile(`NaN|Inf|="-`).FindString(string(chart)); wrong != "" {
			t.Errorf("%s has a place that is no number, or outside", name)
		}
	}
}

// Rates change, positions do not.
func TestTopologyDoesNotMove(t *testing.T) {
	t.Parallel()
	order := func(g topology) (names []string) {
		for _, column := range g.Columns {
			for _, n := range column {
				names = append(names, n.Name)
			}
		}
		return names
	}
	idle, busy := live(0), live(1e9)
	slices.Reverse(busy.Types)
	slices.Reverse(busy.Handlers)
	before, after := order(topologyOf(idle, 8, sources)), order(topologyOf(busy, 8, sources))
	if !slices.Equal(before, after) {
		t.Errorf("%.200q became %.200q", before, after)
	}
	if want := []string{"platform", "unknown", "worlds", "b.made"}; !slices.Equal(before[:4], want) {
		t.Errorf("the first columns are %.300q", before)
	}
}
