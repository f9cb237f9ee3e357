package operator

import (
	"context"
	"time"

	"spectral/internal/core/events"
)

// Pause is an event type that no worker claims in a generation.
type Pause struct {
	EventType  string            `json:"event_type"`
	Generation events.Generation `json:"generation"`
	PausedAt   time.Time         `json:"paused_at"`
	PausedBy   string            `json:"paused_by"`
	Reason     *string           `json:"reason"`
}

const pauses = "select event_type, generation, paused_at, paused_by, reason from core.paused_types order by generation, " +
	"event_type"

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
