package telemetry

import (
	"context"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"

	"spectral/internal/core/events"
)

// Consumer records what a consumer of one event type does. Safe for concurrent use.
type Consumer struct {
	*Telemetry
	eventType string
	named     string // of its series: the type, or other
	ofType    metric.MeasurementOption
	outcomes  map[string]metric.MeasurementOption
	handlers  map[string]handlerSeries
}

// handlerSeries are the attributes of a handler's metrics.
type handlerSeries struct {
	name   string // the handler's, or other
	set    attribute.Set
	option metric.MeasurementOption
}

// Consumer returns what the consumer of an event type records with.
func (t *Telemetry) Consumer(eventType string, handlers []events.Registration, outcomes ...string) *Consumer {
	named := []attribute.KeyValue{System.String(system), t.name(eventType)}
	option := func(more ...attribute.KeyValue) handlerSeries {
		set := attribute.NewSet(append(more, named...)...)
		return handlerSeries{set: set, option: metric.WithAttributeSet(set)}
	}
	c := &Consumer{
		Telemetry: t, eventType: eventType, named: t.name(eventType).Value.AsString(),
		ofType:   option(Operation.String("claim")).option,
		outcomes: make(map[string]metric.MeasurementOption), handlers: make(map[string]handlerSeries),
	}
	for _, outcome := range outcomes {
		c.outcomes[outcome] = option(Outcome.String(outcome)).option
	}
	for _, r := range handlers {
		name := r.Name
		if c.named == Other {
			name = Other
		}
		series := option(HandlerName.String(name), Operation.String("handle"))
		series.name = name
		c.handlers[r.Name] = series
	}
	return c
}

// Claimed counts a claim of n events, the i-th of which was due at dueAt(i).
func (c *Consumer) Claimed(ctx context.Context, n int, dueAt func(i int) time.Time) {
	if n == 0 {
		return
	}
	c.claimed.Add(ctx, int64(n), c.ofType)
	c.batch.Record(ctx, int64(n), c.ofType)
	now, took, ofType := time.Now(), make([]float64, n), []metric.RecordOption{c.ofType}
	for i := range n {
		took[i] = max(now.Sub(dueAt(i)), 0).Seconds()
		c.pickup.Record(ctx, took[i], ofType...)
	}
	c.stats.add(c.named, "", func(l *Line) { l.Pickup.add(took...) })
}

// Settled counts n events of one outcome.
func (c *Consumer) Settled(ctx context.Context, outcome string, n int) {
	c.settled.Add(ctx, int64(n), c.outcomes[outcome])
	switch outcome {
	case "retried":
		c.stats.add(c.named, "", func(l *Line) { l.Retried += int64(n) })
	case "failed":
		c.stats.add(c.named, "", func(l *Line) { l.Failed += int64(n) })
	case "delivered":
		c.stats.add(c.named, "", func(l *Line) { l.Handled += int64(n) })
	}
}

// Sent counts events that were sent to a broker, which stored some and did not take the others.
func (c *Consumer) Sent(ctx context.Context, stored, refused int) {
	for outcome, n := range map[string]int{"stored": stored, "refused": refused} {
		if n > 0 {
			c.relayed.Add(ctx, int64(n), metric.WithAttributes(System.String(system), c.name(c.eventType),
				Outcome.String(outcome)))
		}
	}
}

// Handle starts the span of a call of a handler. That of one event continues the trace of its producer; that of several
// has links to their traces. End ends it; class is that of its error, empty for none.
func (c *Consumer) Handle(ctx context.Context, handler string,
	batch []events.Envelope) (calling context.Context, end func(class string)) {
	started := time.Now()
	if len(batch) == 1 {
		ctx = Continue(ctx, batch[0].TraceContext)
	}
	var span trace.Span
	if c.tracing {
		ctx, span = c.startSpan(ctx, handler, batch)
	}
	return ctx, func(class string) {
		series := c.handlers[handler]
		took := time.Since(started).Seconds()
		c.stats.add(c.named, series.name, func(l *Line) {
			l.Handling.add(took)
			if class == "" {
				l.Handled += int64(len(batch))
			} else {
				l.Failed++
			}
		})
		if class == "" {
			c.handling.Record(ctx, took, series.option)
			c.handled.Add(ctx, int64(len(batch)), series.option)
		} else {
			c.handling.Record(ctx, took, metric.WithAttributes(append(series.set.ToSlice(), ErrorType.String(class))...))
		}
		if span != nil {
			if class != "" {
				Fail(span, class)
			}
			span.End()
		}
	}
}

func (c *Consumer) startSpan(ctx context.Context, handler string,
	batch []events.Envelope) (context.Context, trace.Span) {
	options := []trace.SpanStartOption{trace.WithSpanKind(trace.SpanKindConsumer), trace.WithAttributes(
		System.String(system), Operation.String("handle"), Kind.String("process"), EventType.String(c.eventType),
		HandlerName.String(handler))}
	if len(batch) == 1 {
		options = append(options, trace.WithAttributes(MessageID.String(batch[0].EventID.String())))
		return c.tracer.Start(ctx, "process "+handler, options...)
	}
	options = append(options, trace.WithAttributes(Count.Int(len(batch))))
	for i := range batch {
		if of := trace.SpanContextFromContext(Continue(context.Background(), batch[i].TraceContext)); of.IsValid() {
			options = append(options, trace.WithLinks(trace.Link{SpanContext: of}))
		}
	}
	return c.tracer.Start(ctx, "process "+handler, options...)
}
