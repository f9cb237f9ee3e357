package telemetry_test

import (
	"maps"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"spectral/tests/pgtest"
)

// scrape returns the metrics of /metrics by name.
func (p *process) scrape() map[string]*dto.MetricFamily {
	p.t.Helper()
	status, text := p.get("/metrics")
	if status != http.StatusOK {
		p.t.Fatalf("%d: %s", status, text)
	}
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(strings.NewReader(text))
	must(p.t, err)
	return families
}

// value returns the sum of the series of a metric that have all these labels.
func value(f *dto.MetricFamily, labels ...string) (sum float64) {
	for _, m := range f.GetMetric() {
		var have []string
		for _, l := range m.GetLabel() {
			have = append(have, l.GetName()+"="+l.GetValue())
		}
		if !slices.ContainsFunc(labels, func(l string) bool { return !slices.Contains(have, l) }) {
			sum += m.GetCounter().GetValue() + m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount())
		}
	}
	return sum
}

var documented = regexp.MustCompile("(?m)^\\| `([a-z0-9._]+)` \\| `([a-z0-9_]+)` \\|")

// documentedMetrics returns Prometheus' names of the metrics in docs/telemetry.md.
func documentedMetrics(t *testing.T) (names []string) {
	t.Helper()
	page, err := os.ReadFile("../../docs/telemetry.md")
	must(t, err)
	for _, match := range documented.FindAllStringSubmatch(string(page), -1) {
		names = append(names, match[2])
	}
	return names
}

// The metrics are those of docs/telemetry.md, by both names.
func TestMetricsAreDocumented(t *testing.T) {
	t.Parallel()
	p := start(t, nil)
	p.work()
	if !pgtest.Eventually(testTimeout, func() bool { return p.scrape()["spectral_outbox_rows"] != nil }) {
		t.Fatal("the database's metrics do not appear")
	}
	page, err := os.ReadFile("../../docs/telemetry.md")
	must(t, err)
	inDocs := documentedMetrics(t)
	rare := map[string]bool{} // of which there is nothing to tell here
	for _, match := range regexp.MustCompile("(?m)^\\| `[a-z0-9._]+` \\| `([a-z0-9_]+)` .*\\(only once there is one\\)").
		FindAllStringSubmatch(string(page), -1) {
		rare[match[1]] = true
	}
	have := p.scrape()
	delete(have, "target_info")
	maps.DeleteFunc(have, func(name string, _ *dto.MetricFamily) bool {
		return strings.HasPrefix(name, "go_") || strings.HasPrefix(name, "process_")
	})
	for _, name := range slices.Sorted(maps.Keys(have)) {
		if !slices.Contains(inDocs, name) {
			t.Errorf("docs/telemetry.md does not have %s: %s", name, have[name].GetHelp())
		}
	}
	for _, name := range inDocs {
		if have[name] == nil && !rare[name] {
			t.Errorf("docs/telemetry.md has %s, which no worker has", name)
		}
	}
}

// work publishes and handles events, one of which fails.
func (p *process) work() {
	p.t.Helper()
	must(p.t, p.demo.RunFlows(p.ctx, []string{"cards"}))
	p.exec(publishSQL, "a card", nil)
	p.refuse()
	p.exec(publishSQL, "refused", nil)
	p.settled()
}

func TestMetricsCountEvents(t *testing.T) {
	t.Parallel()
	p := start(t, nil)
	before := p.scrape()
	p.work()
	p.exec(publishSQL, "later", nil)
	p.settled()
	now := p.scrape()
	const ofType = "messaging_destination_name=worlds.world_model_card.published"
	for _, c := range []struct {
		metric string
		labels []string
		want   float64
	}{
		{"messaging_client_consumed_messages_total", []string{ofType}, 4},
		{"spectral_events_settled_total", []string{ofType, "spectral_outcome=delivered"}, 3},
		{"spectral_events_settled_total", []string{ofType, "spectral_outcome=failed"}, 1},
		{"spectral_events_handled_total",
			[]string{ofType, "messaging_consumer_group_name=platform.world_model_card_projector"}, 3},
		{"messaging_process_duration_seconds", []string{ofType, "error_type=IntegrityError"}, 1},
	} {
		if have := value(now[c.metric], c.labels...) - value(before[c.metric], c.labels...); have < c.want {
			t.Errorf("%s %v: %g, want at least %g", c.metric, c.labels, have, c.want)
		}
	}
	if have := value(now["spectral_pickup_duration_seconds"], ofType); have < 4 {
		t.Errorf("the pickup of %g events was measured", have)
	}
}
