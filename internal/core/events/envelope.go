package events

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	jsonv2 "github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	jsonv1 "github.com/go-json-experiment/json/v1"
	"github.com/google/uuid"
)

// Scope names a bounded context as producer or target of events, or the event system itself.
type Scope string

// The scopes an event may come from or be aimed at.
const (
	Core     Scope = "core"
	Platform Scope = "platform"
	Worlds   Scope = "worlds"
)

// Known reports whether s is one of the scopes above.
func (s Scope) Known() bool { return s == Core || s == Platform || s == Worlds }

// Envelope is an event as it travels: ten fields, which never change. Generation, class,
// channel and due time belong to the transport and are not in it.
//
// A producer makes one with [NewEnvelope]; the publisher fills EventID, OccurredAt and
// IdempotencyKey where they are zero. A handler receives it as it was stored, with the
// idempotency key qualified by source and workspace unless it is the event id.
type Envelope struct {
	EventID      uuid.UUID `json:"event_id"`
	EventType    string    `json:"event_type"`
	EventVersion int       `json:"event_version"`
	// OccurredAt has microsecond precision once stored.
	OccurredAt time.Time `json:"occurred_at"`
	Source     Scope     `json:"source"`
	// Target is the only context whose handlers run; empty means every context.
	Target Scope `json:"target"`
	// WorkspaceID is absent (not Valid) for an event of no workspace.
	WorkspaceID uuid.NullUUID `json:"workspace_id"`
	// Payload is one JSON object. Postgres stores it as jsonb: white space, key order and all but
	// the last of duplicate keys do not survive; numbers and strings do.
	Payload        json.RawMessage `json:"payload"`
	IdempotencyKey string          `json:"idempotency_key"`
	// TraceContext is a W3C traceparent; empty means none.
	TraceContext string `json:"trace_context"`
}

// NewEnvelope encodes payload as an event of contract c, to be handed to an [EventPublisher]. A text that is not UTF-8
// is a [*Refusal].
func NewEnvelope(c Contract, payload any) (Envelope, error) {
	encoded, err := jsonv2.Marshal(payload, jsonv1.DefaultOptionsV1(), jsontext.EscapeForHTML(false),
		jsontext.AllowInvalidUTF8(false), jsonv1.ReportErrorsWithLegacySemantics(false))
	if syntax, ok := errors.AsType[*jsontext.SyntacticError](err); ok && strings.Contains(syntax.Error(), "UTF-8") {
		err = badText(fmt.Sprintf("bytes that are not UTF-8, within %q", syntax.JSONPointer))
	}
	if err != nil {
		return Envelope{}, fmt.Errorf("encode payload of %s: %w", c.Type, err)
	}
	return Envelope{
		EventType: c.Type, EventVersion: c.Version, Source: c.Source, Target: c.Target, Payload: encoded,
	}, nil
}

// Unmarshal decodes data into v as encoding/json does, but with exact names, as Postgres compares them: a name that
// differs from a field's in case, or in a letter that folds to the same, is that of an unknown field.
func Unmarshal(data []byte, v any, options ...jsonv2.Options) error {
	return jsonv2.Unmarshal(data, v, append([]jsonv2.Options{exactNames}, options...)...)
}

var exactNames = jsonv2.JoinOptions(jsonv1.DefaultOptionsV1(), jsonv2.MatchCaseInsensitiveNames(false))

// Decode reads the payload of e into a consumer's own struct, ignoring fields it does not know. Names match exactly.
// A payload that does not fit is a [*PayloadError]: terminal, because no retry can fix it.
func Decode[T any](e Envelope) (T, error) {
	var payload T
	if err := Unmarshal(e.Payload, &payload); err != nil {
		return payload, &PayloadError{EventType: e.EventType, Err: err}
	}
	return payload, nil
}

// MarshalJSON writes the ten fields under their JSON names, null where absent.
func (e Envelope) MarshalJSON() ([]byte, error) {
	type fields Envelope // without this method
	e.OccurredAt = e.OccurredAt.UTC()
	wire := struct {
		fields
		Target       *Scope  `json:"target"`
		TraceContext *string `json:"trace_context"`
	}{fields: fields(e)}
	if e.Target != "" {
		wire.Target = &e.Target
	}
	if e.TraceContext != "" {
		wire.TraceContext = &e.TraceContext
	}
	return json.Marshal(wire)
}
