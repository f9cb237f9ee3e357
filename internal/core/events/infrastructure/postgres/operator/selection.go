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

// Select returns all events that filter selects, the earliest failure first. After timeout it returns a
// [*TooBroadError]; zero means [DefaultSearchTimeout].
func (c *Client) Select(ctx context.Context, filter Filter, timeout time.Duration) (s Selection, err error) {
	condition, arguments := filter.Where(1)
	err = c.search(ctx, "select events", timeout, func(tx pgx.Tx, asOf time.Time) error {
		s.AsOf = asOf // before they are read: an event that fails again during that is skipped later
		const order = " order by o.claimed_at, o.id, o.occurred_at), '{}')"
		return tx.QueryRow(ctx, "select coalesce(array_agg(o.id"+order+", coalesce(array_agg(o.occurred_at"+order+
			" from core.outbox o where "+condition, arguments...).Scan(&s.ids, &s.times)
	})
	return s, err
}

// Shown returns the first events of a selection, at most limit, as they are now.
func (c *Client) Shown(ctx context.Context, s Selection, limit int) (all []Event, err error) {
	s = s.slice(0, limit)
	err = c.search(ctx, "look at events", 0, func(tx pgx.Tx, _ time.Time) error {
		all, err = rows[Event](ctx, tx, "select "+displayed+` from unnest($1::uuid[], $2::timestamptz[])
			with ordinality as k(id, occurred_at, n)
			join core.outbox o on o.id = k.id and o.occurred_at = k.occurred_at order by k.n`, s.ids, s.times)
		return err
	})
	return all, err
}

// SelectNamed returns the named events if each can be changed so. Otherwise the error says for each refused event why.
// It changes each event and rolls that back: so it is refused for the same reasons as [Client.Apply].
func (c *Client) SelectNamed(ctx context.Context, ids []uuid.UUID, change Change) (s Selection, err error) {
	if s.AsOf, err = c.Now(ctx); err != nil {
		return Selection{}, err
	}
	var refusals []error
	for _, id := range ids {
		err := c.inTx(ctx, fmt.Sprintf("look at event %s", id), func(tx pgx.Tx) error {
			trial, err := tx.Begin(ctx)
			if err != nil {
				return err
			}
			_, err = trial.Exec(ctx, "select from "+change.one, change.with(pgx.NamedArgs{"id": id}))
			if undone := trial.Rollback(ctx); err != nil || undone != nil {
				return errors.Join(err, undone)
			}
			all, err := coredb.New(tx).OperatorEventsOfID(ctx, id)
			if err == nil && len(all) == 0 { // deleted in between
				return unknownEvent(id)
			}
			for _, e := range all {
				s.ids, s.times = append(s.ids, id), append(s.times, e.OccurredAt)
				if !e.SettledAt.Before(s.AsOf) {
					s.AsOf = e.SettledAt.Add(time.Microsecond) // the smallest difference that the database keeps
				}
			}
			return err
		})
		if refusal, ok := errors.AsType[*RefusedError](err); ok {
			refusals = append(refusals, refusal)
		} else if err != nil {
			return Selection{}, err
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
