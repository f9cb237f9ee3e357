package admin

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"spectral/internal/core/events"
	"spectral/internal/core/events/infrastructure/postgres"
	"spectral/internal/core/events/infrastructure/postgres/coredb"
)

// Effect is what a replay would mean for one handler of one event.
type Effect struct {
	EventID    uuid.UUID `json:"event_id"`
	OccurredAt time.Time `json:"occurred_at"`
	EventType  string    `json:"event_type"`
	// Handler is empty where no live worker of the generation handles the event.
	Handler   string     `json:"handler"`
	WouldRun  bool       `json:"would_run"`
	HandledAt *time.Time `json:"handled_at"` // null: not yet
	Note      string     `json:"note,omitempty"`
}

// HandlerEffect sums what a replay would mean for one handler.
type HandlerEffect struct {
	EventType string `json:"event_type"`
	Handler   string `json:"handler"`
	WouldRun  int    `json:"would_run"`
	Handled   int    `json:"already_handled"`
}

// UnhandledEffect sums events that nobody would handle.
type UnhandledEffect struct {
	EventType string `json:"event_type"`
	Events    int    `json:"count"`
	Note      string `json:"note"`
}

// Preview sums what a replay would do.
type Preview struct {
	AsOf     time.Time         `json:"as_of"`
	To       events.Generation `json:"to"`
	Events   int               `json:"count"`
	Handlers []HandlerEffect   `json:"handlers"`
	// Unhandled are of no use to replay as things stand: they would wait for a worker that handles them, or not be replayed at all.
	Unhandled []UnhandledEffect `json:"unhandled"`
	Paused    []Pause           `json:"paused"` // types that would wait until they are resumed
}

// PreviewReplay says what Replay of a selection would let run: which handlers, by the live workers of the generation, and which
// would be skipped because they have handled the event's idempotency key. Each, if it is set, is called for every thousand
// events or so. Nothing is changed.
func (a *Admin) PreviewReplay(ctx context.Context, s Selection, to events.Generation, each func([]Effect) error) (Preview, error) {
	type name struct{ eventType, handler, note string }
	handlers := make(map[name]HandlerEffect)
	unhandled := make(map[name]int)
	types := make(map[string]bool)
	preview := Preview{AsOf: s.AsOf.UTC(), To: to, Events: s.Len(), Paused: []Pause{}}
	// once even for no event, for the generation is checked, too
	for from := 0; from == 0 || from < s.Len(); from += MaxBatch {
		ids, occurredAts := s.slice(from, from+MaxBatch)
		var rows []coredb.OperatorReplayPreviewRow
		err := a.inTx(ctx, func(tx pgx.Tx) (err error) {
			rows, err = coredb.New(tx).OperatorReplayPreview(ctx, coredb.OperatorReplayPreviewParams{
				Ids: append([]uuid.UUID{}, ids...), OccurredAts: append([]time.Time{}, occurredAts...), Generation: int64(to),
			})
			return err
		})
		if err != nil {
			return Preview{}, fmt.Errorf("preview the replay: %w", err)
		}
		effects := make([]Effect, len(rows))
		var last ref // that is counted as unhandled
		for i, r := range rows {
			effects[i] = Effect{EventID: r.EventID, OccurredAt: r.OccurredAt.UTC(), EventType: r.EventType, Handler: r.Handler, HandledAt: postgres.Present(r.HandledAt), WouldRun: r.WouldRun, Note: r.Note}
			types[r.EventType] = true
			if r.Handler == "" || !r.WouldRun && r.HandledAt.IsZero() {
				if event := (ref{r.EventID, r.OccurredAt.UnixMicro()}); event != last { // it has a line for each handler
					unhandled[name{eventType: r.EventType, note: r.Note}]++
					last = event
				}
				continue
			}
			h := handlers[name{eventType: r.EventType, handler: r.Handler}]
			h.EventType, h.Handler = r.EventType, r.Handler
			if r.WouldRun {
				h.WouldRun++
			} else {
				h.Handled++
			}
			handlers[name{eventType: r.EventType, handler: r.Handler}] = h
		}
		if each != nil {
			if err := each(effects); err != nil {
				return Preview{}, err
			}
		}
	}
	pauses, err := a.Pauses(ctx)
	if err != nil {
		return Preview{}, err
	}
	for _, p := range pauses {
		if p.Generation == to && types[p.EventType] {
			preview.Paused = append(preview.Paused, p)
		}
	}
	preview.Handlers = slices.AppendSeq([]HandlerEffect{}, maps.Values(handlers))
	slices.SortFunc(preview.Handlers, func(a, b HandlerEffect) int {
		return cmp.Or(strings.Compare(a.EventType, b.EventType), strings.Compare(a.Handler, b.Handler))
	})
	preview.Unhandled = make([]UnhandledEffect, 0, len(unhandled))
	for n, count := range unhandled {
		preview.Unhandled = append(preview.Unhandled, UnhandledEffect{EventType: n.eventType, Events: count, Note: n.note})
	}
	slices.SortFunc(preview.Unhandled, func(a, b UnhandledEffect) int {
		return cmp.Or(strings.Compare(a.EventType, b.EventType), strings.Compare(a.Note, b.Note))
	})
	return preview, nil
}
