package demo

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	dto "github.com/prometheus/client_model/go"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
)

// RunTelemetry publishes one card, and shows its trace and the metrics of this process once it has arrived.
func (d Demo) RunTelemetry(ctx context.Context) error {
	s := d.stage()
	for c := range madeUp() {
		if _, err := s.Publish.Publish(ctx, s.Workspace, c.WorldModelCard); err != nil {
			return err
		}
		break
	}
	_, _ = fmt.Fprintln(d.Out, "event:")
	if err := s.Settled(ctx, 1); err != nil {
		return err
	}
	_, _ = fmt.Fprintln(d.Out, "trace, as OTEL_EXPORTER_OTLP_ENDPOINT sends it to a collector:")
	spans := d.Spans.Ended()
	slices.SortFunc(spans, func(a, b sdktrace.ReadOnlySpan) int { return a.StartTime().Compare(b.StartTime()) })
	for _, span := range spans {
		if !span.Parent().IsValid() {
			s.Say("trace %s", span.SpanContext().TraceID())
			s.showSpans(spans, span, span.StartTime(), 0)
		}
	}
	_, _ = fmt.Fprintln(d.Out, "metrics that are not zero, as /metrics has them:")
	families, err := d.Metrics.Gather()
	for _, family := range families {
		s.showMetric(family)
	}
	return err
}

// showSpans says a span and, below it, its children.
func (s *Stage) showSpans(all []sdktrace.ReadOnlySpan, span sdktrace.ReadOnlySpan, since time.Time, depth int) {
	s.Say("%s%-*s from %s on, took %s", strings.Repeat("  ", depth), 46-2*depth, span.Name(),
		milliseconds(span.StartTime().Sub(since)), milliseconds(span.EndTime().Sub(span.StartTime())))
	for _, child := range all {
		if child.Parent().SpanID() == span.SpanContext().SpanID() && child.SpanKind() != trace.SpanKindUnspecified {
			s.showSpans(all, child, since, depth+1)
		}
	}
}

// showMetric says the series of a metric that are not zero.
func (s *Stage) showMetric(family *dto.MetricFamily) {
	name := family.GetName()
	if !strings.HasPrefix(name, "messaging_") && !strings.HasPrefix(name, "spectral_") ||
		strings.HasPrefix(name, "spectral_backlog") { // which is read every 30 s: it is of before
		return
	}
	for _, m := range family.GetMetric() {
		var labels []string
		for _, label := range m.GetLabel() {
			labels = append(labels, fmt.Sprintf("%s=%q", label.GetName(), label.GetValue()))
		}
		value := cmp.Or(m.GetCounter().GetValue(), m.GetGauge().GetValue())
		text := fmt.Sprintf("%g", value)
		if h := m.GetHistogram(); h.GetSampleCount() > 0 {
			value = float64(h.GetSampleCount())
			text = fmt.Sprintf("%d times, %.4g on average", h.GetSampleCount(), h.GetSampleSum()/value)
		}
		if value != 0 {
			s.Say("%s{%s} %s", name, strings.Join(labels, ","), text)
		}
	}
}
