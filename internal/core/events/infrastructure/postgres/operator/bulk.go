package operator

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

// The pace of a bulk command, unless told otherwise.
const (
	DefaultBatch = 200
	MaxBatch     = 1000 // the SQL functions take no more
	DefaultRate  = 1000 // events per second: a small part of what workers deliver
)

// batchTimeout bounds the transaction of one batch. A batch that has begun is finished even if the command is to stop.
const batchTimeout = 30 * time.Second

// maxSkipped is how many skipped events a result names.
const maxSkipped = 100

// Pace says how fast a bulk command goes beside live traffic. Each batch is a separate short transaction.
type Pace struct {
	Batch int     // events in a transaction, at most MaxBatch and one second of Rate; zero means DefaultBatch
	Rate  float64 // events per second at most; zero means DefaultRate, below zero no limit
	// Progress, if set, is called after each batch with the number of events processed so far.
	Progress func(processed int)
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

// Replay makes failed events pending in generation to, in batches; delivered ones only by force. It skips what was
// replayed, failed or was delivered after the selection was made. So each event is replayed once, however many
// operators replay at the same time, and no operator replays a failure unseen.
func (c *Client) Replay(ctx context.Context, s Selection, to events.Generation, by string, force bool,
	pace Pace) (BulkResult, error) {
	return c.inBatches(ctx, s, pace, "replay", to, func(ctx context.Context, q *coredb.Queries, k Selection) ([]event,
		error) {
		return named(q.OperatorReplay(ctx, coredb.OperatorReplayParams{
			Ids: k.ids, OccurredAts: k.times, Generation: int64(to), ByWhom: by, SettledBefore: s.AsOf, Force: force,
		}))
	})
}

// Discard discards failed events, in batches.
func (c *Client) Discard(ctx context.Context, s Selection, by, reason string, pace Pace) (BulkResult, error) {
	return c.inBatches(ctx, s, pace, "discard", 0, func(ctx context.Context, q *coredb.Queries, k Selection) ([]event,
		error) {
		return named(q.OperatorDiscard(ctx, coredb.OperatorDiscardParams{
			Ids: k.ids, OccurredAts: k.times, ByWhom: by, Reason: reason, FailedBefore: s.AsOf,
		}))
	})
}

// Undiscard makes discarded events failed again, in batches. It works within the days of grace of retention.
func (c *Client) Undiscard(ctx context.Context, s Selection, by string, pace Pace) (BulkResult, error) {
	return c.inBatches(ctx, s, pace, "undiscard", 0, func(ctx context.Context, q *coredb.Queries,
		k Selection) ([]event, error) {
		return named(q.OperatorUndiscard(ctx, coredb.OperatorUndiscardParams{Ids: k.ids, OccurredAts: k.times,
			ByWhom: by}))
	})
}

// RetryNow makes scheduled events due, in batches, whether they wait for a retry or for the time their producer chose.
// Parked handlers stay parked.
func (c *Client) RetryNow(ctx context.Context, s Selection, by string, pace Pace) (BulkResult, error) {
	return c.inBatches(ctx, s, pace, "retry now", 0, func(ctx context.Context, q *coredb.Queries,
		k Selection) ([]event, error) {
		return named(q.OperatorRetryNow(ctx, coredb.OperatorRetryNowParams{Ids: k.ids, OccurredAts: k.times,
			ByWhom: by}))
	})
}

// event identifies an event that a query changed.
type event = coredb.OperatorReplayRow

func named[R event | coredb.OperatorDiscardRow | coredb.OperatorUndiscardRow | coredb.OperatorRetryNowRow](rows []R,
	err error) ([]event, error) {
	all := make([]event, len(rows))
	for i, row := range rows {
		all[i] = event(row)
	}
	return all, err
}

// inBatches calls do for the events of a selection, batch by batch, until ctx ends; a batch that has begun is finished.
// To is the generation that the events go to, or 0.
func (c *Client) inBatches(ctx context.Context, s Selection, pace Pace, name string, to events.Generation,
	do func(context.Context, *coredb.Queries, Selection) ([]event, error)) (BulkResult, error) {
	batchSize, perSecond := pace.limits()
	limiter := rate.NewLimiter(perSecond, batchSize)
	result := BulkResult{Reasons: []Skipped{}, NotReached: s.Len()}
	for from := 0; from < s.Len(); from += batchSize {
		k := s.slice(from, from+batchSize)
		if err := limiter.WaitN(ctx, len(k.ids)); err != nil {
			return result, fmt.Errorf("%s: stopped: %w", name, context.Cause(ctx))
		}
		var done []event
		batch, cancel := context.WithTimeout(context.WithoutCancel(ctx), batchTimeout)
		err := c.inTx(batch, func(tx pgx.Tx) (err error) {
			done, err = do(batch, coredb.New(tx), k)
			return err
		})
		if err == nil {
			result.Done += len(done)
			result.NotReached -= len(k.ids)
			err = c.explainSkipped(batch, &result, to, k, done)
		}
		cancel()
		if err != nil {
			return result, fmt.Errorf("%s: %w", name, err)
		}
		if pace.Progress != nil {
			pace.Progress(from + len(k.ids))
		}
	}
	return result, nil
}

// explainSkipped adds to result why a batch skipped events.
func (c *Client) explainSkipped(ctx context.Context, result *BulkResult, to events.Generation, k Selection,
	done []event) error {
	result.Skipped += len(k.ids) - len(done)
	params := coredb.OperatorStatesParams{AsOf: k.AsOf, Generation: int64(to)}
	for i, id := range k.ids {
		isIt := func(e event) bool { return e.EventID == id && e.OccurredAt.Equal(k.times[i]) }
		if len(result.Reasons)+len(params.Ids) < maxSkipped && !slices.ContainsFunc(done, isIt) {
			params.Ids, params.OccurredAts = append(params.Ids, id), append(params.OccurredAts, k.times[i])
		}
	}
	if len(params.Ids) == 0 {
		return nil
	}
	return c.inTx(ctx, func(tx pgx.Tx) error {
		states, err := coredb.New(tx).OperatorStates(ctx, params)
		for _, state := range states {
			result.Reasons = append(result.Reasons, Skipped{state.ID, state.OccurredAt.UTC(), state.State})
		}
		return err
	})
}
