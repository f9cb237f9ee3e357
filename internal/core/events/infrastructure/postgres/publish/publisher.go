package publish

import (
	"context"
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

// Limits of one call of core.outbox_publish_rows. A larger Publish makes several calls in the same transaction.
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

// Publish implements [events.EventPublisher].
func (p *Publisher) Publish(ctx context.Context, envelopes ...events.Envelope) error {
	now := time.Now()
	if err := p.options.Validate(now); err != nil {
		return err
	}
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
	}
	for published := 0; published < len(envelopes); {
		n, err := p.call(ctx, envelopes[published:], now)
		if err != nil {
			return placed(fmt.Errorf("publish: %w", err), published, envelopes)
		}
		published += n
	}
	for _, c := range deprecated {
		p.shared.Log.WarnContext(ctx, "a deprecated event type was published: it will be refused from its deadline on",
			pgtx.LogEventType, c.Type, pgtx.LogDeadline, c.Deprecation.Deadline, pgtx.LogSuccessor, c.Deprecation.Successor)
	}
	return nil
}

// call publishes as many of the events as one call takes, and returns how many.
func (p *Publisher) call(ctx context.Context, envelopes []events.Envelope, now time.Time) (int, error) {
	rows := coredb.PublishRowsParams{Generation: int64(p.shared.Generation), AvailableAt: now.AddDate(-1, 0, 0)}
	// a time long past means now, and might be a year that SQL cannot read
	if t := p.options.AvailableAt; t.After(rows.AvailableAt) {
		rows.AvailableAt = t
	}
	bytes := 0
	for _, e := range envelopes[:min(len(envelopes), maxEventsPerCall)] {
		if bytes >= maxBytesPerCall {
			break
		}
		bytes += len(e.Payload)
		if e.OccurredAt.IsZero() {
			e.OccurredAt = now
		}
		if !e.WorkspaceID.Valid {
			e.WorkspaceID.UUID = uuid.Nil
		}
		rows.EventIds = append(rows.EventIds, e.EventID)
		rows.OccurredAt = append(rows.OccurredAt, e.OccurredAt)
		rows.EventTypes = append(rows.EventTypes, e.EventType)
		rows.Sources = append(rows.Sources, string(e.Source))
		rows.Payloads = append(rows.Payloads, e.Payload)
		rows.EventVersions = append(rows.EventVersions, int32(e.EventVersion))
		rows.Targets = append(rows.Targets, string(e.Target))
		rows.WorkspaceIds = append(rows.WorkspaceIds, e.WorkspaceID.UUID)
		rows.IdempotencyKeys = append(rows.IdempotencyKeys, e.IdempotencyKey)
		rows.TraceContexts = append(rows.TraceContexts, e.TraceContext)
	}
	ids, err := p.insert(ctx, rows)
	for i, id := range ids {
		e := envelopes[i]
		p.shared.Log.DebugContext(ctx, "event published", pgtx.LogEventID, id, pgtx.LogEventType, e.EventType,
			pgtx.LogSource, e.Source, pgtx.LogTarget, e.Target, pgtx.LogWorkspaceID, pgtx.WorkspaceText(e.WorkspaceID))
	}
	return len(ids), err
}

// insert calls the function for one event, which is faster then, or the one for many.
func (p *Publisher) insert(ctx context.Context, rows coredb.PublishRowsParams) ([]uuid.UUID, error) {
	if len(rows.EventIds) > 1 {
		return p.queries.PublishRows(ctx, rows)
	}
	nullable := func(id uuid.UUID) uuid.NullUUID { return uuid.NullUUID{UUID: id, Valid: id != uuid.Nil} }
	id, err := p.queries.Publish(ctx, coredb.PublishParams{
		EventID: nullable(rows.EventIds[0]), OccurredAt: rows.OccurredAt[0], EventType: rows.EventTypes[0],
		Source: rows.Sources[0], Payload: rows.Payloads[0], EventVersion: rows.EventVersions[0],
		Target: rows.Targets[0], WorkspaceID: nullable(rows.WorkspaceIds[0]), IdempotencyKey: rows.IdempotencyKeys[0],
		TraceContext: rows.TraceContexts[0], AvailableAt: rows.AvailableAt, Generation: rows.Generation,
	})
	if err != nil {
		return nil, err
	}
	return []uuid.UUID{id}, nil
}

// at names the event of a Publish that err is about.
func at(i, of int, err error) error {
	if of == 1 {
		return err
	}
	return fmt.Errorf("event %d of %d: %w", i+1, of, err)
}

// placed translates an error of a call, and names the event that it is about. The database counts within its call,
// which came after so many others, and does not say which event of one it is.
func placed(err error, before int, envelopes []events.Envelope) error {
	translated := refusal(err)
	r, refused := errors.AsType[*events.Refusal](translated)
	if !refused {
		return translated
	}
	n, pg := 1, &pgconn.PgError{}
	errors.As(err, &pg)
	if _, err := fmt.Sscanf(pg.Detail, "event %d of the call", &n); err != nil && before+1 < len(envelopes) {
		return translated
	}
	r.EventType = envelopes[before+n-1].EventType
	return at(before+n-1, len(envelopes), translated)
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
