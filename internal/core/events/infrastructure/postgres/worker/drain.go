package worker

import (
	"context"
	"fmt"
	"strings"
	"time"

	"spectral/internal/core/events"
	"spectral/internal/core/events/infrastructure/postgres/coredb"
	"spectral/internal/core/events/infrastructure/postgres/pgtx"
)

// drainShare: a backlog that takes long to count is counted less often, so that counting takes a drainShare-th of the
// time.
const drainShare = 20

// StrandedError ends a drain when everything that is left is of event types that no live worker of the generation
// handles.
type StrandedError struct {
	Generation events.Generation
	Types      []StrandedType
}

// StrandedType is an event type and the number of its events that are left.
type StrandedType struct {
	EventType string `json:"event_type"`
	Events    int64  `json:"events"`
}

func (e *StrandedError) Error() string {
	var types []string
	for _, t := range e.Types {
		types = append(types, fmt.Sprintf("%s (%d)", t.EventType, t.Events))
	}
	return fmt.Sprintf("generation %d still has events that neither this build nor another of its live workers handles: "+
		"%s; run the build that handles them, or move them into another generation: `workers generation adopt %[1]d "+
		"GENERATION`", e.Generation, strings.Join(types, ", "))
}

// Drain waits until nothing of the generation is left to do: due, scheduled or in flight, in this process or another.
// It waits for paused types too. With ownTypesOnly, events of types that the worker does not handle do not count;
// otherwise it returns a [*StrandedError] if nothing else is left. It returns nil when the worker has ended, and the
// error of ctx when that is done. Start the worker before; it goes on until it is stopped.
func (w *Worker) Drain(ctx context.Context, ownTypesOnly bool) error {
	var logged time.Time
	for {
		asked := time.Now()
		left, err := w.backlog(ctx, ownTypesOnly)
		switch {
		case err == nil && !left.waiting && len(left.stranded) == 0:
			return nil
		case err == nil && !left.waiting:
			return &StrandedError{Generation: w.config.Generation, Types: left.stranded}
		case err == nil && time.Since(logged) >= pgtx.DrainLog:
			logged = time.Now()
			w.config.Log.InfoContext(ctx, "draining: events are left", pgtx.LogDue, left.due, pgtx.LogScheduled,
				left.scheduled, pgtx.LogInFlight, left.inFlight, pgtx.LogScheduledUntil, pgtx.Present(left.until),
				pgtx.LogPaused, left.paused, pgtx.LogUnhandled, left.stranded)
		case err != nil && ctx.Err() == nil && time.Since(logged) >= pgtx.DrainLog:
			logged = time.Now()
			w.config.Log.WarnContext(ctx, "could not find out what is left to drain", pgtx.LogError(err)...)
		}
		pgtx.Pause(ctx, max(pgtx.DrainPause, drainShare*time.Since(asked)), w.stopped)
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-w.stopped:
			return nil
		default:
		}
	}
}

// backlog is what is left of a generation.
type backlog struct {
	waiting                  bool // there are types to wait for; of these:
	due, scheduled, inFlight int64
	until                    time.Time // when the last scheduled one is due
	paused                   []string
	stranded                 []StrandedType // of no live worker
}

func (w *Worker) backlog(ctx context.Context, ownTypesOnly bool) (left backlog, err error) {
	ctx, done := context.WithTimeout(ctx, pgtx.DrainCount)
	defer done()
	var rows []coredb.GenerationBacklogRow
	err = pgtx.RunAs(ctx, w.config.Pool, pgtx.WorkerRole, func(tx *pgtx.Tx) (err error) {
		rows, err = coredb.New(tx).GenerationBacklog(ctx, int64(w.config.Generation))
		return err
	})
	for _, row := range rows {
		_, own := w.consumers[row.EventType]
		switch {
		case !own && ownTypesOnly:
			continue
		case !own && row.Workers == 0:
			left.stranded = append(left.stranded, StrandedType{row.EventType, row.Due + row.Scheduled + row.InFlight})
			continue
		case row.Paused:
			left.paused = append(left.paused, row.EventType)
		}
		left.waiting = true
		left.due += row.Due
		left.scheduled += row.Scheduled
		left.inFlight += row.InFlight
		if row.LastScheduled.After(left.until) {
			left.until = row.LastScheduled
		}
	}
	return left, err
}
