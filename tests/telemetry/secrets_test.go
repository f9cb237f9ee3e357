package telemetry_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"regexp"
	"strings"
	"testing"

	"spectral/internal/app"
	"spectral/tests/pgtest"
)

// What is private is in no log, trace, metric or report: a payload, the text of an error, the password of the database,
// the keys of the receivers.
func TestSecretsAreNotTold(t *testing.T) {
	const canary = "canary7431"
	collector, sentry := newReceiver(t), newReceiver(t)
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.URL)
	t.Setenv("OTEL_EXPORTER_OTLP_HEADERS", "api-key="+canary+","+canary) // the second is malformed
	p := start(t, func(s *app.Settings) {
		s.SentryDSN = strings.Replace(sentry.URL, "://", "://"+canary+"@", 1) + "/1"
		s.PoolURL += "&application_name=" + canary
		s.DatabaseURL = s.PoolURL
	})
	p.refuse()
	p.exec(publishSQL, "refused "+canary, nil)
	p.settled()
	_, metrics := p.get("/metrics")
	p.shutdown()
	outputs := map[string][]byte{"the log": []byte(p.log.String()), "/metrics": []byte(metrics)}
	for path, bodies := range collector.bodies {
		outputs[path] = bytes.Join(bodies, nil)
	}
	reports := sentry.all("/api/1/envelope/")
	for path, bodies := range sentry.bodies {
		// the envelope's header repeats the DSN, as Sentry's protocol has it
		for i, body := range bodies {
			_, bodies[i], _ = bytes.Cut(body, []byte("\n"))
		}
		outputs["sentry "+path] = bytes.Join(bodies, nil)
	}
	for where, text := range outputs {
		if len(text) == 0 || bytes.Contains(text, []byte(canary)) {
			t.Errorf("%s has a secret, or nothing: %s", where, text)
		}
	}
	if len(outputs) < 5 {
		t.Errorf("%d outputs were looked at", len(outputs))
	}
	reported := 0
	for _, report := range reports {
		for line := range bytes.Lines(report) {
			var event struct {
				Message     string                    `json:"message"`
				Breadcrumbs []struct{ Data, X any }   `json:"breadcrumbs"`
				Contexts    map[string]map[string]any `json:"contexts"`
			}
			if json.Unmarshal(line, &event) != nil || event.Message == "" {
				continue
			}
			reported++
			about := event.Contexts["event"]
			for key, want := range map[string]any{
				"event_type": "worlds.world_model_card.published", "source": "worlds", "target": "", "attempts": 1.0,
				"handler_name": "platform.world_model_card_projector",
				"last_error":   "IntegrityError: platform.world_model_card_projector",
			} {
				if about[key] != want {
					t.Errorf("%s is %v, want %v", key, about[key], want)
				}
			}
			if len(event.Breadcrumbs) != 1 || about["event_id"] == "" {
				t.Errorf("the report is %s", line)
			}
		}
	}
	if reported != 1 {
		t.Errorf("%d reports for one failed event", reported)
	}
}

func TestHealth(t *testing.T) {
	t.Parallel()
	p := start(t, nil)
	p.work()
	for _, path := range []string{"/healthz", "/readyz"} {
		if status, text := p.get(path); status != http.StatusOK || text != "ok\n" {
			t.Errorf("%s: %d %s", path, status, text)
		}
	}
	// without a database the process lives, and is not ready
	other := pgtest.Conn(t, pgtest.Server(t).URL("postgres"))
	var name string
	must(t, p.admin.QueryRow(p.ctx, "select current_database()").Scan(&name))
	connections := func(allowed bool) {
		_, err := other.Exec(p.ctx, fmt.Sprintf("alter database %s allow_connections %t", name, allowed))
		must(t, err)
	}
	connections(false)
	defer connections(true)
	p.exec("select pg_terminate_backend(pid) from pg_stat_activity where datname = current_database() and pid <> " +
		"pg_backend_pid()")
	if !pgtest.Eventually(testTimeout, func() bool {
		status, text := p.get("/readyz")
		return status == http.StatusServiceUnavailable && strings.HasPrefix(text, "reconnecting: ")
	}) {
		t.Error("without a database it is ready")
	}
	if status, text := p.get("/healthz"); status != http.StatusOK {
		t.Errorf("without a database: %d %s", status, text)
	}
	connections(true)
	if !pgtest.Eventually(testTimeout, func() bool { status, _ := p.get("/readyz"); return status == http.StatusOK }) {
		t.Error("with the database back it is not ready")
	}
	if status, _ := p.get("/nothing"); status != http.StatusNotFound {
		t.Errorf("an unknown page: %d", status)
	}
}

// Without an address a worker takes a free port where the default is taken; an address that is set and taken is an
// error that says so.
func TestTheAddressMayBeTaken(t *testing.T) {
	t.Parallel()
	first := start(t, func(s *app.Settings) { s.HTTPAddr = "" })
	second := start(t, func(s *app.Settings) { s.HTTPAddr = "" })
	address := func(p *process) (address string) {
		pattern := regexp.MustCompile(`"url":"http://([^"]+)"`)
		pgtest.Eventually(testTimeout, func() bool {
			found := pattern.FindStringSubmatch(p.log.String())
			if found != nil {
				address = found[1]
			}
			return found != nil
		})
		return address
	}
	one, two := address(first), address(second)
	if one == "" || one == two {
		t.Fatalf("the logs name %q and %q", one, two)
	}
	worker, _ := app.NewWorker(app.Settings{
		DatabaseURL: first.url, PoolURL: first.url, Generation: pgtest.Generation, BriefingsDir: t.TempDir(),
		HTTPAddr: one,
	}, slog.New(slog.DiscardHandler))
	err := worker.Start(first.ctx)
	if !errors.As(err, new(*app.SettingsError)) || !strings.HasPrefix(err.Error(), "SPECTRAL_HTTP_ADDR: ") {
		t.Errorf("an address that is taken: %v", err)
	}
}
