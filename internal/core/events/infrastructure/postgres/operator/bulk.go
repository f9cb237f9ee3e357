package operator

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"golang.org/x/time/rate"

	"spectral/internal/core/events"
	"spectral/internal/core/events/infrastructure/postgres/coredb"
	"spectral/internal/core/events/infrastructure/postgres/pgtx"
)

// The pace of a bulk command, unless told otherwise.
const (
	DefaultBatch = 200
	MaxBatch     = 1000             // the SQL functions take no more
	DefaultRate  = 1000             // events per second: a small part of what workers deliver
	batchTimeout = 30 * time.Second // of the statements of a batch, the wait for the server included
	maxSkipped   = 100              // skipped events that a result names
)

// Pace says how fast a bulk command goes beside live traffic. Each batch is a separate short transaction.
type Pace struct {
	Batch int     // events in a transaction, at most MaxBatch and one second of Rate; zero means DefaultBatch
	Rate  float64 // events per second at most; zero means DefaultRate, below zero no limit
	// Progress, if set, is called after each batch with the number of events processed so far.
	Progress func(processed int)
	// Waiting, if set, is called with the cause each time that a batch is about to wait for the server.
	Waiting func(cause error)
}

// limits returns the size of a batch and the number of events per second.
func (p Pace) limits() (batch int, perSecond rate.Limit) {
	batch, perSecond = cmp.Or(p.Batch, DefaultBatch), rate.Limit(cmp.Or(p.Rate, DefaultRate))
	if perSecond < 0 {
		return batch, rate.Inf
	}
	return int(min(float64(batch), max(float64(perSecond), 1))), perSecond
}

// BulkResult is what a bulk command did. Beside an error it is the result so far: finished batches are committed, and
// the same command can be repeated, because it skips what is done. The exception is a forced replay of a new selection
// of delivered events, which replays them again.
type BulkResult struct {
	Done    int `json:"done"`
	Skipped int `json:"skipped"`
	// Reasons are given for the first skipped events.
	Reasons    []Skipped `json:"reasons"`
	NotReached int       `json:"not_reached"` // selected, but not processed before an error
}

// Skipped is an event that a bulk command left as it was.
type Skipped struct {
	EventID    uuid.UUID `json:"event_id"`
	OccurredAt time.Time `json:"occurred_at"`
	// State says why: the event's status, or one of: failed again, delivered again, discarded, past its days of grace,
	// expired, gone, of a type that no handler consumes there. While another session changes the event, it is the status
	// before that change.
	State string `json:"state"`
}

// Change is what a bulk command does to events.
type Change struct {
	name      string
	one       string            // the call that changes the event @id
	many      string            // the call that changes the events @ids, which occurred at @times, and returns them
	to        events.Generation // where they go; 0: they stay
	arguments pgx.NamedArgs
}

// Replay makes failed events pending in generation to; delivered ones only by force. It skips what was replayed, failed
// or was delivered after the selection was made. So each event is replayed once, however many operators replay at the
// same time, and no operator replays a failure unseen.
func Replay(to events.Generation, by string, force bool, choice Choice) Change {
	return Change{
		name: "replay", to: to, arguments: pgx.NamedArgs{"to": to, "by": by, "force": force,
			"run": Strings(choice.Run), "skip": Strings(choice.Skip)},
		one:  "core.outbox_replay_preview(@id, @to, null, @force)", // so it is refused for the same reasons
		many: "core.outbox_replay_many(@ids, @to, nullif(@by, ''), @times, @as_of, @force, @run, @skip)",
	}
}

// Choice says which handlers that act outside their transaction a replay runs again where they had begun, and which it
// does not, whatever their policy ([events.ReplayPolicy]).
type Choice struct {
	Run  []string `json:"run"`
	Skip []string `json:"skip"`
}

// Discard discards failed events.
func Discard(by, reason string) Change {
	return Change{
		name: "discard", arguments: pgx.NamedArgs{"by": by, "reason": reason},
		one:  "core.outbox_discard(@id, nullif(@by, ''), nullif(@reason, ''))",
		many: "core.outbox_discard_many(@ids, nullif(@by, ''), nullif(@reason, ''), @times, @as_of)",
	}
}

// Undiscard makes discarded events failed again. It works within the days of grace of retention.
func Undiscard(by string) Change {
	return Change{
		name: "undiscard", arguments: pgx.NamedArgs{"by": by},
		one:  "core.outbox_undiscard(@id, nullif(@by, ''))",
		many: "core.outbox_undiscard_many(@ids, nullif(@by, ''), @times)",
	}
}

// RetryNow makes scheduled events due, whether they wait for a retry or for the time their producer chose. Parked
// handlers stay parked.
func RetryNow(by string) Change {
	return Change{
		name: "retry now", arguments: pgx.NamedArgs{"by": by},
		one:  "core.outbox_retry_now(@id, nullif(@by, ''))",
		many: "core.outbox_retry_now_many(@ids, nullif(@by, ''), @times)",
	}
}

// with returns the arguments and further ones.
func (c Change) with(further pgx.NamedArgs) pgx.NamedArgs {
	maps.Copy(further, c.arguments)
	return further
}

// event identifies an event.
type event struct {
	EventID    uuid.UUID
	OccurredAt time.Time
}

// Apply changes the events of a selection, batch by batch, until ctx ends; a batch that has begun is finished, unless
// it has to wait for the server.
func (c *Client) Apply(ctx context.Context, s Selection, change Change, pace Pace) (BulkResult, error) {
	batchSize, perSecond := pace.limits()
	limiter := rate.NewLimiter(perSecond, batchSize)
	result := BulkResult{Reasons: []Skipped{}, NotReached: s.Len()}
	for from := 0; from < s.Len(); from += batchSize {
		k := s.slice(from, from+batchSize)
		if err := limiter.WaitN(ctx, k.Len()); err != nil {
			return result, fmt.Errorf("%s: stopped: %w", change.name, context.Cause(ctx))
		}
		if err := c.apply(ctx, k, change, pace.Waiting, &result); err != nil {
			return result, err
		}
		if pace.Progress != nil {
			pace.Progress(from + k.Len())
		}
	}
	return result, nil
}

// apply changes a batch, and adds to result what was done, and why events were skipped.
func (c *Client) apply(ctx context.Context, k Selection, change Change, waiting func(error),
	result *BulkResult) error {
	var done []event
	err := whenAvailable(ctx, waiting, func(ctx context.Context) (err error) {
		done, err = list[event](ctx, c, change.name, "select event_id, occurred_at from "+change.many,
			change.with(pgx.NamedArgs{"ids": k.ids, "times": k.times, "as_of": k.AsOf}))
		return err
	})
	if err != nil {
		return err
	}
	result.Done += len(done)
	result.NotReached -= k.Len()
	result.Skipped += k.Len() - len(done)
	params := coredb.OperatorStatesParams{AsOf: k.AsOf, Generation: int64(change.to)}
	for i, id := range k.ids {
		isIt := func(e event) bool { return e.EventID == id && e.OccurredAt.Equal(k.times[i]) }
		if len(result.Reasons)+len(params.Ids) < maxSkipped && !slices.ContainsFunc(done, isIt) {
			params.Ids, params.OccurredAts = append(params.Ids, id), append(params.OccurredAts, k.times[i])
		}
	}
	if len(params.Ids) == 0 {
		return nil
	}
	var states []coredb.OperatorStatesRow
	err = whenAvailable(ctx, waiting, func(ctx context.Context) error {
		return c.inTx(ctx, change.name, func(tx *pgtx.Tx) (err error) {
			states, err = coredb.New(tx).OperatorStates(ctx, params)
			return err
		})
	})
	for _, state := range states {
		result.Reasons = append(result.Reasons, Skipped(state))
	}
	return err
}

// whenAvailable calls do, and again while the server restarts or fails over, for batchTimeout in all. The end of ctx
// does not end the first call, but all that comes after it. A change whose answer was lost is repeated, and its events
// then count as skipped.
func whenAvailable(ctx context.Context, waiting func(cause error), do func(context.Context) error) error {
	trying, cancel := context.WithTimeout(context.WithoutCancel(ctx), batchTimeout)
	defer cancel()
	err := do(trying)
	defer context.AfterFunc(ctx, cancel)()
	for wait := (pgtx.Backoff{}); IsUnavailable(err) && (trying.Err() == nil || ctx.Err() != nil); {
		if waiting != nil {
			waiting(err)
		}
		if pgtx.Pause(trying, wait.Next(), nil); ctx.Err() != nil {
			return fmt.Errorf("stopped: %w", context.Cause(ctx))
		}
		err = do(trying)
	}
	return err
}

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
	err = c.search(ctx, "select events", timeout, func(tx *pgtx.Tx, asOf time.Time) error {
		s.AsOf = asOf // before they are read: an event that fails again during that is skipped later
		if !filter.AsOf.IsZero() {
			s.AsOf = filter.AsOf
		}
		const order = " order by o.claimed_at, o.id, o.occurred_at), '{}')"
		return tx.QueryRow(ctx, "select coalesce(array_agg(o.id"+order+", coalesce(array_agg(o.occurred_at"+order+
			" from core.outbox o where "+condition, arguments...).Scan(&s.ids, &s.times)
	})
	return s, err
}

// Shown returns the first events of a selection, at most limit, as they are now.
func (c *Client) Shown(ctx context.Context, s Selection, limit int) (all []Event, err error) {
	s = s.slice(0, limit)
	err = c.search(ctx, "look at events", 0, func(tx *pgtx.Tx, _ time.Time) error {
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
		err := c.inTx(ctx, fmt.Sprintf("look at event %s", id), func(tx *pgtx.Tx) error {
			if _, err := tx.Exec(ctx, "savepoint trial"); err != nil {
				return err
			}
			if _, err := tx.Exec(ctx, "select from "+change.one, change.with(pgx.NamedArgs{"id": id})); err != nil {
				return err
			}
			if err := tx.RollbackTo(ctx, "trial"); err != nil {
				return err
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
