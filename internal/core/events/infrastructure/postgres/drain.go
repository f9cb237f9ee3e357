package postgres

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"spectral/internal/core/events"
	"spectral/internal/core/events/infrastructure/postgres/coredb"
)

const (
	// drainPause lies between two questions of what is left. A backlog that takes long to count is asked for less often: a
	// drainShare-th of the time at most.
	drainPause = 250 * time.Millisecond
	drainShare = 20
	// drainTimeout is for counting millions.
	drainTimeout = time.Minute
	// drainSays is how often a drain that takes long says what it waits for.
	drainSays = 30 * time.Second
)

// StrandedError is what a drain ends with when all that is left is of event types that no live worker of the generation
// handles.
type StrandedError struct {
	Generation events.Generation
	Types      []StrandedType
}

// StrandedType is an event type, and how many of its events are left.
type StrandedType struct {
	EventType string `json:"event_type"`
	Events    int64  `json:"events"`
}

func (e *StrandedError) Error() string {
	var types []string
	for _, t := range e.Types {
		types = append(types, fmt.Sprintf("%s (%d)", t.EventType, t.Events))
	}
	return fmt.Sprintf("generation %d has events left that neither this build nor any other live worker of the generation handles: %s; "+
		"run the build that does, or move them: workers generation adopt %[1]d <generation that handles them>", e.Generation, strings.Join(types, ", "))
}

// Drain waits until nothing of the generation is left to do: due, scheduled or in flight, in this process or another. Paused
// types are waited for. Event types that the listener does not handle count unless ownTypesOnly; if nothing else is left it returns a [*StrandedError].
// It returns nil as well when the listener has ended, and the error of ctx when that is done. The listener is started
// before, and goes on until it is stopped.
func (l *Listener) Drain(ctx context.Context, ownTypesOnly bool) error {
	var said time.Time
	for {
		asked := time.Now()
		left, err := l.backlog(ctx, ownTypesOnly)
		if err == nil {
			waiting := false
			stranded := StrandedError{Generation: l.config.Generation}
			var total coredb.GenerationBacklogRow
			var paused []string
			for _, row := range left {
				if _, own := l.consumers[row.EventType]; !own && row.Workers == 0 {
					stranded.Types = append(stranded.Types, StrandedType{row.EventType, row.Due + row.Scheduled + row.InFlight})
					continue
				}
				waiting = true
				if row.Paused {
					paused = append(paused, row.EventType)
				}
				total.Due, total.Scheduled, total.InFlight = total.Due+row.Due, total.Scheduled+row.Scheduled, total.InFlight+row.InFlight
				if row.LastScheduled.After(total.LastScheduled) {
					total.LastScheduled = row.LastScheduled
				}
			}
			switch {
			case !waiting && len(stranded.Types) > 0:
				return &stranded
			case !waiting:
				return nil
			}
			if now := time.Now(); said.IsZero() || now.Sub(said) >= drainSays {
				said = now
				attributes := []any{logDue, total.Due, logScheduled, total.Scheduled, logInFlight, total.InFlight}
				if total.Scheduled > 0 {
					attributes = append(attributes, logScheduledUntil, total.LastScheduled.UTC())
				}
				if len(paused) > 0 {
					attributes = append(attributes, logPaused, paused)
				}
				if len(stranded.Types) > 0 {
					attributes = append(attributes, logStranded, stranded.Types)
				}
				l.config.Log.InfoContext(ctx, "draining: events are left", attributes...)
			}
		} else if ctx.Err() == nil {
			l.config.Log.WarnContext(ctx, "could not find out what is left to drain", logErrorClass, classify(err, 0).class, logReason, err.Error())
		}
		pause(ctx, max(drainPause, drainShare*time.Since(asked)), l.stopped)
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-l.stopped:
			return nil
		default:
		}
	}
}

// Left is how many events of the generation are due, scheduled or in flight, in whichever process; of the listener's event types
// alone if ownTypesOnly. It may be asked of a listener that has been stopped.
func (l *Listener) Left(ctx context.Context, ownTypesOnly bool) (events int64, err error) {
	rows, err := l.backlog(ctx, ownTypesOnly)
	if err != nil {
		return 0, fmt.Errorf("count what is left of generation %d: %w", l.config.Generation, err)
	}
	for _, row := range rows {
		events += row.Due + row.Scheduled + row.InFlight
	}
	return events, nil
}

func (l *Listener) backlog(ctx context.Context, ownTypesOnly bool) (left []coredb.GenerationBacklogRow, err error) {
	ctx, done := context.WithTimeout(ctx, drainTimeout)
	defer done()
	err = ActAs(ctx, l.config.Pool, workerRole, func(tx pgx.Tx) (err error) {
		left, err = coredb.New(tx).GenerationBacklog(ctx, int64(l.config.Generation))
		return err
	})
	if ownTypesOnly {
		left = slices.DeleteFunc(left, func(row coredb.GenerationBacklogRow) bool {
			_, own := l.consumers[row.EventType]
			return !own
		})
	}
	return left, err
}
