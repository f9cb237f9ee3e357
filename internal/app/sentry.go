package app

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/getsentry/sentry-go"
	"go.opentelemetry.io/otel/trace"
	"go.uber.org/fx"

	"spectral/internal/core/telemetry"
)

// maxReports is how many events of one type, class and handler are reported in a minute. Sentry's client sends one
// report at a time, and drops what does not fit in its memory.
const maxReports = 20

// maxBreadcrumbs is how many of the latest failures a report has.
const maxBreadcrumbs = 20

// failureReporter reports events that became dead letters to Sentry. Safe for concurrent use.
type failureReporter struct {
	client *sentry.Client // nil: nowhere
	scope  *sentry.Scope  // with the breadcrumbs
	log    *slog.Logger

	mu       sync.Mutex
	since    time.Time      // when the minute began
	reported map[string]int // in it, by type, classes and handlers
	left     int            // failures in it that were not reported
}

// sentryFlush is how long the end of a process waits for reports to be sent.
const sentryFlush = 2 * time.Second

// newFailureReporter returns the reporter of a process, which ends with it.
func newFailureReporter(lifecycle fx.Lifecycle, s Settings, log *slog.Logger) (*failureReporter, error) {
	if s.SentryDSN == "" {
		return &failureReporter{}, nil
	}
	client, err := sentry.NewClient(sentry.ClientOptions{
		Dsn: s.SentryDSN, Environment: fmt.Sprintf("generation %d", s.Generation), SampleRate: 1,
		HTTPTransport: watchedTransport{rarely(func(err error) {
			log.WarnContext(context.Background(), "failed events were not reported to Sentry", logReason, quietReason(err))
		})},
		// they would send what this process was started with
		Integrations: func([]sentry.Integration) []sentry.Integration { return nil },
	})
	if err != nil { // it may quote the key
		return nil, settingsError("%s: it is not the DSN of a project: want https://key@host/project", EnvSentryDSN)
	}
	r := &failureReporter{client: client, scope: sentry.NewScope(), log: log, reported: make(map[string]int)}
	lifecycle.Append(fx.StopHook(func(ctx context.Context) {
		r.mu.Lock()
		r.next(ctx)
		r.mu.Unlock()
		if !client.Flush(sentryFlush) {
			log.WarnContext(ctx, "not all failed events could be reported to Sentry before the end")
		}
	}))
	log.InfoContext(context.Background(), "failed events are reported to Sentry")
	return r, nil
}

// watchedTransport tells warn of reports that are not taken.
type watchedTransport struct{ warn func(error) }

// RoundTrip implements [http.RoundTripper].
func (r watchedTransport) RoundTrip(request *http.Request) (*http.Response, error) {
	answer, err := http.DefaultTransport.RoundTrip(request)
	switch {
	case err != nil:
		r.warn(err)
	case answer.StatusCode >= http.StatusBadRequest:
		r.warn(fmt.Errorf("it answers %s", answer.Status))
	}
	return answer, err
}

// next begins another minute, and logs how many failures were not reported in the last one. The caller holds mu.
func (r *failureReporter) next(ctx context.Context) {
	if r.left > 0 {
		r.log.WarnContext(ctx, "many events failed for the same reason: only some were reported to Sentry", logLeft, r.left)
	}
	r.since, r.left = time.Now(), 0
	clear(r.reported)
}

// take reports whether another event of a group may be reported in this minute.
func (r *failureReporter) take(ctx context.Context, group string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if time.Since(r.since) >= time.Minute {
		r.next(ctx)
	}
	if r.reported[group] >= maxReports {
		r.left++
		return false
	}
	r.reported[group]++
	return true
}

// report sends an event to Sentry, with breadcrumbs of the latest failures. Of last_error it sends the classes and
// handlers: the rest may quote a payload.
func (r *failureReporter) report(ctx context.Context, e telemetry.FailedEvent) {
	if r.client == nil {
		return
	}
	handlers := slices.Sorted(maps.Keys(e.Classes))
	var classes []string
	for _, name := range handlers {
		classes = append(classes, e.Classes[name]+": "+name)
	}
	data := map[string]any{
		"event_id": e.EventID.String(), "event_type": e.EventType, "source": string(e.Source),
		"target": string(e.Target), "handler_name": strings.Join(handlers, ", "),
		"last_error": strings.Join(classes, "\n"), "attempts": e.Attempts,
	}
	r.scope.AddBreadcrumb(&sentry.Breadcrumb{
		Category: "outbox", Level: sentry.LevelError, Message: "event failed", Data: data, Timestamp: time.Now(),
	}, maxBreadcrumbs)
	group := append([]string{e.EventType}, classes...)
	if !r.take(ctx, strings.Join(group, "\n")) {
		return
	}
	scope := r.scope.Clone()
	scope.SetContext("event", data)
	traced := sentry.NewPropagationContext()
	if of := trace.SpanContextFromContext(ctx); of.IsValid() {
		traced.TraceID, traced.SpanID = sentry.TraceID(of.TraceID()), sentry.SpanID(of.SpanID())
	}
	scope.SetPropagationContext(traced)
	scope.SetTags(map[string]string{"event_type": e.EventType, "source": string(e.Source)})
	scope.SetFingerprint(group)
	event := sentry.NewEvent()
	event.Level, event.Message = sentry.LevelError, "event failed: "+e.EventType
	r.client.CaptureEvent(event, nil, scope)
}
