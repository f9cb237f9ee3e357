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

// Generation is what a deployment generation has to do still, and where it stands. Absent times are nil.
type Generation struct {
	Generation events.Generation `json:"generation"`
	// Status is live, draining, closing (draining, and being retired), retired, or unknown: only events name it.
	Status       string     `json:"status"`
	RegisteredAt *time.Time `json:"registered_at"`
	DrainingAt   *time.Time `json:"draining_at"`
	ClosedAt     *time.Time `json:"closed_at"` // since when it takes no events
	RetiredAt    *time.Time `json:"retired_at"`
	// Events that its workers have to do with.
	Due       int64 `json:"due"`
	Scheduled int64 `json:"scheduled"` // pending until later
	InFlight  int64 `json:"in_flight"`
	// Failed ones need its workers no more: they are replayed into a live generation, or discarded.
	Failed        int64      `json:"failed"`
	OldestDue     *time.Time `json:"oldest_due"`
	NextScheduled *time.Time `json:"next_scheduled"`
	LastScheduled *time.Time `json:"last_scheduled"`
	// Workers are its processes whose session is there.
	Workers int64 `json:"workers"`
	// PublishingDefault says that publishing from SQL without a generation goes to it: it is the highest live one.
	PublishingDefault bool `json:"publishing_default"`
	// Paused are the types that are not claimed in it, by name.
	Paused []Pause `json:"paused"`
	// SafeToStop says that its workers have nothing left to do, and get no more from publishing that names no
	// generation: a live one, which may get events at any moment, is not safe to stop before it is drained.
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

// RegisterGeneration makes a generation known and live, a draining one as well.
func (c *Client) RegisterGeneration(ctx context.Context, g events.Generation, by string) error {
	return c.exec(ctx, fmt.Sprintf("register generation %d", g), func(q *coredb.Queries) error {
		_, err := q.RegisterGenerationBy(ctx, coredb.RegisterGenerationByParams{Generation: int64(g), ActedBy: by})
		return err
	})
}

// DrainGeneration makes a live generation a draining one; the only live one if forced only.
func (c *Client) DrainGeneration(ctx context.Context, g events.Generation, by string, force bool) error {
	return c.exec(ctx, fmt.Sprintf("drain generation %d", g), func(q *coredb.Queries) error {
		_, err := q.DrainGeneration(ctx, coredb.DrainGenerationParams{Generation: int64(g), ActedBy: by, Force: force})
		return err
	})
}

// Where a generation stands on its way to retired.
const (
	RetiringNotEmpty = "not empty" // events are left, and it takes more
	RetiringClosing  = "closing"   // it takes no more
	RetiringWaiting  = "waiting"   // for transactions
	RetiringDone     = "retired"
)

// RetireGeneration takes a draining generation one step towards retired. It is called until that is so; stopping in
// between is harmless. Reason says for people what is left, or waited for.
func (c *Client) RetireGeneration(ctx context.Context, g events.Generation,
	by string) (stands, reason string, err error) {
	stands, err = query(ctx, c, fmt.Sprintf("retire generation %d", g),
		func(q *coredb.Queries) (string, error) {
			return q.RetireGeneration(ctx, coredb.RetireGenerationParams{Generation: int64(g), ActedBy: by})
		})
	stands, reason, _ = strings.Cut(stands, ": ")
	return stands, reason, err
}

// Adoptable is what adopting would do to the events of one type that are for one target.
type Adoptable struct {
	EventType string `json:"event_type"`
	Due       int64  `json:"due"`
	Scheduled int64  `json:"scheduled"`
	// InFlight ones stay where they are.
	InFlight int64 `json:"in_flight"`
	// Workers of the adopting generation that are live and have a handler of the type in the target; 0: nobody would
	// take the events up.
	Workers int64 `json:"workers"`
	// Paused says that the type is paused in the adopting generation: the events would wait until it is resumed.
	Paused bool `json:"is_paused"`
	// Target is the context that the events are for; empty: every one.
	Target string `json:"target,omitempty"`
}

// Now is the time of the database.
func (c *Client) Now(ctx context.Context) (time.Time, error) {
	return query(ctx, c, "time of the database", func(q *coredb.Queries) (time.Time, error) { return q.Now(ctx) })
}

// Adoptable is the dry run of Adopt. No types are all types.
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

// Adopt moves up to limit pending events of one generation, which were created before a time of the database, into
// another, and returns how many. It is called until that is none: the same time for all calls ends that, however many
// are published between them. No types are all types.
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
