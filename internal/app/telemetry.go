package app

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/exaring/otelpgx"
	"github.com/go-logr/logr"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"go.opentelemetry.io/contrib/exporters/autoexport"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	promexporter "go.opentelemetry.io/otel/exporters/prometheus"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/metric/noop"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.uber.org/fx"

	"spectral/internal/core/events"
	"spectral/internal/core/events/infrastructure/postgres/notify"
	"spectral/internal/core/events/infrastructure/postgres/pgtx"
	"spectral/internal/core/telemetry"
)

// providers are where the spans and metrics of a process go: to /metrics, and wherever OTEL_* says.
type providers struct {
	registry *prometheus.Registry
	metrics  *sdkmetric.MeterProvider
	traces   *sdktrace.TracerProvider // nil: nowhere
}

// maxSeries is how many series a metric may have: 200 types with the handlers and error classes of each.
const maxSeries = 20_000

// exported reports whether OTEL_* says where traces and metrics go. With other variables alone, such as
// OTEL_SERVICE_NAME, the SDK would try a collector on this host.
func exported() (traces, metrics bool) {
	on := !strings.EqualFold(os.Getenv("OTEL_SDK_DISABLED"), "true")
	both := os.Getenv("OTEL_EXPORTER_OTLP_ENDPOINT")
	traces = both+os.Getenv("OTEL_TRACES_EXPORTER")+os.Getenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT") != ""
	metrics = both+os.Getenv("OTEL_METRICS_EXPORTER")+os.Getenv("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT") != "" &&
		os.Getenv("OTEL_METRICS_EXPORTER") != "prometheus" // /metrics is served in any case
	return on && traces, on && metrics
}

// newProviders returns the providers of a process, which end with it. Wrong values of OTEL_* are a [*SettingsError].
func newProviders(lifecycle fx.Lifecycle, s Settings, log *slog.Logger) (*providers, error) {
	ctx := context.Background() // exporters connect later
	otel.SetErrorHandler(otel.ErrorHandlerFunc(rarely(func(err error) {
		log.WarnContext(ctx, "OpenTelemetry reports a problem", logReason, quietReason(err))
	})))
	otel.SetLogger(logr.New(&quietSink{log: log}))
	generation := attribute.Int64("spectral.generation", int64(s.Generation))
	own, err := resource.New(ctx, resource.WithTelemetrySDK(), resource.WithHost(),
		resource.WithAttributes(attribute.String("service.name", service), generation,
			attribute.String("service.instance.id", uuid.NewString()), attribute.String("service.version", Version())),
		resource.WithFromEnv())
	if err != nil {
		return nil, settingsError("OTEL_RESOURCE_ATTRIBUTES: want key=value, joined by commas") // the error quotes it
	}
	p := &providers{registry: prometheus.NewRegistry()}
	p.registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	scraped, err := promexporter.New(promexporter.WithRegisterer(p.registry), promexporter.WithoutScopeInfo(),
		promexporter.WithResourceAsConstantLabels(attribute.NewAllowKeysFilter(generation.Key)))
	if err != nil {
		return nil, fmt.Errorf("metrics: %w", err)
	}
	options := []sdkmetric.Option{sdkmetric.WithResource(own), sdkmetric.WithReader(scraped),
		sdkmetric.WithCardinalityLimit(maxSeries)}
	traces, metrics := exported()
	if err := checkEndpoints(); err != nil {
		return nil, err
	}
	if metrics {
		reader, err := autoexport.NewMetricReader(ctx)
		if err != nil {
			return nil, settingsError("OTEL_METRICS_EXPORTER or OTEL_EXPORTER_OTLP_PROTOCOL: %w", err)
		}
		options = append(options, sdkmetric.WithReader(reader))
	}
	p.metrics = sdkmetric.NewMeterProvider(options...)
	var spans []sdktrace.TracerProviderOption
	if traces {
		exporter, err := autoexport.NewSpanExporter(ctx)
		if err != nil {
			return nil, settingsError("OTEL_TRACES_EXPORTER or OTEL_EXPORTER_OTLP_PROTOCOL: %w", err)
		}
		if !autoexport.IsNoneSpanExporter(exporter) {
			spans = append(spans, sdktrace.WithBatcher(exporter))
		}
	}
	if s.Spans != nil {
		spans = append(spans, sdktrace.WithSpanProcessor(s.Spans))
	}
	if len(spans) > 0 {
		p.traces = sdktrace.NewTracerProvider(append(spans, sdktrace.WithResource(own))...)
	}
	lifecycle.Append(fx.StopHook(func(ctx context.Context) {
		ctx, cancel := context.WithTimeout(ctx, telemetryFlush)
		defer cancel()
		var flushing sync.WaitGroup // what cannot be exported, the error handler logs
		flushing.Go(func() { _ = p.metrics.Shutdown(ctx) })
		if p.traces != nil {
			flushing.Go(func() { _ = p.traces.Shutdown(ctx) })
		}
		flushing.Wait()
	}))
	return p, nil
}

// rarely returns a function that calls warn once a minute at most.
func rarely(warn func(error)) func(error) {
	var last atomic.Int64
	return func(err error) {
		if now := time.Now().Unix(); now-last.Load() >= 60 {
			last.Store(now)
			warn(err)
		}
	}
}

// checkEndpoints refuses endpoints that an exporter would take, and then not reach.
func checkEndpoints() error {
	for name, value := range map[string]string{
		"OTEL_EXPORTER_OTLP_ENDPOINT":         os.Getenv("OTEL_EXPORTER_OTLP_ENDPOINT"),
		"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT":  os.Getenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"),
		"OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": os.Getenv("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT"),
	} {
		parsed, err := url.Parse(value)
		if value != "" && (err != nil || parsed.Host == "" || parsed.Scheme != "http" && parsed.Scheme != "https") {
			return settingsError("%s: it is not a URL: want http://collector:4318, or https", name)
		}
	}
	return nil
}

// credentials are those within a URL.
var credentials = regexp.MustCompile(`://[^/@\s]*@`)

// quietReason returns the text of an exporter's error without the credentials of a URL and the answer of the receiver,
// which may repeat a header.
func quietReason(err error) string {
	text := err.Error()
	const partial = "partial success"
	text, _, _ = strings.Cut(text, " (body:")
	text, _, _ = strings.Cut(text, " desc = ")
	if before, _, found := strings.Cut(text, partial+":"); found {
		text = before + partial
	}
	return credentials.ReplaceAllString(text, "://")
}

// quietSink logs what OpenTelemetry warns of, such as settings that it ignores, without values, which may be secret.
type quietSink struct {
	logr.LogSink
	log *slog.Logger
}

// Init implements [logr.LogSink].
func (*quietSink) Init(logr.RuntimeInfo) {}

// Enabled implements [logr.LogSink]. 1 is the level of its warnings.
func (*quietSink) Enabled(level int) bool { return level <= 1 }

// Info implements [logr.LogSink].
func (s *quietSink) Info(_ int, message string, _ ...any) {
	s.log.WarnContext(context.Background(), "OpenTelemetry reports a problem", logReason, message)
}

// Error implements [logr.LogSink].
func (s *quietSink) Error(_ error, message string, _ ...any) { s.Info(0, message) }

// gatherer returns the metrics of this process.
func (p *providers) gatherer() prometheus.Gatherer { return p.registry }

// telemetryFlush is how long the end of a process waits for spans and metrics to be exported.
const telemetryFlush = 2 * time.Second

func newTelemetry(p *providers, s Settings, contracts *events.Contracts, failed *failureReporter,
	log *slog.Logger) (*telemetry.Telemetry, error) {
	config := telemetry.Config{Metrics: p.metrics, LogShare: s.LogShare, OnFailed: failed.report}
	if p.traces != nil {
		config.Traces = p.traces
	}
	for _, c := range contracts.All() {
		config.Types = append(config.Types, c.Type)
	}
	_, err := p.metrics.Meter(service).Int64ObservableCounter("spectral.log.dropped", metric.WithUnit("{entry}"),
		metric.WithDescription("Log entries that were dropped, because what reads the log stood still."),
		metric.WithInt64Callback(func(_ context.Context, o metric.Int64Observer) error {
			o.Observe(droppedEntries(log))
			return nil
		}))
	t, failure := telemetry.New(config)
	return t, errors.Join(err, failure)
}

// observeWorker adds the state of a worker to the metrics.
func (p *providers) observeWorker(health *notify.Health) error {
	meter := p.metrics.Meter(service)
	_, err := meter.Int64ObservableGauge("spectral.listener.state", metric.WithUnit("{state}"),
		metric.WithDescription("1 for the state of the worker: listening, polling and so on."),
		metric.WithInt64Callback(func(_ context.Context, o metric.Int64Observer) error {
			state, _ := health.Now()
			o.Observe(1, metric.WithAttributes(attribute.String("spectral.state", string(state))))
			return nil
		}))
	_, unanswered := meter.Float64ObservableGauge("spectral.listener.poll_age", metric.WithUnit("s"),
		metric.WithDescription("How long ago the database last answered a poll of this worker."),
		metric.WithFloat64Callback(func(_ context.Context, o metric.Float64Observer) error {
			o.Observe(time.Since(health.Answered()).Seconds())
			return nil
		}))
	_, failed := meter.Int64ObservableGauge("spectral.worker.stalled", metric.WithUnit("{type}"),
		metric.WithDescription("Event types with due events, none of which was handled for a minute or is running."),
		metric.WithInt64Callback(func(_ context.Context, o metric.Int64Observer) error {
			o.Observe(int64(len(health.Stalled(stalledAfter))))
			return nil
		}))
	return errors.Join(err, unanswered, failed)
}

// observePool adds the connections of a pool to the metrics.
func (p *providers) observePool(pool *pgxpool.Pool, name string) error {
	return otelpgx.RecordStats(pool, otelpgx.WithStatsMeterProvider(p.metrics),
		otelpgx.WithStatsAttributes(attribute.String("pool", name)))
}

// traceStatements adds the statements of a pool to the traces in which they run.
func (p *providers) traceStatements(config *pgxpool.Config) {
	if p.traces != nil {
		config.ConnConfig.Tracer = quietTracer{otelpgx.NewTracer(otelpgx.WithTracerProvider(p.traces),
			otelpgx.WithMeterProvider(noop.NewMeterProvider()), otelpgx.WithDisableSQLStatementInAttributes(),
			otelpgx.WithDisableConnectionDetailsInAttributes(),
			otelpgx.WithSpanNameFunc(statementName))}
	}
}

var queryName = regexp.MustCompile(`^-- name: (\w+)`)

// statementName returns the name that sqlc's file has for a statement, otherwise the first word of it.
func statementName(sql string) string {
	if name := queryName.FindStringSubmatch(sql); name != nil {
		return name[1]
	}
	word, _, _ := strings.Cut(strings.Join(strings.Fields(sql), " "), " ")
	return strings.ToUpper(word)
}

// quietTracer traces statements and batches, not connecting. It tells the class of an error only: the text may quote a
// payload.
type quietTracer struct{ all *otelpgx.Tracer }

// TraceQueryStart implements [pgx.QueryTracer].
func (t quietTracer) TraceQueryStart(ctx context.Context, conn *pgx.Conn,
	data pgx.TraceQueryStartData) context.Context {
	return t.all.TraceQueryStart(ctx, conn, data)
}

// TraceQueryEnd implements [pgx.QueryTracer].
func (t quietTracer) TraceQueryEnd(ctx context.Context, conn *pgx.Conn, data pgx.TraceQueryEndData) {
	data.Err = classOnly(data.Err)
	t.all.TraceQueryEnd(ctx, conn, data)
}

// TraceBatchStart implements [pgx.BatchTracer].
func (t quietTracer) TraceBatchStart(ctx context.Context, conn *pgx.Conn,
	data pgx.TraceBatchStartData) context.Context {
	return t.all.TraceBatchStart(ctx, conn, data)
}

// TraceBatchQuery implements [pgx.BatchTracer].
func (t quietTracer) TraceBatchQuery(ctx context.Context, conn *pgx.Conn, data pgx.TraceBatchQueryData) {
	data.Err = classOnly(data.Err)
	t.all.TraceBatchQuery(ctx, conn, data)
}

// TraceBatchEnd implements [pgx.BatchTracer].
func (t quietTracer) TraceBatchEnd(ctx context.Context, conn *pgx.Conn, data pgx.TraceBatchEndData) {
	data.Err = classOnly(data.Err)
	t.all.TraceBatchEnd(ctx, conn, data)
}

func classOnly(err error) error {
	if err == nil || errors.Is(err, pgx.ErrNoRows) {
		return err
	}
	return errors.New(pgtx.ErrorClass(err))
}
