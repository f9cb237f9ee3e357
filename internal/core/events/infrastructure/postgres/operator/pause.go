package operator

import (
	"context"
	"time"

	"spectral/internal/core/events"
	"spectral/internal/core/events/infrastructure/postgres/coredb"
)

// Pause is an event type that no worker claims in a generation.
type Pause struct {
	EventType  string            `json:"event_type"`
	Generation events.Generation `json:"generation"`
	PausedAt   time.Time         `json:"paused_at"`
	PausedBy   string            `json:"paused_by"`
	Reason     *string           `json:"reason"`
}

// Pauses returns all pauses, by generation and type.
func (c *Client) Pauses(ctx context.Context) ([]Pause, error) {
	return query(ctx, c, "list pauses", func(q *coredb.Queries) ([]Pause, error) { return pauses(ctx, q) })
}

func pauses(ctx context.Context, q *coredb.Queries) ([]Pause, error) {
	rows, err := q.PausedTypes(ctx)
	all := make([]Pause, len(rows))
	for i, r := range rows {
		all[i] = Pause{r.EventType, events.Generation(r.Generation), r.PausedAt.UTC(), r.PausedBy, r.Reason}
	}
	return all, err
}

// Pause stops claims of an event type in a generation. Publishing goes on, and workers finish the events that they
// hold.
func (c *Client) Pause(ctx context.Context, eventType string, generation events.Generation, by, reason string) error {
	return c.exec(ctx, "pause", func(q *coredb.Queries) error {
		return q.PauseType(ctx, coredb.PauseTypeParams{
			EventType: eventType, Generation: int64(generation), ByWhom: by, Reason: reason,
		})
	})
}

// Resume ends a pause and wakes the workers.
func (c *Client) Resume(ctx context.Context, eventType string, generation events.Generation, by string) error {
	return c.exec(ctx, "resume", func(q *coredb.Queries) error {
		return q.ResumeType(ctx, coredb.ResumeTypeParams{EventType: eventType, Generation: int64(generation),
			ByWhom: by})
	})
}
