package publish

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgconn"

	"spectral/internal/core/events"
	"spectral/internal/core/events/infrastructure/postgres/coredb"
	"spectral/internal/core/events/infrastructure/postgres/pgtx"
)

// Limits of one call of core.outbox_publish_many. A larger Publish makes several calls in the same transaction.
const (
	maxEventsPerCall = 1000
	maxBytesPerCall  = 8 << 20
)

// Publishing is what all publishers of a process share. Safe for concurrent use.
type Publishing struct {
	Contracts  *events.Contracts
	Generation events.Generation // stamped on every event
	Log        *slog.Logger
}

// Publisher publishes in one transaction.
type Publisher struct {
	shared  Publishing
	queries *coredb.Queries
	options events.PublishOptions
}

// Publisher returns a publisher bound to tx.
func (p Publishing) Publisher(tx events.Tx, options ...events.PublishOption) *Publisher {
	publisher := &Publisher{shared: p, queries: coredb.New(tx)}
	for _, option := range options {
		option(&publisher.options)
	}
	return publisher
}

// outboxEvent is one element of core.outbox_publish_many's argument.
type outboxEvent struct {
	EventID        uuid.UUID       `json:"event_id"`
	EventType      string          `json:"event_type"`
	EventVersion   int             `json:"event_version"`
	OccurredAt     string          `json:"occurred_at"`
	Source         events.Scope    `json:"source"`
	Target         events.Scope    `json:"target,omitempty"`
	WorkspaceID    uuid.NullUUID   `json:"workspace_id"`
	Payload        json.RawMessage `json:"payload"`
	IdempotencyKey string          `json:"idempotency_key,omitempty"`
	TraceContext   string          `json:"trace_context,omitempty"`
	AvailableAt    string          `json:"available_at,omitempty"`
	Generation     int64           `json:"generation"`
}

// rfc3339Micro is RFC 3339 with the microseconds that Postgres keeps.
const rfc3339Micro = "2006-01-02T15:04:05.000000Z07:00"

// Publish implements [events.EventPublisher].
func (p *Publisher) Publish(ctx context.Context, envelopes ...events.Envelope) error {
	now := time.Now()
	if err := p.options.Validate(now); err != nil {
		return err
	}
	sealed := make([]outboxEvent, len(envelopes))
	var deprecated []events.Contract
	for i, e := range envelopes {
		if err := e.Validate(now); err != nil {
			return at(i, len(envelopes), err)
		}
		contract, err := p.shared.Contracts.Check(e)
		if err != nil {
			return at(i, len(envelopes), err)
		}
		isType := func(d events.Contract) bool { return d.Type == contract.Type }
		if contract.Deprecation != nil && !slices.ContainsFunc(deprecated, isType) {
			deprecated = append(deprecated, contract)
		}
		sealed[i] = p.seal(e, now)
	}
	for published := 0; published < len(sealed); {
		n, err := p.call(ctx, sealed[published:])
		if err != nil {
			return placed(err, published, sealed)
		}
		published += n
	}
	for _, c := range deprecated {
		p.shared.Log.WarnContext(ctx, "a deprecated event type was published: it will be refused from its deadline on",
			pgtx.LogEventType, c.Type, pgtx.LogDeadline, c.Deprecation.Deadline, pgtx.LogSuccessor, c.Deprecation.Successor)
	}
	return nil
}

// seal returns the event to be published, with defaults for what the producer left empty.
func (p *Publisher) seal(e events.Envelope, now time.Time) outboxEvent {
	if e.EventID == uuid.Nil {
		e.EventID = uuid.Must(uuid.NewV7()) // ordered by time: random ones cost a fifth of the throughput
	}
	if e.OccurredAt.IsZero() {
		e.OccurredAt = now
	}
	event := outboxEvent{
		EventID: e.EventID, EventType: e.EventType, EventVersion: e.EventVersion,
		OccurredAt: e.OccurredAt.UTC().Format(rfc3339Micro), Source: e.Source, Target: e.Target,
		WorkspaceID: e.WorkspaceID, Payload: e.Payload, IdempotencyKey: e.IdempotencyKey,
		TraceContext: e.TraceContext, Generation: int64(p.shared.Generation),
	}
	// a time long past means now, and might be a year that SQL cannot read
	if t := p.options.AvailableAt; t.After(now.AddDate(-1, 0, 0)) {
		event.AvailableAt = t.UTC().Format(rfc3339Micro)
	}
	return event
}

// call publishes as many of the events as one call takes, and returns how many.
func (p *Publisher) call(ctx context.Context, sealed []outboxEvent) (int, error) {
	var argument bytes.Buffer
	encoder := json.NewEncoder(&argument)
	encoder.SetEscapeHTML(false)
	argument.WriteByte('[')
	n := 0
	for n < len(sealed) && n < maxEventsPerCall && argument.Len() < maxBytesPerCall {
		if n > 0 {
			argument.WriteByte(',')
		}
		if err := encoder.Encode(sealed[n]); err != nil {
			return 0, fmt.Errorf("encode event: %w", err)
		}
		n++
	}
	argument.WriteByte(']')
	if _, err := p.queries.PublishMany(ctx, argument.Bytes()); err != nil {
		return 0, fmt.Errorf("publish: %w", err)
	}
	for _, e := range sealed[:n] {
		p.shared.Log.DebugContext(ctx, "event published", pgtx.LogEventID, e.EventID, pgtx.LogEventType, e.EventType,
			pgtx.LogSource, e.Source, pgtx.LogTarget, e.Target, pgtx.LogWorkspaceID, pgtx.WorkspaceText(e.WorkspaceID))
	}
	return n, nil
}

// at names the event of a Publish that err is about.
func at(i, of int, err error) error {
	if of == 1 {
		return err
	}
	return fmt.Errorf("event %d of %d: %w", i+1, of, err)
}

// placed translates an error of a call, and names the event that it is about. The database counts within its call,
// which came after so many others.
func placed(err error, before int, sealed []outboxEvent) error {
	translated := refusal(err)
	if pg, ok := errors.AsType[*pgconn.PgError](err); ok {
		var n int
		if _, scanErr := fmt.Sscanf(pg.Detail, "event %d of the call", &n); scanErr == nil {
			if r, ok := errors.AsType[*events.Refusal](translated); ok {
				r.EventType = sealed[before+n-1].EventType
			}
			return at(before+n-1, len(sealed), translated)
		}
	}
	return translated
}

// refusal translates an error of the publishing functions.
func refusal(err error) error {
	var pg *pgconn.PgError
	switch {
	case !errors.As(err, &pg):
		return err
	case pg.ConstraintName == "outbox_pk":
		return &events.Refusal{
			Code: events.CodeEventID, Field: "event_id", Reason: "an event of this id and occurred_at is in the outbox already",
			Hint: "leave it out to get a new one",
		}
	case len(pg.Code) != 5 || pg.Code[:2] != "SP":
		return err
	}
	// the message begins with the field, for clients that show nothing else
	reason := strings.TrimPrefix(pg.Message, pg.ColumnName+": ")
	_, received, _ := strings.Cut(pg.Detail, "received ")
	return &events.Refusal{
		Code: events.Code(pg.Code), Field: pg.ColumnName, Reason: reason, Received: received, Hint: pg.Hint,
	}
}
