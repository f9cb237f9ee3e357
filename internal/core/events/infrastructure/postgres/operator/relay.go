package operator

import (
	"context"
	"time"

	"spectral/internal/core/events"
	"spectral/internal/core/events/infrastructure/postgres/pgtx"

	"github.com/google/uuid"
)

// Relay is which way events take, and what a broker has.
type Relay struct {
	ID         uuid.UUID  `json:"-"`    // of the database
	Path       string     `json:"path"` // postgres, both or jetstream
	SwitchedAt *time.Time `json:"switched_at"`
	SwitchedBy *string    `json:"switched_by"`
	// Relayed is the number of events that a broker has for their handlers; FirstAt is since when the first of them.
	Relayed int64      `json:"relayed"`
	FirstAt *time.Time `json:"first_at"`
}

// Relay returns the state of the relay.
func (c *Client) Relay(ctx context.Context) (Relay, error) {
	all, err := list[Relay](ctx, c, "state of the relay", `
select r.id, r.path, r.switched_at, r.switched_by, count(o.relayed_at) as relayed, min(o.relayed_at) as first_at
from core.relay r left join core.outbox o on o.status = 'relayed' and o.deleted_at is null
group by r.id, r.path, r.switched_at, r.switched_by`)
	if err != nil {
		return Relay{}, err
	}
	return all[0], nil
}

// SwitchRelay sets the way that events take, and returns the one until now.
func (c *Client) SwitchRelay(ctx context.Context, path, by string) (before string, err error) {
	return value[string](ctx, c, "switch the relay", "select core.relay_switch($1, nullif($2, ''))", path, by)
}

// ReturnRelayed makes up to limit relayed events pending again, and returns how many. Call it until it returns 0.
func (c *Client) ReturnRelayed(ctx context.Context, limit int) (int, error) {
	return value[int](ctx, c, "give relayed events back",
		"select core.outbox_relayed_return_lost(null, null, 'infinity', null, $1)", limit)
}

// Sent is an event that was sent to a broker, as Postgres has it.
type Sent struct {
	Envelope     events.Envelope
	ContentClass string
	Generation   events.Generation
	Status       string // pending, relayed, delivered or failed
	// HandledBy are the handlers that have handled its idempotency key.
	HandledBy []string
}

// SentSince calls use with each event that a broker has taken from a time of the database on. Events that were
// published more than an hour before that time are left out.
func (c *Client) SentSince(ctx context.Context, since time.Time, use func(Sent)) error {
	return c.inTx(ctx, "read what was sent", func(tx *pgtx.Tx) error {
		found, err := tx.Query(ctx, `
with recursive known(name) as (
  (select h.handler_name from core.event_handled h order by h.handler_name limit 1)
  union all
  select (select h.handler_name from core.event_handled h where h.handler_name > k.name order by h.handler_name limit 1)
  from known k where k.name is not null)
select o.id, o.event_type, o.event_version, o.occurred_at, o.source, coalesce(o.target, ''), o.workspace_id,
  o.payload::text, o.idempotency_key, coalesce(o.trace_context, ''), o.content_class, o.generation, o.status,
  array(select h.handler_name from known k join core.event_handled h on h.handler_name = k.name
        where h.idempotency_key = o.idempotency_key)
from core.outbox o where o.relayed_at >= $1 and o.id >= core.uuid_v7_floor($1 - interval '1 hour')`, since)
		if err != nil {
			return err
		}
		defer found.Close()
		for found.Next() {
			var s Sent
			e, payload := &s.Envelope, ""
			if err := found.Scan(&e.EventID, &e.EventType, &e.EventVersion, &e.OccurredAt, &e.Source, &e.Target, &e.WorkspaceID,
				&payload, &e.IdempotencyKey, &e.TraceContext, &s.ContentClass, &s.Generation, &s.Status, &s.HandledBy); err != nil {
				return err
			}
			e.Payload = []byte(payload)
			use(s)
		}
		return found.Err()
	})
}
