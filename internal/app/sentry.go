package app

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/getsentry/sentry-go"
	"go.uber.org/fx"

	"spectral/internal/core/telemetry"
)

// failureReporter reports events that became dead letters to Sentry.
type failureReporter struct{ client *sentry.Client } // nil: nowhere

// sentryFlush is how long the end of a process waits for reports to be sent.
const sentryFlush = 2 * time.Second

// newFailureReporter returns the reporter of a process, which ends with it.
func newFailureReporter(lifecycle fx.Lifecycle, s Settings, log *slog.Logger) (*failureReporter, error) {
	if s.SentryDSN == "" {
		return &failureReporter{}, nil
	}
	client, err := sentry.NewClient(sentry.ClientOptions{
		Dsn: s.SentryDSN, Environment: fmt.Sprintf("generation %d", s.Generation), SampleRate: 1,
		// they would send what this process was started with
		Integrations: func([]sentry.Integration) []sentry.Integration { return nil },
	})
	if err != nil { // it may quote the key
		return nil, settingsError("%s: it is not the DSN of a project: want https://key@host/project", EnvSentryDSN)
	}
	lifecycle.Append(fx.StopHook(func() { client.Flush(sentryFlush) }))
	log.InfoContext(context.Background(), "failed events are reported to Sentry")
	return &failureReporter{client}, nil
}

// report sends an event to Sentry, and a breadcrumb with it. Of last_error it sends the classes and handlers: the rest
// may quote a payload.
func (r *failureReporter) report(_ context.Context, e telemetry.FailedEvent) {
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
	scope := sentry.NewScope()
	scope.AddBreadcrumb(&sentry.Breadcrumb{
		Category: "outbox", Level: sentry.LevelError, Message: "event failed", Data: data, Timestamp: time.Now(),
	}, 1)
	scope.SetContext("event", data)
	scope.SetTags(map[string]string{"event_type": e.EventType, "source": string(e.Source)})
	scope.SetFingerprint(append([]string{e.EventType}, classes...))
	event := sentry.NewEvent()
	event.Level, event.Message = sentry.LevelError, "event failed: "+e.EventType
	r.client.CaptureEvent(event, nil, scope)
}
