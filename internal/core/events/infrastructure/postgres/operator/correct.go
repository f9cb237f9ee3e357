package operator

import (
	"context"
	"encoding/json"
	"time"

	"github.com/google/uuid"
)

// Correct publishes a copy of a failed event with another payload, discards the original for good, and returns the id
// of the copy. Handlers that have handled the original do not run for the copy (docs/decisions/0025). It returns a
// [*RefusedError] for an event that is not failed, an unchanged payload, or one that publishing refuses.
func (c *Client) Correct(ctx context.Context, id uuid.UUID, occurredAt time.Time, payload json.RawMessage, by,
	reason string) (corrected uuid.UUID, err error) {
	// as text, because Go would round its numbers
	return value[uuid.UUID](ctx, c, "correct the event",
		"select core.outbox_correct($1, $2::text::jsonb, nullif($3, ''), nullif($4, ''), $5)", id, string(payload), by,
		reason, occurredAt)
}
