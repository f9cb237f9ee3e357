package events

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"regexp"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"
)

// Bounds of an event. Core.outbox_insert holds SQL producers to the same.
const (
	MaxPayloadBytes        = 1 << 20 // of the payload as jsonb text
	MaxPayloadDepth        = 64      // nested objects and arrays, the payload itself included
	MaxNumberDigits        = 400     // of one number, written without exponent
	MaxEventTypeBytes      = 128
	MaxEventVersion        = 1_000_000
	MaxIdempotencyKeyBytes = 512
	MaxScheduleAhead       = 366 * 24 * time.Hour // available_at after now
	MaxOccurredAhead       = 24 * time.Hour       // occurred_at after now: clocks differ
)

var (
	eventTypeForm = regexp.MustCompile(`^[a-z][a-z0-9_]*(\.[a-z][a-z0-9_]*)+$`)
	traceForm     = regexp.MustCompile(`^([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-[0-9a-f]{2}$`)
	earliest      = time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)
)

// Validate refuses an envelope that must not reach the database, with a [*Refusal] that names the
// field. EventID, OccurredAt and IdempotencyKey may be zero: the publisher fills them. Now is the
// publisher's clock, for the bound on OccurredAt.
func (e Envelope) Validate(now time.Time) error {
	refuse := func(code Code, field, format string, args ...any) error {
		return &Refusal{Code: code, Field: field, EventType: strings.ToValidUTF8(e.EventType, "\uFFFD"), Reason: fmt.Sprintf(format, args...)}
	}
	switch {
	case len(e.EventType) > MaxEventTypeBytes || !eventTypeForm.MatchString(e.EventType):
		return refuse(CodeEventType, "event_type", "must be lower-case words joined by dots, at most %d bytes", MaxEventTypeBytes)
	case e.EventVersion < 1 || e.EventVersion > MaxEventVersion:
		return refuse(CodeEventVersion, "event_version", "is %d, must be from 1 to %d", e.EventVersion, MaxEventVersion)
	case !e.Source.Known():
		return refuse(CodeSource, "source", "is %.200q, must be platform, worlds or core", string(e.Source))
	case e.Target != "" && !e.Target.Known():
		return refuse(CodeTarget, "target", "is %.200q, must be platform, worlds, core or empty for every context", string(e.Target))
	case e.EventID == uuid.Max:
		return refuse(CodeEventID, "event_id", "must not be the max UUID")
	case e.WorkspaceID.Valid && (e.WorkspaceID.UUID == uuid.Nil || e.WorkspaceID.UUID == uuid.Max):
		return refuse(CodeWorkspaceID, "workspace_id", "must not be the nil or the max UUID; leave it not valid for an event of no workspace")
	case !validText(e.IdempotencyKey):
		return refuse(CodeText, "idempotency_key", "has a NUL character or is not valid UTF-8")
	case len(e.IdempotencyKey) > MaxIdempotencyKeyBytes:
		return refuse(CodeIdempotencyKey, "idempotency_key", "has %d bytes, the limit is %d", len(e.IdempotencyKey), MaxIdempotencyKeyBytes)
	case e.IdempotencyKey != "" && strings.TrimSpace(e.IdempotencyKey) == "":
		return refuse(CodeIdempotencyKey, "idempotency_key", "is blank; leave it empty to use the event id")
	case e.TraceContext != "" && !validTraceparent(e.TraceContext):
		return refuse(CodeTraceContext, "trace_context", "is %.200q, must be a W3C traceparent", e.TraceContext)
	case !e.OccurredAt.IsZero() && (e.OccurredAt.Before(earliest) || e.OccurredAt.After(now.Add(MaxOccurredAhead))):
		return refuse(CodeOccurredAt, "occurred_at", "is %s, must be from the year 2000 to at most one day ahead", e.OccurredAt.Format(time.RFC3339))
	}
	if fault := payloadFault(e.Payload); fault != nil {
		return refuse(fault.code, "payload", "%s", fault.reason)
	}
	return nil
}

// ValidatePayload refuses what no event may carry: see the bounds above.
func ValidatePayload(payload json.RawMessage) error {
	if fault := payloadFault(payload); fault != nil {
		return &Refusal{Code: fault.code, Field: "payload", Reason: fault.reason}
	}
	return nil
}

func validText(s string) bool {
	return utf8.ValidString(s) && !strings.ContainsRune(s, 0)
}

func validTraceparent(s string) bool {
	m := traceForm.FindStringSubmatch(s)
	return m != nil && m[1] != "ff" && strings.Trim(m[2], "0") != "" && strings.Trim(m[3], "0") != ""
}

type fault struct {
	code   Code
	reason string
}

// payloadFault says why Postgres or a reader could not take payload, or nil.
func payloadFault(payload []byte) *fault {
	if len(payload) == 0 {
		return &fault{CodePayloadObject, "is empty, must be a JSON object"}
	}
	// Beyond twice the limit even white space cannot explain the size: refuse before parsing it.
	if len(payload) > 2*MaxPayloadBytes {
		return tooLarge(len(payload))
	}
	if !utf8.Valid(payload) {
		return &fault{CodeText, "is not valid UTF-8"}
	}
	// Depth first, in one pass without recursion: a parser may refuse or overflow on deep nesting.
	if depth := nesting(payload); depth > MaxPayloadDepth {
		return &fault{CodePayloadDepth, fmt.Sprintf("is nested deeper than %d levels", MaxPayloadDepth)}
	}
	var compact bytes.Buffer
	if err := json.Compact(&compact, payload); err != nil {
		return &fault{CodePayloadObject, "is not valid JSON: " + err.Error()}
	}
	if compact.Bytes()[0] != '{' {
		return &fault{CodePayloadObject, "must be a JSON object"}
	}
	if compact.Len() > MaxPayloadBytes {
		return tooLarge(compact.Len())
	}
	if reason := badEscape(compact.Bytes()); reason != "" {
		return &fault{CodeText, reason}
	}
	decoder := json.NewDecoder(bytes.NewReader(compact.Bytes()))
	decoder.UseNumber()
	for {
		token, err := decoder.Token()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return &fault{CodePayloadObject, "is not valid JSON: " + err.Error()}
		}
		if n, ok := token.(json.Number); ok && !readable(n.String()) {
			return &fault{CodePayloadNumber, fmt.Sprintf(
				"has the number %.40s, which readers cannot take (beyond %g, or more than %d digits); send it as a string",
				n, math.MaxFloat64, MaxNumberDigits)}
		}
	}
}

func tooLarge(size int) *fault {
	return &fault{CodePayloadSize, fmt.Sprintf(
		"has %d bytes, the limit is %d (1 MiB); store the content and publish a reference to it", size, MaxPayloadBytes)}
}

// nesting returns the greatest number of open brackets outside strings.
func nesting(data []byte) int {
	depth, deepest, quoted := 0, 0, false
	for i := 0; i < len(data); i++ {
		switch c := data[i]; {
		case quoted && c == '\\':
			i++
		case c == '"':
			quoted = !quoted
		case quoted:
		case c == '{' || c == '[':
			depth++
			deepest = max(deepest, depth)
		case c == '}' || c == ']':
			depth--
		}
	}
	return deepest
}

// badEscape finds what jsonb refuses in valid JSON: \u0000 and half a surrogate pair.
func badEscape(data []byte) string {
	unit := func(i int) (rune, bool) { // the \uXXXX at i, if there is one
		if i+6 > len(data) || data[i] != '\\' || data[i+1] != 'u' {
			return 0, false
		}
		v, err := strconv.ParseUint(string(data[i+2:i+6]), 16, 16)
		return rune(v), err == nil
	}
	for i := 0; i < len(data); i++ {
		if data[i] != '\\' {
			continue
		}
		r, ok := unit(i)
		if !ok {
			i++ // a two-character escape
			continue
		}
		switch {
		case r == 0:
			return `has the escape \u0000: Postgres stores no NUL character`
		case r >= 0xDC00 && r <= 0xDFFF:
			return "has half a surrogate pair"
		case r >= 0xD800 && r <= 0xDBFF:
			low, ok := unit(i + 6)
			if !ok || low < 0xDC00 || low > 0xDFFF {
				return "has half a surrogate pair"
			}
			i += 6
		}
		i += 5
	}
	return ""
}

// readable reports whether the JSON number n is within float64 and short once Postgres, which
// keeps every digit and prints no exponent, has written it out.
func readable(n string) bool {
	if f, err := strconv.ParseFloat(n, 64); err != nil || math.IsInf(f, 0) {
		return false
	}
	mantissa, exponent := strings.TrimPrefix(n, "-"), 0
	if i := strings.IndexAny(mantissa, "eE"); i >= 0 {
		var err error
		if exponent, err = strconv.Atoi(mantissa[i+1:]); err != nil || exponent < -2*MaxNumberDigits || exponent > 2*MaxNumberDigits {
			return false
		}
		mantissa = mantissa[:i]
	}
	whole, fraction, _ := strings.Cut(mantissa, ".")
	digits := max(len(whole)+exponent, 1) + max(len(fraction)-exponent, 0)
	return digits < MaxNumberDigits // one less: the sign and the point count in SQL's length
}
