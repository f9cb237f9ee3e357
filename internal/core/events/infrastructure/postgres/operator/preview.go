package operator

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/google/uuid"

	"spectral/internal/core/events"
)

// Effect is what a replay would do with one handler of one event.
type Effect struct {
	EventID    uuid.UUID `json:"event_id"`
	OccurredAt time.Time `json:"occurred_at"`
	EventType  string    `json:"event_type"`
	// Handler is empty if no live worker of the generation handles the event.
	Handler   string     `json:"handler"`
	WouldRun  bool       `json:"would_run"`
	HandledAt *time.Time `json:"handled_at"` // null: not yet
	Note      string     `json:"note,omitempty"`
	// Begun says that it failed before. Outside is what it does outside its transaction, and OnReplay what a replay does
	// with it if it had begun.
	Begun    bool                `json:"begun"`
	Outside  string              `json:"acts_outside,omitempty"`
	OnReplay events.ReplayPolicy `json:"on_replay"`
}

// HandlerEffect sums up what a replay would do with one handler.
type HandlerEffect struct {
	EventType string `json:"event_type"`
	Handler   string `json:"handler"`
	WouldRun  int    `json:"would_run"`
	Handled   int    `json:"already_handled"`
	Skipped   int    `json:"skipped"` // it had begun, and does not run again
	Asks      int    `json:"asks"`    // it had begun, and the operator must say whether it runs again
	Outside   string `json:"acts_outside,omitempty"`
}

// UnhandledEffect counts events that no worker would handle.
type UnhandledEffect struct {
	EventType string `json:"event_type"`
	Events    int    `json:"count"`
	Note      string `json:"note"`
}

// Preview is what a replay would do.
type Preview struct {
	AsOf     time.Time         `json:"as_of"`
	To       events.Generation `json:"to"`
	Events   int               `json:"count"`
	Handlers []HandlerEffect   `json:"handlers"`
	// Unhandled events would wait for a worker that handles them, or not be replayed at all.
	Unhandled []UnhandledEffect `json:"unhandled"`
	Paused    []Pause           `json:"paused"`   // paused types among them: their events would wait
	Breakers  []string          `json:"breakers"` // handlers among them whose breakers are open: their events would wait
	Effects   []Effect          `json:"effects"`  // event by event, if asked for
}

// PreviewReplay returns what Replay of a selection would do, and changes nothing. It names the handlers of live workers
// that would run, and those that would be skipped because they have handled the event's idempotency key, or had begun
// and are not to run again. InFull adds the effects event by event.
func (c *Client) PreviewReplay(ctx context.Context, s Selection, to events.Generation, choice Choice,
	inFull bool) (Preview, error) {
	preview := Preview{AsOf: s.AsOf.UTC(), To: to, Events: s.Len(), Handlers: []HandlerEffect{},
		Unhandled: []UnhandledEffect{}, Paused: []Pause{}, Effects: []Effect{}}
	unknown, err := value[[]string](ctx, c, "look up handlers", `select coalesce(array_agg(n), '{}')
		from unnest($1::text[]) n where n not in (select h.handler_name from core.handlers h)`,
		slices.Concat(choice.Run, choice.Skip))
	if err == nil && len(unknown) > 0 {
		err = fmt.Errorf("--run or --skip: no worker has registered a handler %s; `workers handlers list` lists them",
			Joined(unknown))
	}
	if err != nil {
		return Preview{}, err
	}
	types := make(map[string]bool)
	var last Effect // the last one counted as unhandled
	// once even without events, because it also checks the generation
	for from := 0; from == 0 || from < s.Len(); from += MaxBatch {
		k := s.slice(from, from+MaxBatch)
		effects, err := list[Effect](ctx, c, "preview the replay", `
select p.event_id, p.occurred_at, p.event_type, coalesce(p.handler, '') as handler, p.would_run, p.handled_at,
  coalesce(p.note, '') as note, p.begun, coalesce(p.effect, '') as outside, p.on_replay
from core.outbox_replay_preview_many($1, $2, $3) p`, k.ids, to, k.times)
		if err != nil {
			return Preview{}, err
		}
		for i := range effects {
			effects[i].choose(choice)
		}
		if inFull {
			preview.Effects = append(preview.Effects, effects...)
		}
		for _, e := range effects {
			types[e.EventType] = true
			if e.Handler == "" || !e.WouldRun && e.HandledAt == nil && e.OnReplay == events.ReplayAllow {
				u := entry(&preview.Unhandled, UnhandledEffect{EventType: e.EventType, Note: e.Note})
				if e.EventID != last.EventID || !e.OccurredAt.Equal(last.OccurredAt) { // an event has a row for each handler
					u.Events++
				}
				last = e
				continue
			}
			h := entry(&preview.Handlers, HandlerEffect{EventType: e.EventType, Handler: e.Handler,
				Outside: e.Outside})
			switch {
			case e.HandledAt != nil:
				h.Handled++
			case e.OnReplay == events.ReplayAsk:
				h.Asks++
			case e.OnReplay == events.ReplaySkip:
				h.Skipped++
			default:
				h.WouldRun++
			}
		}
	}
	preview.Breakers, err = value[[]string](ctx, c, "read the breakers", "select "+
		"coalesce(array_agg(b.handler_name order by b.handler_name), '{}') from core.breakers b "+
		"where b.generation = $1 and b.event_type = any ($2)", to,
		slices.Collect(maps.Keys(types)))
	if err != nil {
		return Preview{}, err
	}
	pauses, err := c.Pauses(ctx)
	for _, p := range pauses {
		if p.Generation == to && types[p.EventType] {
			preview.Paused = append(preview.Paused, p)
		}
	}
	return preview, err
}

// choose sets what a replay does with the handler: OnReplay is allow where it had not begun, or the operator says so.
func (e *Effect) choose(choice Choice) {
	switch {
	case !e.WouldRun || !e.Begun || slices.Contains(choice.Run, e.Handler):
		e.OnReplay = events.ReplayAllow
	case slices.Contains(choice.Skip, e.Handler):
		e.OnReplay = events.ReplaySkip
	}
	e.WouldRun = e.WouldRun && e.OnReplay == events.ReplayAllow
}

// Asking returns the handlers of which the operator must say whether they run again.
func (p Preview) Asking() (handlers []string) {
	for _, h := range p.Handlers {
		if h.Asks > 0 {
			handlers = append(handlers, h.Handler)
		}
	}
	return handlers
}

func (h HandlerEffect) key() string   { return h.EventType + "\n" + h.Handler }
func (u UnhandledEffect) key() string { return u.EventType + "\n" + u.Note }

// entry returns the value with the key of first in values that are sorted by key. It adds first if there is none.
func entry[V interface{ key() string }](all *[]V, first V) *V {
	i, found := slices.BinarySearchFunc(*all, first.key(), func(v V, key string) int { return cmp.Compare(v.key(), key) })
	if !found {
		*all = slices.Insert(*all, i, first)
	}
	return &(*all)[i]
}
