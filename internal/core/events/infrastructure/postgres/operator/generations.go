package operator

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"spectral/internal/core/events"
	"spectral/internal/core/events/infrastructure/postgres/coredb"
	"spectral/internal/core/events/infrastructure/postgres/pgtx"
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
	Due       int64 `json:"due"`
	Scheduled int64 `json:"scheduled"` // pending until later
	InFlight  int64 `json:"in_flight"`
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
func (c *Client) Generations(ctx context.Context, only *events.Generation) (all []Generation, err error) {
	err = c.inTx(ctx, func(tx pgx.Tx) error {
		all, err = generations(ctx, coredb.New(tx), only)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("status of generations: %w", err)
	}
	return all, nil
}

func generations(ctx context.Context, q *coredb.Queries, only *events.Generation) ([]Generation, error) {
	rows, err := q.GenerationStatus(ctx, (*int64)(only))
	if err != nil {
		return nil, err
	}
	paused, err := pauses(ctx, q)
	if err != nil {
		return nil, err
	}
	all := make([]Generation, len(rows))
	for i, r := range rows {
		all[i] = Generation{
			Generation: events.Generation(r.Generation), Status: r.Status,
			RegisteredAt: pgtx.Present(r.RegisteredAt), DrainingAt: pgtx.Present(r.DrainingAt),
			ClosedAt: pgtx.Present(r.ClosedAt), RetiredAt: pgtx.Present(r.RetiredAt),
			Due: r.Due, Scheduled: r.Scheduled, InFlight: r.InFlight, Failed: r.Failed,
			OldestDue: pgtx.Present(r.OldestDue), NextScheduled: pgtx.Present(r.NextScheduled),
			LastScheduled: pgtx.Present(r.LastScheduled), Workers: r.Workers, PublishingDefault: r.PublishingDefault,
			Paused: []Pause{}, SafeToStop: r.Due+r.Scheduled+r.InFlight == 0 && r.Status != "live",
		}
		for _, p := range paused {
			if p.Generation == all[i].Generation {
				all[i].Paused = append(all[i].Paused, p)
			}
		}
	}
	return all, nil
}

// RegisterGeneration makes a generation live: a new one, or one that is draining.
func (c *Client) RegisterGeneration(ctx context.Context, g events.Generation, by string) error {
	return c.exec(ctx, fmt.Sprintf("register generation %d", g), func(q *coredb.Queries) error {
		_, err := q.RegisterGenerationBy(ctx, coredb.RegisterGenerationByParams{Generation: int64(g), ActedBy: by})
		return err
	})
}

// DrainGeneration makes a live generation a draining one. The only live one must be forced.
func (c *Client) DrainGeneration(ctx context.Context, g events.Generation, by string, force bool) error {
	return c.exec(ctx, fmt.Sprintf("drain generation %d", g), func(q *coredb.Queries) error {
		_, err := q.DrainGeneration(ctx, coredb.DrainGenerationParams{Generation: int64(g), ActedBy: by, Force: force})
		return err
	})
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
	stands, err = query(ctx, c, fmt.Sprintf("retire generation %d", g),
		func(q *coredb.Queries) (string, error) {
			return q.RetireGeneration(ctx, coredb.RetireGenerationParams{Generation: int64(g), ActedBy: by})
		})
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
	return query(ctx, c, "time of the database", func(q *coredb.Queries) (time.Time, error) { return q.Now(ctx) })
}

// Adoptable returns what Adopt would do, and changes nothing. No types means all types.
func (c *Client) Adoptable(ctx context.Context, from, to events.Generation, types []string) ([]Adoptable, error) {
	rows, err := query(ctx, c, fmt.Sprintf("adopt generation %d into %d", from, to),
		func(q *coredb.Queries) ([]coredb.AdoptableRow, error) {
			return q.Adoptable(ctx, coredb.AdoptableParams{
				FromGeneration: int64(from), ToGeneration: int64(to), EventTypes: types,
			})
		})
	if err != nil {
		return nil, err
	}
	all := make([]Adoptable, len(rows))
	for i, r := range rows {
		all[i] = Adoptable(r)
	}
	return all, nil
}

// Adopt moves up to limit pending events from one generation into another, and returns how many. It moves only events
// created before a time of the database. Call it with the same time until it returns 0; events that are published
// between the calls stay. No types means all types.
func (c *Client) Adopt(ctx context.Context, from, to events.Generation, types []string, before time.Time, limit int,
	by string) (int, error) {
	moved, err := query(ctx, c, fmt.Sprintf("adopt generation %d into %d", from, to),
		func(q *coredb.Queries) (int32, error) {
			return q.Adopt(ctx, coredb.AdoptParams{
				FromGeneration: int64(from), ToGeneration: int64(to), RowLimit: int32(limit), //nolint:gosec // bounded
				ActedBy: by, EventTypes: types, Before: before,
			})
		})
	return int(moved), err
}
