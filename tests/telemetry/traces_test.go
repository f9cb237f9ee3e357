package telemetry_test

import (
	"encoding/hex"
	"slices"
	"strings"
	"testing"

	spans "go.opentelemetry.io/proto/otlp/trace/v1"
)

const publishSQL = `select core.outbox_publish('worlds.world_model_card.published', 'worlds',
	jsonb_build_object('card_id', $1::text, 'version', 1, 'title', $1::text, 'summary', '', 'attributes', '{}'::jsonb),
	p_trace_context => $2)`

func attribute(span *spans.Span, key string) string {
	for _, a := range span.GetAttributes() {
		if a.GetKey() == key {
			return a.GetValue().GetStringValue()
		}
	}
	return ""
}

func TestTracesReachACollector(t *testing.T) {
	collector := newReceiver(t)
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.URL)
	p := start(t, nil)
	// the first attempt on this card fails, and the retry succeeds
	p.exec(`create sequence public.attempts; grant usage on sequence public.attempts to public;
		create function public.fail_once() returns trigger language plpgsql as $$ begin
			if new.title = 'retried' and nextval('public.attempts') = 1 then
				raise exception 'once' using errcode = '57014';
			end if;
			return new;
		end $$;
		create trigger fail_once before insert on platform.system_cards for each row execute function public.fail_once()`)
	const trace = "4bf92f3577b34da6a3ce929d0e0e4736"
	p.exec(publishSQL, "retried", "00-"+trace+"-00f067aa0ba902b7-01")
	p.settled()
	must(t, p.demo.RunFlows(p.ctx, []string{"decisions", "tasks"}))
	p.settled()
	p.shutdown()
	all := collector.spans(t)
	byID := make(map[string]*spans.Span)
	for _, s := range all {
		byID[string(s.GetSpanId())] = s
	}
	published, process := 0, make(map[string]int)
	var retried []string
	for _, s := range all {
		parent := byID[string(s.GetParentSpanId())]
		switch handler, isProcess := strings.CutPrefix(s.GetName(), "process "); {
		case isProcess:
			process[handler]++
			if hex.EncodeToString(s.GetTraceId()) == trace {
				retried = append(retried, s.GetStatus().GetMessage()+attribute(s, "error.type"))
				if hex.EncodeToString(s.GetParentSpanId()) != "00f067aa0ba902b7" {
					t.Error("the span of an event of SQL is no child of its producer's")
				}
			} else if len(s.GetLinks()) == 0 && (parent == nil || !strings.HasPrefix(parent.GetName(), "publish ")) {
				t.Errorf("%s has the parent %s, not the span of its producer", s.GetName(), parent.GetName())
			}
			for _, link := range s.GetLinks() {
				if of := byID[string(link.GetSpanId())]; of == nil || !strings.HasPrefix(of.GetName(), "publish ") {
					t.Errorf("%s has a link to %s", s.GetName(), of.GetName())
				}
			}
			if s.GetKind() != spans.Span_SPAN_KIND_CONSUMER || attribute(s, "messaging.system") != "spectral" ||
				attribute(s, "messaging.consumer.group.name") != handler {
				t.Errorf("%s is of kind %s with %v", s.GetName(), s.GetKind(), s.GetAttributes())
			}
		case strings.HasPrefix(s.GetName(), "publish "):
			published++
			if s.GetKind() != spans.Span_SPAN_KIND_PRODUCER {
				t.Errorf("%s is of kind %s", s.GetName(), s.GetKind())
			}
		case parent == nil:
			t.Errorf("the statement %s begins a trace", s.GetName())
		}
	}
	if slices.Sort(retried); len(retried) != 2 || retried[0] != "" || retried[1] == "" {
		t.Errorf("an event that is retried once has spans with the errors %q", retried)
	}
	for _, handler := range []string{
		"platform.world_model_card_projector", "platform.decision_recorded_aggregator", "worlds.rule_health_recorder",
		"platform.agent_task_runner",
	} {
		if process[handler] == 0 {
			t.Errorf("no span of %s among %v", handler, process)
		}
	}
	if published == 0 {
		t.Error("no span of a producer in Go")
	}
}
