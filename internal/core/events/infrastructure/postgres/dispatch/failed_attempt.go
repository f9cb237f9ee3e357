package dispatch

import (
	"crypto/sha256"
	"encoding/hex"
	"regexp"
	"strings"
	"time"

	"spectral/internal/core/events/infrastructure/postgres/pgtx"
)

// failedAttempt is a call of a handler that failed, as core.failed_attempts_add takes it.
type failedAttempt struct {
	HandlerName string  `json:"handler_name"`
	StartedAgo  float64 `json:"started_ago"` // seconds
	DurationMS  int64   `json:"duration_ms"`
	ErrorClass  string  `json:"error_class"`
	Error       string  `json:"error"`
	Stack       string  `json:"stack,omitempty"`
	TraceID     string  `json:"trace_id,omitempty"`
	GroupID     string  `json:"group_id"`
	Message     string  `json:"message"` // of the group
}

// maxStackBytes bounds the stack of a panic that is kept.
const maxStackBytes = 4096

func newFailedAttempt(handler string, f Failure) failedAttempt {
	a := failedAttempt{
		HandlerName: handler, DurationMS: f.took.Milliseconds(), ErrorClass: f.Class, Error: f.message,
		Stack: pgtx.CleanText(string(f.stack), maxStackBytes),
	}
	if !f.started.IsZero() {
		a.StartedAgo = time.Since(f.started).Seconds()
	}
	a.GroupID, a.Message = errorGroup(handler, f.Class, f.message)
	return a
}

// traceID returns the id of the trace that a W3C traceparent names, empty if there is none.
func traceID(traceparent string) string {
	if parts := strings.Split(traceparent, "-"); len(parts) >= 4 {
		return parts[1]
	}
	return ""
}

// maxGroupBytes is how much of a message decides its group.
const maxGroupBytes = 1000

var (
	// a quotation, whose end may be missing; an apostrophe within a word begins none
	quoted = regexp.MustCompile("\"(?:[^\"\\\\]|\\\\.)*(?:\"|$)|`[^`]*(?:`|$)|«[^»]*(?:»|$)|“[^”]*(?:”|$)|‘[^’]*’|" +
		"(^|[^\\pL\\pN])'(?:[^'\\\\]|\\\\.)*'")
	// a word with a digit in it, or a long one of hexadecimal letters: a number, an id, a time
	variable = regexp.MustCompile(`[\pL\pN_.:@/+-]*\pN[\pL\pN_.:@/+-]*|\b[a-fA-F]{8,}\b`)
	// several of them, as in a list
	repeats = regexp.MustCompile(`#([\s,;|]*#)+`)
	blanks  = regexp.MustCompile(`\s+`)
)

// errorGroup returns the id of the group that a failure belongs to (core.error_groups), and its message without ids,
// numbers and quoted text.
func errorGroup(handler, class, message string) (id, normalised string) {
	normalised = quoted.ReplaceAllString(message, "$1#")
	normalised = variable.ReplaceAllString(normalised, "#")
	normalised = blanks.ReplaceAllString(normalised, " ")
	normalised = pgtx.CleanText(strings.TrimSpace(repeats.ReplaceAllString(normalised, "#")), maxGroupBytes)
	sum := sha256.Sum256([]byte(handler + "\x00" + class + "\x00" + normalised))
	return hex.EncodeToString(sum[:6]), normalised
}
