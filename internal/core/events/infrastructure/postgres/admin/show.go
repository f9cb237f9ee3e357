package admin

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"spectral/internal/core/events"
)

// Detail is all that is known of an event.
type Detail struct {
	Event
	// Of the envelope, beside what Event has.
	Payload        json.RawMessage `json:"payload"`
	IdempotencyKey string          `json:"idempotency_key"`
	TraceContext   *string         `json:"trace_context"`

	Class        string  `json:"class"` // of its channel; [events.DefaultClass] for the one without a name
	ContentClass string  `json:"content_class"`
	ClaimedBy    *string `json:"claimed_by"` // worker that has it in flight
	LeaseHandler *string `json:"lease_handler"`
	// LeaseExpiresAt is when it is taken from that worker unless it renews its lease.
	LeaseExpiresAt *time.Time `json:"lease_expires_at"`

	Handlers []HandlerState `json:"handlers"`
	// Workers are how many live workers of the event's generation handle its type.
	Workers int `json:"workers"`
	// Paused says who paused the event's type in its generation; nil: nobody.
	Paused *Pause `json:"pause"`
	// History has the entries of failure_history as they are: replays with the cycle before them, discards and what took them back,
	// leases that ran out; before all others {"omitted": n}, if n of them had to make room.
	History []json.RawMessage `json:"failure_history"`
	Actions []Action          `json:"actions"` // the first first; of very many the latest
}

// HandlerStage is what has become of an event at one handler.
type HandlerStage string

// The stages.
const (
	Handled HandlerStage = "handled"
	Failing HandlerStage = "failing" // it has failed, and is retried
	Parked  HandlerStage = "parked"  // it has failed for good, in this cycle
	ToRun   HandlerStage = "to_run"  // a live worker has it, and it has not run yet
	// NotRun: a live worker has it, but it was not there, or not for this event, when the event was settled.
	NotRun HandlerStage = "not_run"
	// NotTarget: a live worker has it, but the event is for another context.
	NotTarget HandlerStage = "not_target"
)

// HandlerState is one handler's of an event.
type HandlerState struct {
	Handler   string       `json:"handler"`
	Stage     HandlerStage `json:"stage"`
	HandledAt *time.Time   `json:"handled_at"`
	// HandledAs is the event by which the key was handled, if that is another one.
	HandledAs *uuid.UUID `json:"handled_as,omitempty"`
	Failures  int        `json:"failures"`       // counted ones
	Free      int        `json:"free,omitempty"` // uncounted ones in a row
	Class     string     `json:"class,omitempty"`
	Error     string     `json:"error,omitempty"`
}

// Show returns what is known of the event of that id: of all, should there be several that occurred at different
// times. The error is a [*RefusedError] (SP031) if there is none.
func (a *Admin) Show(ctx context.Context, id uuid.UUID) (all []Detail, err error) {
	err = a.search(ctx, 0, func(tx pgx.Tx) error {
		if all, err = details(ctx, tx, id); err != nil {
			return err
		}
		if len(all) == 0 {
			return unknownEvent(id)
		}
		_, acts, err := actions(ctx, tx, []uuid.UUID{id}, ActionFilter{}.where(), MaxPageSize, false)
		if err != nil {
			return err
		}
		slices.Reverse(acts)
		paused, err := pauses(ctx, tx)
		if err != nil {
			return err
		}
		for i := range all {
			for _, pause := range paused {
				if pause.EventType == all[i].EventType && pause.Generation == all[i].Generation {
					all[i].Paused = &pause
				}
			}
			all[i].Actions = append([]Action{}, acts...)
			if err := all[i].readHandlers(ctx, tx); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("show event: %w", err)
	}
	return all, nil
}

// details reads the rows. Documents come as text: jsonb is parsed by the driver, and what Go cannot parse could not be shown.
func details(ctx context.Context, tx pgx.Tx, id uuid.UUID) ([]Detail, error) {
	rows, err := tx.Query(ctx, "select "+displayed+`, o.payload::text, o.idempotency_key, o.trace_context, o.content_class,
		  o.claimed_by, o.lease_handler, o.handler_failures::text,
		  case when o.status = 'in_flight' and isfinite(o.claimed_at) then o.claimed_at + make_interval(secs => o.lease_seconds) end,
		  array(select h::text from jsonb_array_elements(o.failure_history) with ordinality as e(h, n) order by n)
		from core.outbox o where o.id = $1 order by o.occurred_at`, id)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var all []Detail
	for rows.Next() {
		var d Detail
		var payload, failures string
		var history []string
		if err := rows.Scan(append(d.fields(), &payload, &d.IdempotencyKey, &d.TraceContext, &d.ContentClass,
			&d.ClaimedBy, &d.LeaseHandler, &failures, &d.LeaseExpiresAt, &history)...); err != nil {
			return nil, err
		}
		d.utc()
		if d.LeaseExpiresAt != nil {
			*d.LeaseExpiresAt = d.LeaseExpiresAt.UTC()
		}
		d.Payload, d.Class = json.RawMessage(payload), class(d.Channel, d.Generation)
		d.History = []json.RawMessage{}
		for _, entry := range history {
			d.History = append(d.History, json.RawMessage(entry))
		}
		if d.Handlers, err = failing(failures); err != nil {
			return nil, err
		}
		all = append(all, d)
	}
	return all, rows.Err()
}

// class is the one that a channel is of.
func class(channel string, g events.Generation) string {
	if name, ok := strings.CutPrefix(channel, events.ChannelName(g, "")+"_"); ok {
		return name
	}
	return events.DefaultClass
}

// failing is what is recorded of handlers that failed, or of the substrate in their place.
func failing(text string) ([]HandlerState, error) {
	var record map[string]json.RawMessage
	if err := json.Unmarshal([]byte(text), &record); err != nil {
		return nil, fmt.Errorf("handler_failures: %w", err)
	}
	states := []HandlerState{}
	for name, entry := range record {
		var f struct {
			Failures float64 `json:"failures"`
			Free     float64 `json:"free"`
			Parked   bool    `json:"parked"`
			Class    string  `json:"class"`
			Error    string  `json:"error"`
		}
		s := HandlerState{Handler: name, Stage: Failing}
		// what a hand has written is shown as it is
		if err := json.Unmarshal(entry, &f); err != nil {
			s.Error = string(entry)
		} else {
			s.Failures, s.Free, s.Class, s.Error = int(f.Failures), int(f.Free), f.Class, f.Error
		}
		if f.Parked {
			s.Stage = Parked
		}
		states = append(states, s)
	}
	return states, nil
}

// readHandlers adds the handlers that have handled the event, or are still to. The names in core.event_handled are few,
// and found without reading all of it: its key begins with them.
func (d *Detail) readHandlers(ctx context.Context, tx pgx.Tx) error {
	rows, err := tx.Query(ctx, `
		with recursive known(name) as (
		  (select h.handler_name from core.event_handled h order by h.handler_name limit 1)
		  union all
		  select (select h.handler_name from core.event_handled h where h.handler_name > k.name order by h.handler_name limit 1)
		  from known k where k.name is not null)
		select k.name, e.handled_at, e.event_id
		from known k cross join lateral
		  (select h.handled_at, h.event_id from core.event_handled h
		   where h.handler_name = k.name and h.idempotency_key = $1 offset 0) e`, d.IdempotencyKey)
	if err != nil {
		return err
	}
	handled, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (s HandlerState, err error) {
		var at time.Time
		var by uuid.UUID
		err = row.Scan(&s.Handler, &at, &by)
		at = at.UTC()
		s.Stage, s.HandledAt = Handled, &at
		if by != d.ID {
			s.HandledAs = &by
		}
		return s, err
	})
	if err != nil {
		return err
	}
	rows, err = tx.Query(ctx, `
		select n.name, count(*) from core.live_workers w
		cross join lateral jsonb_array_elements_text(case when jsonb_typeof(w.handlers -> $2) = 'array' then w.handlers -> $2 else '[]' end) as n(name)
		where w.generation = $1 group by n.name`, d.Generation, d.EventType)
	if err != nil {
		return err
	}
	live, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (s HandlerState, err error) {
		var workers int
		err = row.Scan(&s.Handler, &workers)
		d.Workers = max(d.Workers, workers)
		return s, err
	})
	if err != nil {
		return err
	}
	d.Handlers = d.stages(handled, live)
	return nil
}

// stages puts together what is known of each handler, by name.
func (d *Detail) stages(handled, live []HandlerState) []HandlerState {
	byName := make(map[string]HandlerState)
	for _, s := range live {
		scope, _, _ := strings.Cut(s.Handler, ".")
		switch {
		case d.Target != nil && scope != string(*d.Target):
			s.Stage = NotTarget
		case d.Status == Delivered || d.Status == Expired || d.Status == Failed || d.Status == Discarded:
			s.Stage = NotRun
		default:
			s.Stage = ToRun
		}
		byName[s.Handler] = s
	}
	for _, s := range d.Handlers {
		byName[s.Handler] = s
	}
	for _, s := range handled {
		byName[s.Handler] = s
	}
	all := make([]HandlerState, 0, len(byName))
	for _, name := range slices.Sorted(maps.Keys(byName)) {
		all = append(all, byName[name])
	}
	return all
}
