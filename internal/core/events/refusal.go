package events

import "fmt"

// Code says why an event was refused. It is the SQLSTATE that core.outbox_publish raises for the
// same reason, so Go and SQL producers can tell the same cases apart.
type Code string

// The codes of refused events. db/functions/outbox_check.sql has the same ones.
const (
	CodeEventType     Code = "SP001"
	CodeEventVersion  Code = "SP002"
	CodeSource        Code = "SP003"
	CodeTarget        Code = "SP004"
	CodePayloadObject Code = "SP005" // not a JSON object, or not JSON
	CodePayloadSize   Code = "SP006" // over MaxPayloadBytes
	CodePayloadDepth  Code = "SP007" // nested deeper than MaxPayloadDepth
	CodePayloadNumber Code = "SP008" // a number that readers cannot take
	// NUL, invalid UTF-8 or half a surrogate pair; SQL producers get Postgres' own 22021, 22P05 or 22P02
	CodeText            Code = "SP009"
	CodeIdempotencyKey  Code = "SP010"
	CodeTraceContext    Code = "SP011"
	CodeClass           Code = "SP012"
	CodeContentClass    Code = "SP013"
	CodeAvailableAt     Code = "SP014"
	CodeOccurredAt      Code = "SP015"
	CodeUnregistered    Code = "SP016" // no contract of this type and version
	CodeSourceForbidden Code = "SP017" // this role may not publish as this source
	CodeSourceMismatch  Code = "SP018" // the type belongs to another source
	CodeGeneration      Code = "SP019" // unknown, being retired or retired, or none live
	CodeEventID         Code = "SP020"
	CodeCall            Code = "SP021" // a malformed call of outbox_publish_many
	CodeWorkspaceID     Code = "SP022"
	CodePayloadShape    Code = "SP023" // not what the contract of its type and version says
	CodeDeprecated      Code = "SP024" // past the deadline of its type's deprecation
)

// The codes of refused actions of operators and retention, which the functions in db/functions raise. docs/runbook.md
// says for each what to do.
const (
	CodeArgument        Code = "SP030" // a malformed argument
	CodeUnknownEvent    Code = "SP031" // no event has that id
	CodeStatus          Code = "SP032" // not for an event in its status
	CodeTombstone       Code = "SP033" // the event is discarded or past its retention
	CodeNothingToDo     Code = "SP034" // not discarded, due already, not paused, paused already
	CodeAmbiguousEvent  Code = "SP035" // several events have the id
	CodeUnconsumed      Code = "SP036" // no handler in the generation consumes the type
	CodeAsk             Code = "SP037" // a handler acts outside: say whether the replay runs it
	CodeNotDraining     Code = "SP040" // only a draining generation is retired
	CodeOnlyLive        Code = "SP041" // it is the only live generation
	CodeSameGeneration  Code = "SP042" // an adoption from a generation into itself
	CodeRetireIsolation Code = "SP043" // retiring at an isolation level above READ COMMITTED
	CodePolicies        Code = "SP050" // the retention policies contradict each other
	CodeSweepBounds     Code = "SP051" // an argument of a sweep or its status is unknown or out of range
	CodeSweepIsolation  Code = "SP053" // a sweep at an isolation level above READ COMMITTED
)

// Refusal is the error for an event that may not be published. Nothing of the call was published. Go and SQL refuse in
// the same words: Reason, Received and Hint are the MESSAGE, DETAIL and HINT of the SQL functions.
type Refusal struct {
	Code      Code
	Field     string // the envelope field or publish option at fault
	EventType string // as given
	Reason    string // what the field must be; all violations of a payload, up to ten
	Received  string // what it was instead
	Hint      string // what to do
}

func (r *Refusal) Error() string {
	s := "event refused"
	if r.EventType != "" {
		s = fmt.Sprintf("event %.128q refused", r.EventType)
	}
	s += fmt.Sprintf(" (%s): %s: %s", r.Code, r.Field, r.Problem())
	if r.Hint != "" {
		s += "; " + r.Hint
	}
	return s
}

// Problem says what the field must be and what was received, without naming the event or the field.
func (r *Refusal) Problem() string {
	if r.Received == "" {
		return r.Reason
	}
	return r.Reason + "; received " + r.Received
}
