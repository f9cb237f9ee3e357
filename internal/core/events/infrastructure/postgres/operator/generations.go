package operator

import (
	"context"
	"fmt"
	"strings"
	"time"

	"spectral/internal/core/events"
)

// Generation is the state of a deployment generation, and the events that it still has. Absent times are nil.
type Generation struct {
	Generation events.Generation `json:"generation"`
	// Status is live, draining, closing (draining, and being retired), retired, or unknown (only events name it).
	Status       string     `json:"status"`
	RegisteredAt *time.Time `json:"registered_at"`
	DrainingAt   *time.Time `json:"draining_at"`
	ClosedAt     *time.Time `json:"closed_at"` // since then publishing into it is refused
	RetiredAt    *time.Time `json:"retired_at"`
	// Events that its workers still have to handle.
	Due         int64 `json:"due"`
	Scheduled   int64 `json:"scheduled"` // pending until later
	InFlight    int64 `json:"in_flight"`
	Quarantined int64 `json:"quarantined"` // of these, those that no worker claims
	// Failed events do not need its workers: they are replayed into a live generation, or discarded.
	Failed        int64      `json:"failed"`
	OldestDue     *time.Time `json:"oldest_due"`
	NextScheduled *time.Time `json:"next_scheduled"`
	LastScheduled *time.Time `json:"last_scheduled"`
	// Workers is the number of its processes with a live session.
	Workers int64 `json:"workers"`
	// PublishingDefault says that it is the highest live generation: publishing that names no generation goes to it.
	PublishingDefault bool `json:"publishing_default"`
	// Paused are the paused event types in it, by name.
	Paused []Pause `json:"paused"`
	// SafeToStop says that its workers may be stopped: it is not live, and no event is due, scheduled or in flight.
	SafeToStop bool `json:"safe_to_stop"`
}

// Generations returns the generations that are registered or named by unsettled events, in order; with only, that one.
func (c *Client) Generations(ctx context.Context, only *events.Generation) ([]Generation, error) {
	all, err := list[Generation](ctx, c, "status of generations", `
select generation, status, registered_at, draining_at, closed_at, retired_at, due, scheduled, in_flight, failed,
  oldest_due, next_scheduled, last_scheduled, workers, publishing_default,
  due + scheduled + in_flight = 0 and status <> 'live' as safe_to_stop,
  (select count(*) from core.quarantined_events q where q.generation = s.generation) as quarantined
from core.generation_status($1) s`, only)
	if err != nil {
		return nil, err
	}
	paused, err := c.Pauses(ctx)
	for i := range all {
		all[i].Paused = []Pause{}
		for _, p := range paused {
			if p.Generation == all[i].Generation {
				all[i].Paused = append(all[i].Paused, p)
			}
		}
	}
	return all, err
}

// RegisterGeneration makes a generation live: a new one, or one that is draining.
func (c *Client) RegisterGeneration(ctx context.Context, g events.Generation, by string) error {
	return c.exec(ctx, fmt.Sprintf("register generation %d", g), "select core.generation_register($1, nullif($2, ''))", g,
		by)
}

// DrainGeneration makes a live generation a draining one. The only live one must be forced.
func (c *Client) DrainGeneration(ctx context.Context, g events.Generation, by string, force bool) error {
	return c.exec(ctx, fmt.Sprintf("drain generation %d", g), "select core.generation_drain($1, nullif($2, ''), $3)", g,
		by, force)
}

// The states of a generation that is being retired.
const (
	RetiringNotEmpty = "not empty" // events are left, and publishing into it goes on
	RetiringClosing  = "closing"   // publishing into it is refused
	RetiringWaiting  = "waiting"   // for transactions that may have published into it
	RetiringDone     = "retired"
)

// RetireGeneration takes a draining generation one step towards retired. Call it until it returns [RetiringDone]; to
// stop before that is harmless. Reason says in words what is left or awaited.
func (c *Client) RetireGeneration(ctx context.Context, g events.Generation,
	by string) (stands, reason string, err error) {
	stands, err = value[string](ctx, c, fmt.Sprintf("retire generation %d", g),
		"select core.generation_retire($1, nullif($2, ''))", g, by)
	stands, reason, _ = strings.Cut(stands, ": ")
	return stands, reason, err
}

// Adoptable is what [Client.Adopt] would do to the events of one type and one target.
type Adoptable struct {
	EventType string `json:"event_type"`
	Due       int64  `json:"due"`
	Scheduled int64  `json:"scheduled"`
	// InFlight events stay where they are.
	InFlight int64 `json:"in_flight"`
	// Workers is the number of live workers of the adopting generation that handle the type in the target.
	Workers int64 `json:"workers"`
	// Paused says that the type is paused in the adopting generation: the events would wait.
	Paused bool `json:"is_paused"`
	// Target is the context that the events are for; empty: every context.
	Target string `json:"target,omitempty"`
}

// Now returns the time of the database's clock.
func (c *Client) Now(ctx context.Context) (time.Time, error) {
	return value[time.Time](ctx, c, "time of the database", "select clock_timestamp()")
}

// Adoptable returns what Adopt would do, and changes nothing. No types means all types.
func (c *Client) Adoptable(ctx context.Context, from, to events.Generation, types []string) ([]Adoptable, error) {
	return list[Adoptable](ctx, c, fmt.Sprintf("adopt generation %d into %d", from, to), `
select event_type, due, scheduled, in_flight, workers, paused, coalesce(target, '') as target
from core.outbox_adoptable($1, $2, $3)`, from, to, types)
}

// Adopt moves up to limit pending events from one generation into another, and returns how many. It moves only events
// created before a time of the database. Call it with the same time until it returns 0; events that are published
// between the calls stay. No types means all types.
func (c *Client) Adopt(ctx context.Context, from, to events.Generation, types []string, before time.Time, limit int,
	by string) (int, error) {
	return value[int](ctx, c, fmt.Sprintf("adopt generation %d into %d", from, to),
		"select core.outbox_adopt($1, $2, $3, nullif($4, ''), $5, $6)", from, to, limit, by, types, before)
}

// Pause is an event type that no worker claims in a generation.
type Pause struct {
	EventType  string            `json:"event_type"`
	Generation events.Generation `json:"generation"`
	PausedAt   time.Time         `json:"paused_at"`
	PausedBy   string            `json:"paused_by"`
	Reason     *string           `json:"reason"`
}

const pauses = "select event_type, generation, paused_at, paused_by, reason from core.paused_types " +
	"order by generation, event_type"

// Pauses returns all pauses, by generation and type.
func (c *Client) Pauses(ctx context.Context) ([]Pause, error) {
	return list[Pause](ctx, c, "list pauses", pauses)
}

// Pause stops claims of an event type in a generation. Publishing goes on, and workers finish the events that they
// hold.
func (c *Client) Pause(ctx context.Context, eventType string, generation events.Generation, by, reason string) error {
	return c.exec(ctx, "pause", "select core.event_type_pause($1, $2, nullif($3, ''), nullif($4, ''))", eventType,
		generation, by, reason)
}

// Resume ends a pause and wakes the workers.
func (c *Client) Resume(ctx context.Context, eventType string, generation events.Generation, by string) error {
	return c.exec(ctx, "resume", "select core.event_type_resume($1, $2, nullif($3, ''))", eventType, generation, by)
}
