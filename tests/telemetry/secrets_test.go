package telemetry_test

import (
	"bytes"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"spectral/internal/app"
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
	const trace = "4bf92f3577b34da6a3ce929d0e0e4736"
	p.exec(publishSQL, "refused "+canary, "00-"+trace+"-00f067aa0ba902b7-01")
	p.settled()
	// an error of the server's state, in the words of a handler's trigger
	p.exec(`create or replace function public.refuse() returns trigger language plpgsql as $$ begin
			if nextval('public.full') = 1 then raise exception 'no room for %', new.title using errcode = '53100'; end if;
			return new;
		end $$;
		create sequence public.full; grant usage on sequence public.full to public`)
	p.exec(publishSQL, "refused "+canary, nil)
	p.settled()
	if !strings.Contains(p.log.String(), `"sqlstate":"53100"`) {
		t.Error("the error of the server's state was not logged")
	}
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
			if len(event.Breadcrumbs) != 1 || about["event_id"] == "" || event.Contexts["trace"]["trace_id"] != trace {
				t.Errorf("the report is %s", line)
			}
		}
	}
	if reported != 1 {
		t.Errorf("%d reports for one failed event", reported)
	}
}

// That Sentry does not take a report is logged, without its answer; and that there are many of one kind, of which it is
// sent some.
func TestReportsThatAreNotTakenAreLogged(t *testing.T) {
	t.Parallel()
	sentry := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, "canary", http.StatusInternalServerError)
	}))
	defer sentry.Close()
	p := start(t, func(s *app.Settings) { s.SentryDSN = strings.Replace(sentry.URL, "://", "://canary@", 1) + "/1" })
	p.refuse()
	p.exec("select "+strings.TrimPrefix(publishSQL, "select ")+" from generate_series(1, 30)", "refused", nil)
	p.settled()
	p.shutdown()
	log := p.log.String()
	if !strings.Contains(log, `only some were reported to Sentry","service":"workers","generation":1,"not_reported":10`) {
		t.Errorf("the log does not count what was not reported: %s", log)
	}
	if !strings.Contains(log, `"message":"failed events were not reported to Sentry","service":"workers","generation":1,`+
		`"reason":"it answers 500 Internal Server Error"`) || strings.Contains(log, "canary") {
		t.Errorf("the log is %s", log)
	}
}
