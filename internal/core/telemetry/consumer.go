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
	ofType    metric.MeasurementOption
	outcomes  map[string]metric.MeasurementOption
	handlers  map[string]handlerSeries
}

// handlerSeries are the attributes of a handler's metrics.
type handlerSeries struct {
	set    attribute.Set
	option metric.MeasurementOption
}

// Consumer returns what the consumer of an event type records with.
func (t *Telemetry) Consumer(eventType string, handlers []events.Registration, outcomes ...string) *Consumer {
	named := []attribute.KeyValue{System.String(system), t.name(eventType)}
	option := func(more ...attribute.KeyValue) handlerSeries {
		set := attribute.NewSet(append(more, named...)...)
		return handlerSeries{set, metric.WithAttributeSet(set)}
	}
	c := &Consumer{
		Telemetry: t, eventType: eventType, ofType: option().option,
		outcomes: make(map[string]metric.MeasurementOption), handlers: make(map[string]handlerSeries),
	}
	for _, outcome := range outcomes {
		c.outcomes[outcome] = option(Outcome.String(outcome)).option
	}
	for _, r := range handlers {
		c.handlers[r.Name] = option(HandlerName.String(r.Name))
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
	if !c.pickup.Enabled(ctx) {
		return
	}
	now := time.Now()
	for i := range n {
		c.pickup.Record(ctx, max(now.Sub(dueAt(i)), 0).Seconds(), c.ofType)
	}
}

// Settled counts n events of one outcome.
func (c *Consumer) Settled(ctx context.Context, outcome string, n int) {
	c.settled.Add(ctx, int64(n), c.outcomes[outcome])
}

// Handle starts the span of a call of a handler. That of one event continues the trace of its producer; that of several
// has links to their traces. End ends it; class is that of its error, empty for none.
func (c *Consumer) Handle(ctx context.Context, handler string,
	batch []events.Envelope) (calling context.Context, end func(class string)) {
	started := time.Now()
	options := []trace.SpanStartOption{trace.WithSpanKind(trace.SpanKindConsumer)}
	if len(batch) == 1 {
		ctx = Continue(ctx, batch[0].TraceContext)
	} else if c.tracing {
		for i := range batch {
			if of := trace.SpanContextFromContext(Continue(context.Background(), batch[i].TraceContext)); of.IsValid() {
				options = append(options, trace.WithLinks(trace.Link{SpanContext: of}))
			}
		}
	}
	ctx, span := c.tracer.Start(ctx, "process "+handler, options...)
	if span.IsRecording() {
		span.SetAttributes(System.String(system), Operation.String("process"), EventType.String(c.eventType),
			HandlerName.String(handler))
		if len(batch) == 1 {
			span.SetAttributes(MessageID.String(batch[0].EventID.String()))
		} else {
			span.SetAttributes(Count.Int(len(batch)))
		}
	}
	return ctx, func(class string) {
		series := c.handlers[handler]
		took := time.Since(started).Seconds()
		if class == "" {
			c.handling.Record(ctx, took, series.option)
			c.handled.Add(ctx, int64(len(batch)), series.option)
		} else {
			Fail(span, class)
			c.handling.Record(ctx, took, metric.WithAttributes(append(series.set.ToSlice(), ErrorType.String(class))...))
		}
		span.End()
	}
}
