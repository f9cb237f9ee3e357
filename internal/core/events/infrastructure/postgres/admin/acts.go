package admin

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"golang.org/x/time/rate"

	"spectral/internal/core/events"
	"spectral/internal/core/events/infrastructure/postgres/coredb"
)

// How acts on many events go on, unless told otherwise.
const (
	DefaultBatch = 200
	MaxBatch     = 1000 // which the SQL functions take
	DefaultRate  = 1000 // events per second: a small part of what workers deliver
)

// batchTimeout bounds the transaction of one batch, which is finished also when the act is to stop.
const batchTimeout = 30 * time.Second

// maxLeftOut is how many events that were left out are named.
const maxLeftOut = 100

// Pace is how an act on many events goes on beside live traffic: a short transaction for each batch, with
// one ring for each channel.
type Pace struct {
	Batch int     // events in a transaction, from 1 to MaxBatch, but no more than Rate has in a second; zero means DefaultBatch
	Rate  float64 // events per second at most; zero means DefaultRate, below zero as fast as it goes
	// Progress is called after each batch with how many events have been gone through, if it is set.
	Progress func(through int)
}

// Steps are how many events a batch has, and how many there may be a second: with a batch of more than a second's
// worth the first one alone would break the rate.
func (p Pace) Steps() (batch int, perSecond rate.Limit) {
	batch, perSecond = cmp.Or(p.Batch, DefaultBatch), rate.Limit(cmp.Or(p.Rate, DefaultRate))
	if perSecond < 0 {
		return batch, rate.Inf
	}
	return int(min(float64(batch), max(float64(perSecond), 1))), perSecond
}

// Acted is what an act on a selection came to. With an error beside it, that is what it came to so far: what is done is
// committed, and the same act may simply be asked for again, for it passes over what it has done: all but a replay, by force, of a new
// selection of delivered events.
type Acted struct {
	Done    int `json:"done"`
	LeftOut int `json:"left_out"` // what had changed since the selection, or was locked, or what it cannot be done to
	// Reasons are for the first of those that were left out.
	Reasons []LeftOut `json:"reasons"`
	Pending int       `json:"not_reached"` // not gone through before an error
	// NeverTried is how many of those that were made due no handler had tried before; nil for other acts.
	NeverTried *int `json:"never_tried,omitempty"`
	neverTried int
}

// LeftOut is an event that an act passed over.
type LeftOut struct {
	EventID    uuid.UUID `json:"event_id"`
	OccurredAt time.Time `json:"occurred_at"`
	// State is what it is now: a status, failed anew, delivered anew, discarded, past its days of grace, expired, gone, of a type that
	// nobody consumes there; or what it was, if somebody else is changing it.
	State string `json:"state"`
}

// Replay lets events run again under the code of a generation (seed: replay procedure), in batches. Delivered ones only by force. Whatever
// somebody else has replayed meanwhile, or what has failed or was delivered anew, is left out: each is replayed once by all who replay at
// once, an event that fails again is not replayed in circles, and nobody replays a failure that he has not been shown. A new selection of delivered events has those that were replayed, too.
func (a *Admin) Replay(ctx context.Context, s Selection, to events.Generation, by string, force bool, pace Pace) (Acted, error) {
	return a.act(ctx, s, pace, "replay", to, func(ctx context.Context, queries *coredb.Queries, ids []uuid.UUID, occurredAts []time.Time) ([]actedOn, error) {
		rows, err := queries.OperatorReplay(ctx, coredb.OperatorReplayParams{
			Ids: ids, OccurredAts: occurredAts, Generation: int64(to), ByWhom: by, SettledBefore: s.settledBefore(), Force: force,
		})
		return each(rows, func(r coredb.OperatorReplayRow) actedOn {
			return actedOn{ref: ref{r.EventID, r.OccurredAt.UnixMicro()}}
		}), err
	})
}

// Discard gives failed events up for good, in batches.
func (a *Admin) Discard(ctx context.Context, s Selection, by, reason string, pace Pace) (Acted, error) {
	return a.act(ctx, s, pace, "discard", 0, func(ctx context.Context, queries *coredb.Queries, ids []uuid.UUID, occurredAts []time.Time) ([]actedOn, error) {
		rows, err := queries.OperatorDiscard(ctx, coredb.OperatorDiscardParams{
			Ids: ids, OccurredAts: occurredAts, ByWhom: by, Reason: reason, FailedBefore: s.settledBefore(),
		})
		return each(rows, func(r coredb.OperatorDiscardRow) actedOn {
			return actedOn{ref: ref{r.EventID, r.OccurredAt.UnixMicro()}}
		}), err
	})
}

// Undiscard takes discards back, within the days of grace of retention, in batches.
func (a *Admin) Undiscard(ctx context.Context, s Selection, by string, pace Pace) (Acted, error) {
	return a.act(ctx, s, pace, "undiscard", 0, func(ctx context.Context, queries *coredb.Queries, ids []uuid.UUID, occurredAts []time.Time) ([]actedOn, error) {
		rows, err := queries.OperatorUndiscard(ctx, coredb.OperatorUndiscardParams{Ids: ids, OccurredAts: occurredAts, ByWhom: by})
		return each(rows, func(r coredb.OperatorUndiscardRow) actedOn {
			return actedOn{ref: ref{r.EventID, r.OccurredAt.UnixMicro()}}
		}), err
	})
}

// RetryNow makes pending events due that wait for a later time, for a retry or as their producer asked, in batches. Parked handlers stay parked.
func (a *Admin) RetryNow(ctx context.Context, s Selection, by string, pace Pace) (Acted, error) {
	acted, err := a.act(ctx, s, pace, "retry now", 0, func(ctx context.Context, queries *coredb.Queries, ids []uuid.UUID, occurredAts []time.Time) ([]actedOn, error) {
		rows, err := queries.OperatorRetryNow(ctx, coredb.OperatorRetryNowParams{Ids: ids, OccurredAts: occurredAts, ByWhom: by})
		return each(rows, func(r coredb.OperatorRetryNowRow) actedOn {
			return actedOn{ref: ref{r.EventID, r.OccurredAt.UnixMicro()}, neverTried: !r.Tried}
		}), err
	})
	acted.NeverTried = &acted.neverTried
	return acted, err
}

// actedOn is an event that an act was done to.
type actedOn struct {
	ref
	neverTried bool
}

func each[R any](rows []R, of func(R) actedOn) []actedOn {
	all := make([]actedOn, len(rows))
	for i, row := range rows {
		all[i] = of(row)
	}
	return all
}

// act does something to the events of a selection, batch by batch, until ctx ends: not within a batch. To is the generation they go
// to, 0 for none.
func (a *Admin) act(ctx context.Context, s Selection, pace Pace, name string, to events.Generation,
	do func(context.Context, *coredb.Queries, []uuid.UUID, []time.Time) ([]actedOn, error)) (acted Acted, err error) {
	if pace.Batch < 0 || pace.Batch > MaxBatch {
		return Acted{}, fmt.Errorf("batch %d: must be from 1 to %d", pace.Batch, MaxBatch)
	}
	batchSize, perSecond := pace.Steps()
	limiter := rate.NewLimiter(perSecond, batchSize)
	acted = Acted{Reasons: []LeftOut{}, Pending: s.Len()}
	for from := 0; from < s.Len(); from += batchSize {
		ids, occurredAts := s.slice(from, from+batchSize)
		if err := limiter.WaitN(ctx, len(ids)); err != nil {
			return acted, fmt.Errorf("%s: stopped: %w", name, context.Cause(ctx))
		}
		var done []actedOn
		batch, cancel := context.WithTimeout(context.WithoutCancel(ctx), batchTimeout)
		err := a.inTx(batch, func(tx pgx.Tx) (err error) {
			queries := coredb.New(tx)
			done, err = do(batch, queries, ids, occurredAts)
			return err
		})
		if err == nil {
			acted.Done += len(done)
			acted.Pending -= len(ids)
			for _, d := range done {
				if d.neverTried {
					acted.neverTried++
				}
			}
			err = a.explain(batch, &acted, s.settledBefore(), to, ids, occurredAts, done)
		}
		cancel()
		if err != nil {
			return acted, fmt.Errorf("%s: %w", name, err)
		}
		if pace.Progress != nil {
			pace.Progress(from + len(ids))
		}
	}
	return acted, nil
}

// explain notes what a batch has left out.
func (a *Admin) explain(ctx context.Context, acted *Acted, asOf time.Time, to events.Generation, ids []uuid.UUID, occurredAts []time.Time, done []actedOn) error {
	if len(done) == len(ids) {
		return nil
	}
	acted.LeftOut += len(ids) - len(done)
	room := maxLeftOut - len(acted.Reasons)
	if room <= 0 {
		return nil
	}
	made := make(map[ref]bool, len(done))
	for _, d := range done {
		made[d.ref] = true
	}
	var leftIDs []uuid.UUID
	var leftTimes []time.Time
	for i, id := range ids {
		if !made[ref{id, occurredAts[i].UnixMicro()}] && len(leftIDs) < room {
			leftIDs, leftTimes = append(leftIDs, id), append(leftTimes, occurredAts[i])
		}
	}
	return a.inTx(ctx, func(tx pgx.Tx) error {
		states, err := coredb.New(tx).OperatorStates(ctx, coredb.OperatorStatesParams{AsOf: asOf, Generation: int64(to), Ids: leftIDs, OccurredAts: leftTimes})
		for _, state := range states {
			acted.Reasons = append(acted.Reasons, LeftOut{EventID: state.ID, OccurredAt: state.OccurredAt.UTC(), State: state.State})
		}
		return err
	})
}
