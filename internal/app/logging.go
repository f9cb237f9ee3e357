package app

import (
	"cmp"
	"fmt"
	"io"
	"log/slog"
	"strings"

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
	logCount    = "count"
)

// NewLogger returns a logger that writes JSON entries with the canonical fields to w.
func NewLogger(w io.Writer, level slog.Leveler, g events.Generation) *slog.Logger {
	names := map[string]string{slog.TimeKey: logTimestamp, slog.MessageKey: logMessage}
	rename := func(groups []string, a slog.Attr) slog.Attr {
		if len(groups) == 0 {
			a.Key = cmp.Or(names[a.Key], a.Key)
		}
		return a
	}
	handler := slog.NewJSONHandler(w, &slog.HandlerOptions{Level: level, ReplaceAttr: rename})
	return slog.New(handler).With(logService, "workers", logGeneration, int64(g), logTraceID, "", logSpanID, "")
}

// Counted returns a number with its noun: 1 event, 2 events, 2 crashes.
func Counted[N int | int32 | int64](n N, name string) string {
	if n == 1 {
		return "1 " + name
	}
	if strings.HasSuffix(name, "sh") || strings.HasSuffix(name, "x") {
		name += "e"
	}
	return fmt.Sprintf("%d %ss", n, name)
}
