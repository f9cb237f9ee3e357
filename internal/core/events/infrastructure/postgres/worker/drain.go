package worker

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

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
	return fmt.Sprintf("generation %d has events left that neither this build nor another live worker of it handles: %s; "+
		"run the build that does, or move them to one that does: `workers generation adopt %[1]d GENERATION`",
		e.Generation, strings.Join(types, ", "))
}

// Drain waits until nothing of the generation is left to do: due, scheduled or in flight, in this process or another.
// It waits for paused types too. With ownTypesOnly, events of types that the worker does not handle do not count;
// otherwise it returns a [*StrandedError] if nothing else is left. It returns nil when the worker has ended, and the
// error of ctx when that is done. Start the worker before; it goes on until it is stopped.
func (w *Worker) Drain(ctx context.Context, ownTypesOnly bool) error {
	var logged time.Time
	for {
		asked := time.Now()
		rows, err := w.backlog(ctx, ownTypesOnly)
		switch {
		case err == nil:
			waiting, left := w.sum(rows)
			if !waiting && len(left.stranded) == 0 {
				return nil
			}
			if !waiting {
				return &StrandedError{Generation: w.config.Generation, Types: left.stranded}
			}
			if time.Since(logged) >= pgtx.DrainLog {
				logged = time.Now()
				w.config.Log.InfoContext(ctx, "draining: events are left", left.attributes()...)
			}
		case ctx.Err() == nil:
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

// backlogSum is what is left of a generation.
type backlogSum struct {
	total    coredb.GenerationBacklogRow // of the types that are waited for
	paused   []string
	stranded []StrandedType // of no live worker
}

// sum also reports whether there are types to wait for.
func (w *Worker) sum(rows []coredb.GenerationBacklogRow) (waiting bool, s backlogSum) {
	for _, row := range rows {
		if _, own := w.consumers[row.EventType]; !own && row.Workers == 0 {
			s.stranded = append(s.stranded, StrandedType{row.EventType, row.Due + row.Scheduled + row.InFlight})
			continue
		}
		waiting = true
		if row.Paused {
			s.paused = append(s.paused, row.EventType)
		}
		s.total.Due += row.Due
		s.total.Scheduled += row.Scheduled
		s.total.InFlight += row.InFlight
		if row.LastScheduled.After(s.total.LastScheduled) {
			s.total.LastScheduled = row.LastScheduled
		}
	}
	return waiting, s
}

func (s *backlogSum) attributes() []any {
	attributes := []any{pgtx.LogDue, s.total.Due, pgtx.LogScheduled, s.total.Scheduled, pgtx.LogInFlight,
		s.total.InFlight}
	if s.total.Scheduled > 0 {
		attributes = append(attributes, pgtx.LogScheduledUntil, s.total.LastScheduled.UTC())
	}
	if len(s.paused) > 0 {
		attributes = append(attributes, pgtx.LogPaused, s.paused)
	}
	if len(s.stranded) > 0 {
		attributes = append(attributes, pgtx.LogUnhandled, s.stranded)
	}
	return attributes
}

func (w *Worker) backlog(ctx context.Context, ownTypesOnly bool) (left []coredb.GenerationBacklogRow, err error) {
	ctx, done := context.WithTimeout(ctx, pgtx.DrainCount)
	defer done()
	err = pgtx.RunAs(ctx, w.config.Pool, pgtx.WorkerRole, func(tx pgx.Tx) (err error) {
		left, err = coredb.New(tx).GenerationBacklog(ctx, int64(w.config.Generation))
		return err
	})
	if ownTypesOnly {
		left = slices.DeleteFunc(left, func(row coredb.GenerationBacklogRow) bool {
			_, own := w.consumers[row.EventType]
			return !own
		})
	}
	return left, err
}
