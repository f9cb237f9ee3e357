package telemetry

import (
	"context"
	"fmt"
	"testing"

	"github.com/google/uuid"
	"go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	"go.opentelemetry.io/otel/trace"

	"spectral/internal/core/events"
)

func TestMalformedTraceparentsAreDropped(t *testing.T) {
	t.Parallel()
	const good = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
	if have := Traceparent(Continue(t.Context(), good)); have != good {
		t.Errorf("%s became %s", good, have)
	}
	for _, bad := range []string{"", "a", good + "a", "ff" + good[2:], good[:36] + "0000000000000000-01",
		"00-00000000000000000000000000000000-00f067aa0ba902b7-01", "00-4BF92F3577B34DA6A3CE929D0E0E4736" + good[35:]} {
		if ctx := Continue(t.Context(), bad); trace.SpanContextFromContext(ctx).IsValid() || Traceparent(ctx) != "" {
			t.Errorf("%q is taken as a traceparent", bad)
		}
	}
}

// All processes log the same share of the events.
func TestLoggedEventsAreAShare(t *testing.T) {
	t.Parallel()
	const n = 10_000
	for share, want := range map[float64][2]int{0: {0, 0}, 0.1: {n / 20, n / 5}, 1: {n, n}} {
		one, err := New(Config{LogShare: share})
		if err != nil {
			t.Fatal(err)
		}
		logged := 0
		for range n {
			if one.Logged(uuid.Must(uuid.NewV7())) {
				logged++
			}
		}
		if logged < want[0] || logged > want[1] {
			t.Errorf("of a share of %g, %d of %d are logged", share, logged, n)
		}
	}
}

// Of 10,000 event types and a million events there are 200 series and another.
func TestSeriesAreBounded(t *testing.T) {
	t.Parallel()
	var types []string
	for n := range 10_000 {
		types = append(types, fmt.Sprintf("worlds.type%05d.happened", n))
	}
	reader := metric.NewManualReader()
	all, err := New(Config{Types: types, Metrics: metric.NewMeterProvider(metric.WithReader(reader))})
	if err != nil {
		t.Fatal(err)
	}
	ctx := t.Context()
	var values []Value
	for i, name := range types {
		c := all.Consumer(name, []events.Registration{{Name: "platform.a"}}, "delivered")
		c.Settled(ctx, "delivered", 1)
		for range 10 {
			var batch []events.Envelope
			for range 10 {
				batch = append(batch, events.Envelope{EventID: uuid.New(), EventType: name})
			}
			_, end := c.Handle(ctx, "platform.a", batch)
			end("")
			all.Inserted(ctx, batch)
		}
		values = append(values, Value{Backlog, name, 1, "due", 1},
			Value{BacklogAge, name, 1, "due", float64(i)})
	}
	all.Read(values)
	series, sums := collect(ctx, t, reader)
	for _, name := range []string{Published, Handled, HandleDuration, Settled, Backlog, BacklogAge} {
		if series[name] != MaxTypes+1 {
			t.Errorf("%s has %d series", name, series[name])
		}
	}
	for name, want := range map[string]float64{
		Published: 1_000_000, Handled: 1_000_000, Settled: 10_000, Backlog: 10_000,
	} {
		if sums[name] != want {
			t.Errorf("%s is %g in all, want %g", name, sums[name], want)
		}
	}
	counted := make(map[[2]string]bool) // perhaps in several minutes
	for _, l := range all.TakeStats() {
		counted[[2]string{l.EventType, l.Handler}] = true
	}
	if len(counted) != 2*(MaxTypes+1) {
		t.Errorf("there are statistics of %d types and handlers", len(counted))
	}
}

// collect returns how many series each metric has, and the sum of their values.
func collect(ctx context.Context, t *testing.T, reader metric.Reader) (series map[string]int, sums map[string]float64) {
	t.Helper()
	var read metricdata.ResourceMetrics
	if err := reader.Collect(ctx, &read); err != nil {
		t.Fatal(err)
	}
	series, sums = make(map[string]int), make(map[string]float64)
	for _, scope := range read.ScopeMetrics {
		for _, m := range scope.Metrics {
			switch data := m.Data.(type) {
			case metricdata.Sum[int64]:
				series[m.Name] = len(data.DataPoints)
				for _, p := range data.DataPoints {
					sums[m.Name] += float64(p.Value)
				}
			case metricdata.Gauge[float64]:
				series[m.Name] = len(data.DataPoints)
				for _, p := range data.DataPoints {
					sums[m.Name] += p.Value
				}
			case metricdata.Histogram[float64]:
				series[m.Name] = len(data.DataPoints)
			}
		}
	}
	return series, sums
}

// What could not be written is kept with what was counted since.
func TestStatsAreKeptUntilTheyAreWritten(t *testing.T) {
	t.Parallel()
	all, err := New(Config{Metrics: metric.NewMeterProvider(), Types: []string{"worlds.a"}})
	if err != nil {
		t.Fatal(err)
	}
	c := all.Consumer("worlds.a", []events.Registration{{Name: "platform.a"}}, "retried")
	handle := func() {
		_, end := c.Handle(t.Context(), "platform.a", make([]events.Envelope, 3))
		end("")
		c.Settled(t.Context(), "retried", 2)
	}
	handle()
	lines := all.TakeStats()
	handle()
	all.AddStats(lines)
	lines = all.TakeStats()
	if len(lines) != 2 || lines[0].Retried != 4 || lines[1].Handled != 6 || all.HasStats() {
		t.Fatalf("the lines are %+v", lines)
	}
	calls := int64(0)
	for _, n := range lines[1].Handling {
		calls += n
	}
	if calls != 2 {
		t.Errorf("%d calls were measured", calls)
	}
}
