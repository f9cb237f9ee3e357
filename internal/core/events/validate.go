package events

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"regexp"
	"strconv"
	"strings"
	"time"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/google/uuid"
)

// Bounds of an event. Core.outbox_insert holds SQL producers to the same.
const (
	MaxPayloadBytes        = 1 << 20 // of the payload as jsonb text, which SQL measures; Go bounds the raw bytes
	MaxPayloadDepth        = 64      // nested objects and arrays, the payload itself included
	MaxNumberDigits        = 400     // of one number, written out without exponent
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
	if len(payload) > 7*MaxPayloadBytes { // beyond that only white space could bring it below the limit
		return tooLarge(len(payload))
	}
	if !utf8.Valid(payload) {
		return &fault{CodeText, "is not valid UTF-8"}
	}
	// Depth first, in one pass without recursion: a parser may refuse or overflow on deep nesting.
	if nesting(payload) > MaxPayloadDepth {
		return &fault{CodePayloadDepth, fmt.Sprintf("is nested deeper than %d levels", MaxPayloadDepth)}
	}
	var compact bytes.Buffer
	if err := json.Compact(&compact, payload); err != nil {
		return &fault{CodePayloadObject, "is not valid JSON: " + err.Error()}
	}
	if compact.Bytes()[0] != '{' {
		return &fault{CodePayloadObject, "must be a JSON object"}
	}
	// SQL measures the jsonb text, which has blanks and no exponents; an escape of six bytes may be one there
	if least := compact.Len() - 5*bytes.Count(compact.Bytes(), []byte(`\u`)); least > MaxPayloadBytes {
		return tooLarge(least)
	}
	return contentFault(compact.Bytes())
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

// contentFault says which string or number of valid, compact JSON jsonb or a reader could not take, or nil.
func contentFault(data []byte) *fault {
	quoted := false
	for i := 0; i < len(data); i++ {
		switch c := data[i]; {
		case c == '"':
			quoted = !quoted
		case quoted && c == '\\':
			switch r := escaped(data, i); {
			case r < 0: // one character, perhaps a quote
				i++
			case r == 0:
				return &fault{CodeText, `has the escape \u0000: Postgres stores no NUL character`}
			case !utf16.IsSurrogate(r):
				i += 5
			case utf16.DecodeRune(r, escaped(data, i+6)) == utf8.RuneError:
				return &fault{CodeText, "has half a surrogate pair"}
			default:
				i += 11
			}
		case !quoted && (c == '-' || c >= '0' && c <= '9'):
			end := i + 1
			for end < len(data) && bytes.IndexByte([]byte("+-.eE0123456789"), data[end]) >= 0 {
				end++
			}
			if !readable(string(data[i:end])) {
				return &fault{CodePayloadNumber, fmt.Sprintf(
					"has the number %.40s, which readers cannot take (beyond %g, or more than %d digits); send it as a string",
					data[i:end], math.MaxFloat64, MaxNumberDigits)}
			}
			i = end - 1
		}
	}
	return nil
}

// escaped is the \uXXXX at i, or -1.
func escaped(data []byte, i int) rune {
	if i+6 > len(data) || data[i] != '\\' || data[i+1] != 'u' {
		return -1
	}
	v, err := strconv.ParseUint(string(data[i+2:i+6]), 16, 16)
	if err != nil {
		return -1
	}
	return rune(v)
}

// readable reports whether readers can take a JSON number: it is within float64, and short enough written out.
func readable(n string) bool {
	if _, err := strconv.ParseFloat(n, 64); err != nil { // out of range
		return false
	}
	mantissa, exponent := strings.TrimPrefix(n, "-"), 0
	if i := strings.IndexAny(mantissa, "eE"); i >= 0 {
		var err error
		// of zero the exponent may be anything, but Postgres takes no such number either
		if exponent, err = strconv.Atoi(mantissa[i+1:]); err != nil || exponent < -maxExponent || exponent > maxExponent {
			return false
		}
		mantissa = mantissa[:i]
	}
	whole, fraction, _ := strings.Cut(mantissa, ".")
	digits := 1
	if significant := strings.TrimLeft(whole+fraction, "0"); significant != "" {
		digits = max(len(significant)-len(fraction)+exponent, 1)
	}
	return digits+max(len(fraction)-exponent, 0) <= MaxNumberDigits
}

// maxExponent is beyond what any accepted number but zero has.
const maxExponent = 1_000_000
