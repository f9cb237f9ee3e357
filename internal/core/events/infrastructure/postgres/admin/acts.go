package admin

import (
	"cmp"
	"context"
	"fmt"
	"slices"
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

// Pace is how an act on many events goes on beside live traffic: a short transaction for each batch.
type Pace struct {
	Batch int     // events in a transaction, at most MaxBatch and what Rate allows in a second; zero means DefaultBatch
	Rate  float64 // events per second at most; zero means DefaultRate, below zero as fast as it goes
	// Progress is called after each batch with how many events have been gone through, if it is set.
	Progress func(through int)
}

// steps are how many events a batch has, and how many there may be a second.
func (p Pace) steps() (batch int, perSecond rate.Limit) {
	batch, perSecond = cmp.Or(p.Batch, DefaultBatch), rate.Limit(cmp.Or(p.Rate, DefaultRate))
	if perSecond < 0 {
		return batch, rate.Inf
	}
	return int(min(float64(batch), max(float64(perSecond), 1))), perSecond
}

// Acted is the result of an act on a selection. With an error beside it, that is the result so far: what is done is
// committed, and the same act may simply be repeated, for it passes over what it has done: all but a replay, by
// force, of a new selection of delivered events.
type Acted struct {
	Done    int `json:"done"`
	LeftOut int `json:"left_out"` // what had changed since the selection, or was locked, or what it cannot be done to
	// Reasons are for the first of those that were left out.
	Reasons []LeftOut `json:"reasons"`
	Pending int       `json:"not_reached"` // not gone through before an error
}

// LeftOut is an event that an act passed over.
type LeftOut struct {
	EventID    uuid.UUID `json:"event_id"`
	OccurredAt time.Time `json:"occurred_at"`
	// State is its status now, or failed again, delivered again, discarded, past its days of grace, expired, gone, of a
	// type that nobody consumes there; if another session is changing it, the state before that.
	State string `json:"state"`
}

// Replay lets events run again under the code of a generation (seed: replay procedure), in batches. Delivered ones
// only by force. What was replayed, has failed or was delivered since the selection is left out: each event is
// replayed once by all operators who replay at once, and none replays a failure that he has not been shown.
func (a *Admin) Replay(ctx context.Context, s Selection, to events.Generation, by string, force bool,
	pace Pace) (Acted, error) {
	return a.act(ctx, s, pace, "replay", to, func(ctx context.Context, q *coredb.Queries, k Selection) ([]event, error) {
		return named(q.OperatorReplay(ctx, coredb.OperatorReplayParams{
			Ids: k.ids, OccurredAts: k.times, Generation: int64(to), ByWhom: by, SettledBefore: s.AsOf, Force: force,
		}))
	})
}

// Discard gives failed events up for good, in batches.
func (a *Admin) Discard(ctx context.Context, s Selection, by, reason string, pace Pace) (Acted, error) {
	return a.act(ctx, s, pace, "discard", 0, func(ctx context.Context, q *coredb.Queries, k Selection) ([]event, error) {
		return named(q.OperatorDiscard(ctx, coredb.OperatorDiscardParams{
			Ids: k.ids, OccurredAts: k.times, ByWhom: by, Reason: reason, FailedBefore: s.AsOf,
		}))
	})
}

// Undiscard takes discards back, within the days of grace of retention, in batches.
func (a *Admin) Undiscard(ctx context.Context, s Selection, by string, pace Pace) (Acted, error) {
	return a.act(ctx, s, pace, "undiscard", 0, func(ctx context.Context, q *coredb.Queries, k Selection) ([]event, error) {
		return named(q.OperatorUndiscard(ctx, coredb.OperatorUndiscardParams{Ids: k.ids, OccurredAts: k.times, ByWhom: by}))
	})
}

// RetryNow makes pending events due that wait for a later time, for a retry or as their producer asked, in batches.
// Parked handlers stay parked.
func (a *Admin) RetryNow(ctx context.Context, s Selection, by string, pace Pace) (Acted, error) {
	return a.act(ctx, s, pace, "retry now", 0, func(ctx context.Context, q *coredb.Queries, k Selection) ([]event, error) {
		return named(q.OperatorRetryNow(ctx, coredb.OperatorRetryNowParams{Ids: k.ids, OccurredAts: k.times, ByWhom: by}))
	})
}

// event is one that a query acted on.
type event = coredb.OperatorReplayRow

func named[R event | coredb.OperatorDiscardRow | coredb.OperatorUndiscardRow | coredb.OperatorRetryNowRow](rows []R,
	err error) ([]event, error) {
	all := make([]event, len(rows))
	for i, row := range rows {
		all[i] = event(row)
	}
	return all, err
}

// act does something to the events of a selection, batch by batch, until ctx ends: not within a batch. To is the
// generation they go to, 0 for none.
func (a *Admin) act(ctx context.Context, s Selection, pace Pace, name string, to events.Generation,
	do func(context.Context, *coredb.Queries, Selection) ([]event, error)) (Acted, error) {
	batchSize, perSecond := pace.steps()
	limiter := rate.NewLimiter(perSecond, batchSize)
	acted := Acted{Reasons: []LeftOut{}, Pending: s.Len()}
	for from := 0; from < s.Len(); from += batchSize {
		k := s.slice(from, from+batchSize)
		if err := limiter.WaitN(ctx, len(k.ids)); err != nil {
			return acted, fmt.Errorf("%s: stopped: %w", name, context.Cause(ctx))
		}
		var done []event
		batch, cancel := context.WithTimeout(context.WithoutCancel(ctx), batchTimeout)
		err := a.inTx(batch, func(tx pgx.Tx) (err error) {
			done, err = do(batch, coredb.New(tx), k)
			return err
		})
		if err == nil {
			acted.Done += len(done)
			acted.Pending -= len(k.ids)
			err = a.explain(batch, &acted, to, k, done)
		}
		cancel()
		if err != nil {
			return acted, fmt.Errorf("%s: %w", name, err)
		}
		if pace.Progress != nil {
			pace.Progress(from + len(k.ids))
		}
	}
	return acted, nil
}

// explain notes why a batch has left events out.
func (a *Admin) explain(ctx context.Context, acted *Acted, to events.Generation, k Selection,
	done []event) error {
	acted.LeftOut += len(k.ids) - len(done)
	params := coredb.OperatorStatesParams{AsOf: k.AsOf, Generation: int64(to)}
	for i, id := range k.ids {
		isIt := func(e event) bool { return e.EventID == id && e.OccurredAt.Equal(k.times[i]) }
		if len(acted.Reasons)+len(params.Ids) < maxLeftOut && !slices.ContainsFunc(done, isIt) {
			params.Ids, params.OccurredAts = append(params.Ids, id), append(params.OccurredAts, k.times[i])
		}
	}
	if len(params.Ids) == 0 {
		return nil
	}
	return a.inTx(ctx, func(tx pgx.Tx) error {
		states, err := coredb.New(tx).OperatorStates(ctx, params)
		for _, state := range states {
			acted.Reasons = append(acted.Reasons, LeftOut{state.ID, state.OccurredAt.UTC(), state.State})
		}
		return err
	})
}
