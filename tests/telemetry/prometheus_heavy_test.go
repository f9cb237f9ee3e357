//go:build heavy

package telemetry_test

import (
	"encoding/json"
	"maps"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"spectral/tests/pgtest"
)

// A real Prometheus scrapes a worker, and raises the alerts of an incident that is made by hand. Here they wait for
// nothing, so that the test does not.
func TestPrometheusRaisesTheAlerts(t *testing.T) {
	t.Parallel()
	program, err := exec.LookPath("prometheus")
	if err != nil {
		t.Skip("prometheus is not installed: it is in the package of that name of Debian")
	}
	p := start(t, nil)
	address := pgtest.FreeAddress(t)
	p.prometheus(program, address)
	raised := func() map[string]bool {
		names := make(map[string]bool)
		for _, alert := range p.ask(address, `ALERTS{alertstate="firing"}`) {
			names[alert["alertname"]] = true
		}
		return names
	}
	if !pgtest.Eventually(testTimeout/4, func() bool {
		return len(p.ask(address, "spectral_outbox_rows")) > 0 && len(raised()) == 0
	}) {
		t.Fatalf("without an incident there are the alerts %v", raised())
	}
	// one event fails and expires soon, one of a generation without workers has been due for an hour, and one is
	// quarantined; that one of a paused type waits is none
	p.refuse()
	p.exec(publishSQL, "refused", nil)
	p.settled()
	p.exec("update core.outbox set occurred_at = now() - interval '40 days', claimed_at = now() - interval '40 days' " +
		"where status = 'failed'")
	p.exec("select core.event_type_pause('worlds.world_model_card.published', $1)", pgtest.Generation)
	p.exec(publishSQL, "late", nil)
	p.exec("update core.outbox set available_at = now() - interval '1 hour', generation = 9 where status = 'pending'")
	p.exec(publishSQL, "paused", nil)
	p.exec("update core.outbox set available_at = now() - interval '1 hour' where generation <> 9 and status = 'pending'")
	p.exec("insert into core.quarantined_events (id, occurred_at, event_type, generation, reason) " +
		"select gen_random_uuid(), occurred_at, event_type, generation, 'by hand' from core.outbox limit 1")
	want := []string{
		"SpectralEventsFailed", "SpectralEventsLate", "SpectralEventsQuarantined", "SpectralFailedEventsExpire",
	}
	if !pgtest.Eventually(testTimeout/2, func() bool { return len(raised()) >= len(want) }) {
		_, metrics := p.get("/metrics")
		t.Errorf("not all alerts are raised in time:\n%s", metrics)
	}
	if have := slices.Sorted(maps.Keys(raised())); !slices.Equal(have, want) {
		t.Errorf("the incident raises %v, want %v", have, want)
	}
	p.shutdown()
	if !pgtest.Eventually(testTimeout/4, func() bool { return raised()["SpectralNoWorker"] }) {
		t.Error("that no worker is left raises no alert")
	}
}

// prometheus starts a Prometheus on address that scrapes p each second.
func (p *process) prometheus(program, address string) {
	p.t.Helper()
	rules, err := os.ReadFile(deploy + "prometheus/rules.yaml")
	must(p.t, err)
	dir := p.t.TempDir()
	for name, text := range map[string]string{
		"rules.yaml": regexp.MustCompile(`(?m)^ *for: .*\n`).ReplaceAllString(string(rules), "        for: 2s\n"),
		"prometheus.yaml": "global: {scrape_interval: 1s, evaluation_interval: 1s}\nrule_files: [rules.yaml]\n" +
			"scrape_configs: [{job_name: spectral, static_configs: [{targets: ['" + strings.TrimPrefix(p.http, "http://") + "']}]}]",
	} {
		must(p.t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	cmd := exec.CommandContext(p.ctx, program, //nolint:gosec // of this test
		"--config.file="+filepath.Join(dir, "prometheus.yaml"), "--storage.tsdb.path="+dir, "--web.listen-address="+address)
	cmd.Stdout, cmd.Stderr = p.t.Output(), p.t.Output()
	must(p.t, cmd.Start())
	p.t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
}

// ask returns the results of a query of the Prometheus on address; nil if it does not answer.
func (p *process) ask(address, query string) (results []map[string]string) {
	p.t.Helper()
	answer, err := http.Get("http://" + address + "/api/v1/query?query=" + url.QueryEscape(query)) //nolint:noctx,gosec // ours
	if err != nil {
		return nil // it is starting
	}
	defer func() { _ = answer.Body.Close() }()
	var body struct {
		Data struct {
			Result []struct{ Metric map[string]string }
		}
	}
	if json.NewDecoder(answer.Body).Decode(&body) != nil {
		return nil
	}
	for _, r := range body.Data.Result {
		results = append(results, r.Metric)
	}
	return results
}
