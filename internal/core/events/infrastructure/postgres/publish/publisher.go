package publish

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgerrcode"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"spectral/internal/core/events"
	"spectral/internal/core/events/infrastructure/postgres/coredb"
	"spectral/internal/core/events/infrastructure/postgres/pgtx"
	"spectral/internal/core/telemetry"
)

// Limits of one call of core.outbox_publish_rows. A larger Publish makes several calls in the same transaction.
const (
	maxEventsPerCall = 1000
	maxBytesPerCall  = 8 << 20
)

// Publishing is what all publishers of a process share. Safe for concurrent use.
type Publishing struct {
	Contracts  *events.Contracts
	Generation events.Generation    // stamped on every event
	Log        *slog.Logger         // nil: nothing is logged
	Telemetry  *telemetry.Telemetry // nil: nothing is recorded
}

// Publisher publishes in one transaction.
type Publisher struct {
	shared  Publishing
	tx      events.Tx
	run     runRow
	options events.PublishOptions
}

// runRow runs or queues a query, whose row goes to result.
type runRow func(ctx context.Context, sql string, args []any, result func(pgx.Row) error) error

// Publisher returns a publisher bound to tx.
func (p Publishing) Publisher(tx events.Tx, options ...events.PublishOption) *Publisher {
	run := func(ctx context.Context, sql string, args []any, result func(pgx.Row) error) error {
		return result(tx.QueryRow(ctx, sql, args...))
	}
	return p.publisher(tx, run, options)
}

func (p Publishing) publisher(tx events.Tx, run runRow, options []events.PublishOption) *Publisher {
	if p.Log == nil {
		p.Log = slog.New(slog.DiscardHandler)
	}
	p.Telemetry = cmp.Or(p.Telemetry, telemetry.None)
	publisher := &Publisher{shared: p, tx: tx, run: run}
	for _, option := range options {
		option(&publisher.options)
	}
	return publisher
}

// rowTo is a Tx for generated code, whose queries it runs by run. Their Scan returns the error of that and no value.
type rowTo struct {
	events.Tx
	run    runRow
	result func(pgx.Row) error
}

// QueryRow implements [events.Tx].
func (t rowTo) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	return scanned{t.run(ctx, sql, args, t.result)}
}

type scanned struct{ err error }

// Scan implements [pgx.Row].
func (s scanned) Scan(...any) error { return s.err }

// Publish implements [events.EventPublisher].
func (p *Publisher) Publish(ctx context.Context, envelopes ...events.Envelope) (err error) {
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
	ctx, span := p.shared.Telemetry.Publish(ctx, envelopes)
	defer func() {
		if _, refused := errors.AsType[*events.Refusal](err); refused {
			telemetry.Fail(span, "RefusedEvent")
		} else if err != nil {
			telemetry.Fail(span, pgtx.ErrorClass(err))
		}
		span.End()
	}()
	for published := 0; published < len(envelopes); {
		n, err := p.call(ctx, envelopes, published, now)
		if err != nil {
			return err
		}
		published += n
	}
	for _, c := range deprecated {
		p.shared.Log.WarnContext(ctx, "a deprecated event type was published: it will be refused from its deadline on",
			pgtx.LogEventType, c.Type, pgtx.LogDeadline, c.Deprecation.Deadline, pgtx.LogSuccessor, c.Deprecation.Successor)
	}
	return nil
}

// call publishes the events from envelopes[from] on, as many as fit in one call, and returns how many.
func (p *Publisher) call(ctx context.Context, envelopes []events.Envelope, from int, now time.Time) (int, error) {
	trace := telemetry.Traceparent(ctx)
	availableAt := now.AddDate(-1, 0, 0) // a time long past means now, and might be a year that SQL cannot read
	if t := p.options.AvailableAt; t.After(availableAt) {
		availableAt = t
	}
	if from == len(envelopes)-1 { // for one, core.outbox_publish_event is faster
		e := envelopes[from]
		_, err := p.queries(ctx, envelopes, from, 1).Publish(ctx, coredb.PublishParams{
			EventID: uuid.NullUUID{UUID: e.EventID, Valid: e.EventID != uuid.Nil}, OccurredAt: occurredAt(e, now),
			EventType: e.EventType, Source: string(e.Source), EventVersion: int32(e.EventVersion),
			Payload: slices.Clone(e.Payload), // the caller may change it before it is sent
			Target:  string(e.Target), WorkspaceID: e.WorkspaceID, IdempotencyKey: e.IdempotencyKey,
			TraceContext: cmp.Or(e.TraceContext, trace), AvailableAt: availableAt, Generation: int64(p.shared.Generation),
			CauseID: events.Delivery(ctx).EventID,
		})
		return 1, err
	}
	rows := coredb.PublishRowsParams{Generation: int64(p.shared.Generation), AvailableAt: availableAt,
		CauseID: events.Delivery(ctx).EventID}
	n, bytes := 0, 0
	for ; n < min(len(envelopes)-from, maxEventsPerCall) && bytes < maxBytesPerCall; n++ {
		e := envelopes[from+n]
		bytes += len(e.Payload)
		id := ""
		if e.EventID != uuid.Nil {
			id = e.EventID.String()
		}
		rows.EventIds = append(rows.EventIds, id)
		rows.OccurredAt = append(rows.OccurredAt, occurredAt(e, now))
		rows.EventTypes = append(rows.EventTypes, e.EventType)
		rows.Sources = append(rows.Sources, string(e.Source))
		rows.Payloads = append(rows.Payloads, string(e.Payload))
		rows.EventVersions = append(rows.EventVersions, int32(e.EventVersion))
		rows.Targets = append(rows.Targets, string(e.Target))
		rows.WorkspaceIds = append(rows.WorkspaceIds, pgtx.WorkspaceText(e.WorkspaceID))
		rows.IdempotencyKeys = append(rows.IdempotencyKeys, e.IdempotencyKey)
		rows.TraceContexts = append(rows.TraceContexts, cmp.Or(e.TraceContext, trace))
	}
	for _, values := range []*[]string{&rows.EventIds, &rows.Targets, &rows.WorkspaceIds, &rows.IdempotencyKeys,
		&rows.TraceContexts} {
		if !slices.ContainsFunc(*values, func(s string) bool { return s != "" }) {
			*values = nil // null is faster than an array of nothing
		}
	}
	_, err := p.queries(ctx, envelopes, from, n).PublishRows(ctx, rows)
	return n, err
}

// queries returns the queries of a call for n events, from envelopes[from] on. It answers with one id if n is 1, else
// with an array.
func (p *Publisher) queries(ctx context.Context, envelopes []events.Envelope, from, n int) *coredb.Queries {
	return coredb.New(rowTo{p.tx, p.run, func(row pgx.Row) error {
		ids := make([]uuid.UUID, 1)
		into := any(&ids)
		if n == 1 {
			into = &ids[0]
		}
		if err := row.Scan(into); err != nil {
			return placed(fmt.Errorf("publish: %w", err), from, n, envelopes)
		}
		p.shared.Telemetry.Inserted(ctx, envelopes[from:from+n])
		p.log(ctx, envelopes[from:], ids)
		return nil
	}})
}

func occurredAt(e events.Envelope, now time.Time) time.Time {
	if e.OccurredAt.IsZero() {
		return now
	}
	return e.OccurredAt
}

// log logs the first of the events, which have been inserted with these ids.
func (p *Publisher) log(ctx context.Context, envelopes []events.Envelope, ids []uuid.UUID) {
	if !p.shared.Log.Enabled(ctx, slog.LevelInfo) {
		return
	}
	for i, id := range ids {
		if !p.shared.Telemetry.Logged(id) {
			continue
		}
		e := &envelopes[i]
		p.shared.Log.LogAttrs(ctx, slog.LevelInfo, "event published", slog.String(pgtx.LogEventID, id.String()),
			slog.String(pgtx.LogEventType, e.EventType), slog.String(pgtx.LogSource, string(e.Source)),
			slog.String(pgtx.LogTarget, string(e.Target)), slog.String(pgtx.LogWorkspaceID, pgtx.WorkspaceText(e.WorkspaceID)))
	}
}

// at names the event of a Publish that err is about.
func at(i, of int, err error) error {
	if of == 1 {
		return err
	}
	return fmt.Errorf("event %d of %d: %w", i+1, of, err)
}

// placed translates the error of a call of n events, which came after others, and names the event that it is about if
// that is known: the database gives the place of a refused event in its call, unless it is the only one.
func placed(err error, before, n int, envelopes []events.Envelope) error {
	translated := refusal(err)
	r, refused := errors.AsType[*events.Refusal](translated)
	if !refused {
		return translated
	}
	place := 1
	if pg, ok := errors.AsType[*pgconn.PgError](err); ok && n > 1 {
		if _, err := fmt.Sscanf(pg.Detail, "event %d of the call", &place); err != nil {
			return translated
		}
	}
	r.EventType = envelopes[before+place-1].EventType
	return at(before+place-1, len(envelopes), translated)
}

// keyOfOutbox matches the primary keys of core.outbox and of its partitions.
var keyOfOutbox = regexp.MustCompile(`^outbox_(.+_)?pk(ey)?$`)

// refusal translates an error of the publishing functions.
func refusal(err error) error {
	var pg *pgconn.PgError
	switch {
	case !errors.As(err, &pg):
		return err
	case pg.Code == pgerrcode.UniqueViolation && keyOfOutbox.MatchString(pg.ConstraintName):
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
