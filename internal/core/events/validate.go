package events

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/google/uuid"
)

// Bounds of an event. The function core.outbox_check checks the same ones.
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
	refuse := func(code Code, field, reason, received, hint string) error {
		eventType := strings.ToValidUTF8(e.EventType, "\uFFFD")
		return &Refusal{Code: code, Field: field, EventType: eventType, Reason: reason, Received: received, Hint: hint}
	}
	switch {
	case len(e.EventType) > MaxEventTypeBytes || !eventTypeForm.MatchString(e.EventType):
		return refuse(CodeEventType, "event_type", "must be lower-case words joined by dots, at most 128 bytes",
			shown(e.EventType), "like worlds.world_model_card.published")
	case e.EventVersion < 1 || e.EventVersion > MaxEventVersion:
		return refuse(CodeEventVersion, "event_version", "must be from 1 to 1000000",
			strconv.Itoa(e.EventVersion), "core.event_types lists the versions of each event type")
	case !e.Source.Known():
		return refuse(CodeSource, "source", "must be platform, worlds or core",
			shown(string(e.Source)), "name the context that publishes the event")
	case e.Target != "" && !e.Target.Known():
		return refuse(CodeTarget, "target", "must be platform, worlds or core",
			shown(string(e.Target)), "leave it out to reach every context")
	case e.EventID == uuid.Max:
		return refuse(CodeEventID, "event_id", "must not be the nil or the max UUID",
			shown(e.EventID.String()), "leave it out to get a new one")
	case e.WorkspaceID.Valid && (e.WorkspaceID.UUID == uuid.Nil || e.WorkspaceID.UUID == uuid.Max):
		return refuse(CodeWorkspaceID, "workspace_id", "must not be the nil or the max UUID",
			shown(e.WorkspaceID.UUID.String()), "leave it out for an event of no workspace")
	case !validText(e.IdempotencyKey):
		return refuse(CodeText, "idempotency_key", "must be UTF-8 without a NUL character",
			shown(e.IdempotencyKey), "encode other bytes, in base64 for one")
	case e.IdempotencyKey != "" &&
		(len(e.IdempotencyKey) > MaxIdempotencyKeyBytes || strings.TrimSpace(e.IdempotencyKey) == ""):
		return refuse(CodeIdempotencyKey, "idempotency_key", "must have 1 to 512 bytes and not be blank",
			shown(e.IdempotencyKey), "leave it out to use the event id")
	case e.TraceContext != "" && !validTraceparent(e.TraceContext):
		return refuse(CodeTraceContext, "trace_context", "must be a W3C traceparent",
			shown(e.TraceContext), "like 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
	case !e.OccurredAt.IsZero() && (e.OccurredAt.Before(earliest) || e.OccurredAt.After(now.Add(MaxOccurredAhead))):
		return refuse(CodeOccurredAt, "occurred_at", "must be from the year 2000 to at most one day ahead",
			shownTime(e.OccurredAt), "leave it out to use the time of publishing")
	}
	err := ValidatePayload(e.Payload)
	if r, ok := errors.AsType[*Refusal](err); ok {
		r.EventType = e.EventType
	}
	return err
}

// shownTime writes a time as a refusal repeats it, in UTC to the microsecond, as SQL does.
func shownTime(t time.Time) string { return t.UTC().Format(`"2006-01-02T15:04:05.999999" UTC`) }

func validText(s string) bool {
	return utf8.ValidString(s) && !strings.ContainsRune(s, 0)
}

func validTraceparent(s string) bool {
	m := traceForm.FindStringSubmatch(s)
	return m != nil && m[1] != "ff" && strings.Trim(m[2], "0") != "" && strings.Trim(m[3], "0") != ""
}

// ValidatePayload refuses, with a [*Refusal], what Postgres or a reader could not take: see the bounds above.
func ValidatePayload(payload json.RawMessage) error {
	if len(payload) > 7*MaxPayloadBytes { // beyond that only white space could bring it below the limit
		return tooLarge(len(payload))
	}
	if len(payload) > 0 && !utf8.Valid(payload) {
		return badText("bytes that are not UTF-8")
	}
	// Depth first, in one pass without recursion: a parser may refuse or overflow on deep nesting.
	if nesting(payload) > MaxPayloadDepth {
		return &Refusal{
			Code: CodePayloadDepth, Field: "payload", Reason: "must be nested at most 64 levels deep",
			Received: "more than 64 levels", Hint: "flatten it, or store the content and publish a reference to it",
		}
	}
	noObject := Refusal{
		Code: CodePayloadObject, Field: "payload", Reason: "must be a JSON object",
		Hint: `wrap any other value in an object, like {"value": 1}`,
	}
	var compact bytes.Buffer
	if err := json.Compact(&compact, payload); err != nil {
		noObject.Received = "no valid JSON: " + err.Error()
		return &noObject
	}
	if compact.Bytes()[0] != '{' {
		var value any
		decoder := json.NewDecoder(&compact)
		decoder.UseNumber()
		_ = decoder.Decode(&value) // it is valid JSON
		noObject.Received = shown(value)
		return &noObject
	}
	// SQL measures the jsonb text, which has blanks and no exponents; an escape of six bytes may be one there
	if least := compact.Len() - 5*bytes.Count(compact.Bytes(), []byte(`\u`)); least > MaxPayloadBytes {
		return tooLarge(least)
	}
	return contentRefusal(compact.Bytes())
}

func tooLarge(size int) error {
	return &Refusal{
		Code: CodePayloadSize, Field: "payload", Reason: "must have at most 1048576 bytes (1 MiB)",
		Received: fmt.Sprintf("%d bytes", size), Hint: "store the content and publish a reference to it",
	}
}

func badText(received string) error {
	return &Refusal{
		Code: CodeText, Field: "payload", Reason: "must be UTF-8 without a NUL character or half a surrogate pair",
		Received: received, Hint: "encode other bytes, in base64 for one",
	}
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

// contentRefusal says which string or number of valid, compact JSON jsonb or a reader could not take, or nil.
func contentRefusal(data []byte) error {
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
				return badText(`the escape \u0000`)
			case !utf16.IsSurrogate(r):
				i += 5
			case utf16.DecodeRune(r, escaped(data, i+6)) == utf8.RuneError:
				return badText("half a surrogate pair")
			default:
				i += 11
			}
		case !quoted && (c == '-' || c >= '0' && c <= '9'):
			end := i + 1
			for end < len(data) && bytes.IndexByte([]byte("+-.eE0123456789"), data[end]) >= 0 {
				end++
			}
			if !readable(string(data[i:end])) {
				return &Refusal{
					Code: CodePayloadNumber, Field: "payload",
					Reason:   "must not have a number beyond 1.7976931348623157e308 or of more than 400 digits",
					Received: shown(json.Number(data[i:end])), Hint: "send it as a string",
				}
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

const (
	maxExponent = 1_000_000 // beyond what any accepted number but zero has
	maxShown    = 60        // characters of a value that a refusal repeats
)

// shown writes a decoded value as a refusal repeats it. The SQL function core.shown does the same.
func shown(value any) string {
	switch value := value.(type) {
	case map[string]any:
		return "an object"
	case []any:
		return "an array"
	case json.Number:
		if text := value.String(); len(text) > maxShown {
			return fmt.Sprintf("%s... (%d characters)", text[:maxShown], len(text))
		}
		return value.String()
	case string:
		var clean strings.Builder
		characters := 0
		for _, r := range value { // what is not UTF-8 becomes U+FFFD
			if characters++; characters > maxShown {
				return fmt.Sprintf(`"%s..." (%d bytes)`, clean.String(), len(value))
			}
			if r < ' ' || r == 0x7f {
				r = ' '
			}
			clean.WriteRune(r)
		}
		return `"` + clean.String() + `"`
	case nil:
		return "null"
	default:
		return fmt.Sprint(value)
	}
}
