package operator

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"spectral/internal/core/events"
	"spectral/internal/core/events/infrastructure/postgres/coredb"
)

// Selection is the events that a bulk command changes, as they were at one moment. Events that fail or are published
// later are not in it, so the command ends.
type Selection struct {
	// AsOf is that moment, by the database clock: an event that failed or was delivered at AsOf or later is skipped. It
	// is later than the time of each named event, even if the clock was set back.
	AsOf  time.Time
	ids   []uuid.UUID
	times []time.Time // of occurrence: an id alone does not identify an event
}

// Len returns the number of events.
func (s Selection) Len() int { return len(s.ids) }

// slice returns the events from i up to j, without j.
func (s Selection) slice(i, j int) Selection {
	j = min(j, s.Len())
	return Selection{s.AsOf, s.ids[i:j], s.times[i:j]}
}

func (s *Selection) add(id uuid.UUID, occurredAt time.Time) {
	s.ids, s.times = append(s.ids, id), append(s.times, occurredAt)
}

// Select returns all events that filter selects, the earliest failure first. After timeout it returns a
// [*TooBroadError]; zero means [DefaultSearchTimeout].
func (c *Client) Select(ctx context.Context, filter Filter, timeout time.Duration) (s Selection, err error) {
	condition, arguments := filter.Where(1)
	s.ids, s.times = []uuid.UUID{}, []time.Time{}
	err = c.search(ctx, timeout, func(tx pgx.Tx, asOf time.Time) error {
		s.AsOf = asOf // before they are read: an event that fails again during that is skipped later
		rows, err := tx.Query(ctx, "select o.id, o.occurred_at from core.outbox o where "+condition+
			" order by o.claimed_at, o.id, o.occurred_at", arguments...)
		if err != nil {
			return err
		}
		var id uuid.UUID
		var occurredAt time.Time
		_, err = pgx.ForEachRow(rows, []any{&id, &occurredAt}, func() error {
			s.add(id, occurredAt)
			return nil
		})
		return err
	})
	if err != nil {
		return Selection{}, fmt.Errorf("select events: %w", err)
	}
	return s, nil
}

// Shown returns the first events of a selection, at most limit, as they are now.
func (c *Client) Shown(ctx context.Context, s Selection, limit int) (all []Event, err error) {
	s = s.slice(0, limit)
	err = c.search(ctx, 0, func(tx pgx.Tx, _ time.Time) error {
		rows, err := tx.Query(ctx, "select "+displayed+` from unnest($1::uuid[], $2::timestamptz[])
			with ordinality as k(id, occurred_at, n)
			join core.outbox o on o.id = k.id and o.occurred_at = k.occurred_at order by k.n`, s.ids, s.times)
		if err != nil {
			return err
		}
		all, err = pgx.CollectRows(rows, pgx.RowToStructByName[Event])
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("look at events: %w", err)
	}
	return all, nil
}

// SelectToReplay returns the named events if each can be replayed into a generation, delivered ones by force. Otherwise
// the error says for each refused event why.
func (c *Client) SelectToReplay(ctx context.Context, ids []uuid.UUID, to events.Generation,
	force bool) (Selection, error) {
	return c.selectNamed(ctx, ids, func(queries *coredb.Queries, id uuid.UUID) error {
		return queries.OperatorReplayable(ctx, coredb.OperatorReplayableParams{ID: id, Generation: int64(to),
			Force: force})
	})
}

// SelectToDiscard is [Client.SelectToReplay] for Discard.
func (c *Client) SelectToDiscard(ctx context.Context, ids []uuid.UUID) (Selection, error) {
	return c.selectNamed(ctx, ids, func(queries *coredb.Queries, id uuid.UUID) error {
		return queries.OperatorDiscardOne(ctx, coredb.OperatorDiscardOneParams{ID: id})
	})
}

// SelectToUndiscard is [Client.SelectToReplay] for Undiscard.
func (c *Client) SelectToUndiscard(ctx context.Context, ids []uuid.UUID) (Selection, error) {
	return c.selectNamed(ctx, ids, func(queries *coredb.Queries, id uuid.UUID) error {
		return queries.OperatorUndiscardOne(ctx, coredb.OperatorUndiscardOneParams{ID: id})
	})
}

// SelectToRetryNow is [Client.SelectToReplay] for RetryNow.
func (c *Client) SelectToRetryNow(ctx context.Context, ids []uuid.UUID) (Selection, error) {
	return c.selectNamed(ctx, ids, func(queries *coredb.Queries, id uuid.UUID) error {
		return queries.OperatorRetryNowOne(ctx, coredb.OperatorRetryNowOneParams{ID: id})
	})
}

// selectNamed returns the named events, or the refusals. It calls try for each event and rolls that back: so it is
// refused for the same reasons as the bulk command.
func (c *Client) selectNamed(ctx context.Context, ids []uuid.UUID,
	try func(*coredb.Queries, uuid.UUID) error) (s Selection, err error) {
	now, err := c.Now(ctx)
	if err != nil {
		return Selection{}, err
	}
	s = Selection{now, []uuid.UUID{}, []time.Time{}}
	var refusals []error
	for _, id := range ids {
		err := c.inTx(ctx, func(tx pgx.Tx) error {
			trial, err := tx.Begin(ctx)
			if err != nil {
				return err
			}
			err = try(coredb.New(trial), id)
			if undone := trial.Rollback(ctx); err != nil || undone != nil {
				return errors.Join(err, undone)
			}
			all, err := coredb.New(tx).OperatorEventsOfID(ctx, id)
			if err == nil && len(all) == 0 { // deleted in between
				return unknownEvent(id)
			}
			for _, e := range all {
				s.add(id, e.OccurredAt)
				if !e.SettledAt.Before(s.AsOf) {
					s.AsOf = e.SettledAt.Add(time.Microsecond) // the smallest difference that the database keeps
				}
			}
			return err
		})
		if refusal, ok := errors.AsType[*RefusedError](err); ok {
			refusals = append(refusals, refusal)
		} else if err != nil {
			return Selection{}, fmt.Errorf("look at event %s: %w", id, err)
		}
	}
	return s, errors.Join(refusals...)
}

// unknownEvent returns the refusal of an unknown id, as the SQL functions word it.
func unknownEvent(id uuid.UUID) *RefusedError {
	return &RefusedError{Code: events.CodeUnknownEvent, Field: "event_id",
		Reason: fmt.Sprintf("event_id: %s is not in core.outbox", id),
		Hint:   "check the id; retention deletes events in the end"}
}
