package app

import (
	"cmp"
	"context"
	"io"
	"log/slog"
	"os"

	"github.com/lmittmann/tint"
	"go.opentelemetry.io/otel/trace"
	"golang.org/x/term"

	"spectral/internal/core/events"
)

// The canonical log fields, which every entry has (docs/configuration.md).
const (
	logTimestamp  = "timestamp"
	logMessage    = "message"
	logService    = "service"
	logGeneration = "generation"
	logTraceID    = "trace_id"
	logSpanID     = "span_id"
)

// Further fields.
const (
	logWorkerID = "worker_id"
	logReason   = "reason"
	logDelay    = "delay_ms"
	logLeft     = "not_reported"
	logCount    = "count"
	logURL      = "url"
)

// service is the name of this program in logs, traces and metrics.
const service = "workers"

// NewLogger returns a logger that writes entries with the canonical fields to w: lines for people if w is a terminal,
// otherwise JSON.
func NewLogger(w io.Writer, level slog.Leveler, g events.Generation) *slog.Logger {
	var handler slog.Handler
	if target(w) != nil {
		handler = tint.NewTextHandler(w, &tint.Options{
			Level: level, NoColor: os.Getenv("NO_COLOR") != "",
			ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
				if a.Value.Kind() == slog.KindString && a.Value.String() == "" {
					return slog.Attr{}
				}
				return a
			},
		})
	} else {
		names := map[string]string{slog.TimeKey: logTimestamp, slog.MessageKey: logMessage}
		rename := func(groups []string, a slog.Attr) slog.Attr {
			if len(groups) == 0 {
				a.Key = cmp.Or(names[a.Key], a.Key)
			}
			return a
		}
		handler = slog.NewJSONHandler(w, &slog.HandlerOptions{Level: level, ReplaceAttr: rename})
	}
	writer, _ := w.(*logWriter)
	return slog.New(traced{handler, writer}).With(logService, service, logGeneration, int64(g))
}

// target returns the terminal that w writes to; nil if that is none.
func target(w io.Writer) *os.File {
	if queue, ok := w.(*logWriter); ok {
		w = queue.to
	}
	file, ok := w.(*os.File)
	if !ok || !term.IsTerminal(int(file.Fd())) { //nolint:gosec // a small number
		return nil
	}
	return file
}

// traced adds the ids of the trace and span of the context to each entry, empty for none.
type traced struct {
	slog.Handler
	writer *logWriter // nil if entries are written at once
}

// Handle implements [slog.Handler].
func (h traced) Handle(ctx context.Context, r slog.Record) error {
	traceID, spanID := "", ""
	if span := trace.SpanContextFromContext(ctx); span.IsValid() {
		traceID, spanID = span.TraceID().String(), span.SpanID().String()
	}
	r.AddAttrs(slog.String(logTraceID, traceID), slog.String(logSpanID, spanID))
	return h.Handler.Handle(ctx, r)
}

// WithAttrs implements [slog.Handler].
func (h traced) WithAttrs(attrs []slog.Attr) slog.Handler {
	return traced{h.Handler.WithAttrs(attrs), h.writer}
}

// WithGroup implements [slog.Handler].
func (h traced) WithGroup(name string) slog.Handler {
	return traced{h.Handler.WithGroup(name), h.writer}
}

// droppedEntries returns how many entries of a logger were dropped so far.
func droppedEntries(log *slog.Logger) int64 {
	if h, ok := log.Handler().(traced); ok && h.writer != nil {
		return h.writer.total.Load()
	}
	return 0
}
