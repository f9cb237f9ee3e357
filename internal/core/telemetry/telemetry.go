package telemetry

import (
	"context"
	"encoding/binary"
	"maps"
	"math"
	"slices"

	"github.com/google/uuid"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/metric"
	noopmetric "go.opentelemetry.io/otel/metric/noop"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
	nooptrace "go.opentelemetry.io/otel/trace/noop"

	"spectral/internal/core/events"
)

// Attributes of spans and metrics. Those of messaging.* are OpenTelemetry's.
const (
	System      = attribute.Key("messaging.system")
	Operation   = attribute.Key("messaging.operation.name")
	Kind        = attribute.Key("messaging.operation.type")
	EventType   = attribute.Key("messaging.destination.name")
	HandlerName = attribute.Key("messaging.consumer.group.name")
	MessageID   = attribute.Key("messaging.message.id")
	Count       = attribute.Key("messaging.batch.message_count")
	ErrorType   = attribute.Key("error.type")
	Outcome     = attribute.Key("spectral.outcome")
	Subject     = attribute.Key("spectral.subject")
	Action      = attribute.Key("spectral.action")
)

const (
	scope  = "spectral/internal/core/telemetry"
	system = "spectral"
	// Other stands for every event type beyond the first MaxTypes, so that there are few series.
	Other = "other"
	// MaxTypes is how many event types have separate series.
	MaxTypes = 200
)

// FailedEvent is an event that has become a dead letter.
type FailedEvent struct {
	EventID   uuid.UUID
	EventType string
	Source    events.Scope
	Target    events.Scope
	// Classes are the classes of its errors by handler. A failure of the row itself has the name outbox.
	Classes  map[string]string
	Attempts int
}

// Config of a Telemetry. The zero value records nothing.
type Config struct {
	Traces   trace.TracerProvider
	Metrics  metric.MeterProvider
	Types    []string // of events; the first MaxTypes by name have separate series
	LogShare float64  // of the events, from 0 to 1, whose publishing and handling is logged
	// OnFailed is called for each event that becomes a dead letter, within the trace of its producer if that is known.
	OnFailed func(context.Context, FailedEvent)
}

// Telemetry is what a process records with. Safe for concurrent use.
type Telemetry struct {
	instruments
	database
	stats    stats
	tracer   trace.Tracer
	tracing  bool // otherwise spans go nowhere
	types    map[string]bool
	share    uint64
	onFailed func(context.Context, FailedEvent)
}

// None records nothing, and logs every event.
var None = func() *Telemetry {
	t, err := New(Config{LogShare: 1})
	if err != nil {
		panic(err)
	}
	return t
}()

// New returns a Telemetry.
func New(c Config) (*Telemetry, error) {
	tracing := c.Traces != nil
	if !tracing {
		c.Traces = nooptrace.NewTracerProvider()
	}
	noMetrics := c.Metrics == nil
	if noMetrics {
		c.Metrics = noopmetric.NewMeterProvider()
	}
	meter := c.Metrics.Meter(scope)
	all, err := newInstruments(meter)
	if err != nil {
		return nil, err
	}
	t := &Telemetry{
		instruments: all, tracer: c.Traces.Tracer(scope), tracing: tracing, stats: stats{off: noMetrics},
		types: make(map[string]bool), share: uint64(c.LogShare * math.MaxUint32), onFailed: c.OnFailed,
	}
	for _, name := range firstTypes(c.Types) {
		t.types[name] = true
	}
	return t, t.observe(meter)
}

// firstTypes returns the event types that have separate series.
func firstTypes(types []string) []string {
	unique := make(map[string]bool, len(types))
	for _, name := range types {
		unique[name] = true
	}
	sorted := slices.Sorted(maps.Keys(unique))
	return sorted[:min(len(sorted), MaxTypes)]
}

// name returns the name by which the series of an event type go.
func (t *Telemetry) name(eventType string) attribute.KeyValue {
	if !t.types[eventType] {
		return EventType.String(Other)
	}
	return EventType.String(eventType)
}

// Logged reports whether the publishing and handling of an event is logged. All processes choose the same events.
func (t *Telemetry) Logged(id uuid.UUID) bool {
	return uint64(binary.BigEndian.Uint32(id[12:])) <= t.share && t.share > 0
}

var propagator propagation.TraceContext

const traceparent = "traceparent"

// Continue returns ctx within the trace of a W3C traceparent. One that is malformed is dropped.
func Continue(ctx context.Context, parent string) context.Context {
	if parent == "" {
		return ctx
	}
	return propagator.Extract(ctx, propagation.MapCarrier{traceparent: parent})
}

// Traceparent returns the W3C traceparent of ctx, empty for none.
func Traceparent(ctx context.Context) string {
	if !trace.SpanContextFromContext(ctx).IsValid() {
		return ""
	}
	carrier := propagation.MapCarrier{}
	propagator.Inject(ctx, carrier)
	return carrier[traceparent]
}

// Publish starts the span of a publication of events, which are valid. It has the name of the first one's type.
func (t *Telemetry) Publish(ctx context.Context, envelopes []events.Envelope) (context.Context, trace.Span) {
	if len(envelopes) == 0 || !t.tracing {
		return ctx, trace.SpanFromContext(nil) //nolint:staticcheck // a span that does nothing
	}
	eventType := envelopes[0].EventType
	ctx, span := t.tracer.Start(ctx, "publish "+eventType, trace.WithSpanKind(trace.SpanKindProducer))
	if span.IsRecording() {
		span.SetAttributes(System.String(system), Operation.String("publish"), Kind.String("send"),
			EventType.String(eventType), Count.Int(len(envelopes)))
	}
	return ctx, span
}

// Fail marks a span as failed with an error of class. The error itself may quote a payload.
func Fail(span trace.Span, class string) {
	span.SetStatus(codes.Error, class)
	span.SetAttributes(ErrorType.String(class))
}

// Inserted counts events that were inserted.
func (t *Telemetry) Inserted(ctx context.Context, envelopes []events.Envelope) {
	for i := 0; i < len(envelopes); {
		n := i + 1
		for n < len(envelopes) && envelopes[n].EventType == envelopes[i].EventType {
			n++
		}
		t.published.Add(ctx, int64(n-i), metric.WithAttributes(System.String(system),
			Operation.String("publish"), t.name(envelopes[i].EventType)))
		i = n
	}
}

// Failed passes on that an event has become a dead letter.
func (t *Telemetry) Failed(ctx context.Context, e FailedEvent) {
	if t.onFailed != nil {
		t.onFailed(ctx, e)
	}
}

// Reaped counts an event of a dead worker, or of a lease that ran out.
func (t *Telemetry) Reaped(ctx context.Context, eventType string, failed bool) {
	outcome := "pending"
	if failed {
		outcome = "failed"
	}
	t.reaped.Add(ctx, 1, metric.WithAttributes(t.name(eventType), Outcome.String(outcome)))
}

// Swept counts rows of a subject that a sweep marked or deleted.
func (t *Telemetry) Swept(ctx context.Context, subject, action string, rows int64) {
	t.swept.Add(ctx, rows, metric.WithAttributes(Subject.String(subject), Action.String(action)))
}

// Notified counts a notification.
func (t *Telemetry) Notified(ctx context.Context) { t.notifications.Add(ctx, 1) }

// Reconnected counts a new LISTEN connection.
func (t *Telemetry) Reconnected(ctx context.Context) { t.reconnects.Add(ctx, 1) }

// FoundSilent counts a poll that found due events without a notification.
func (t *Telemetry) FoundSilent(ctx context.Context) { t.silent.Add(ctx, 1) }

// BarrierRefused counts a poll that did not pass the barrier.
func (t *Telemetry) BarrierRefused(ctx context.Context) { t.refusals.Add(ctx, 1) }
