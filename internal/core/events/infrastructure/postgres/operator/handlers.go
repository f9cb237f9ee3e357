package operator

import (
	"context"
	"time"

	"spectral/internal/core/events"
)

// Handler is a handler that workers of a generation have registered, with its breaker.
type Handler struct {
	Generation  events.Generation   `json:"generation"`
	Handler     string              `json:"handler"`
	EventType   string              `json:"event_type"`
	ActsOutside string              `json:"acts_outside"`
	OnReplay    events.ReplayPolicy `json:"on_replay"`
	Workers     int                 `json:"workers"` // live ones that have it
	// Breaker is closed, open (the handler is probed), forced (an operator opened it: no probes) or closing.
	Breaker     string     `json:"breaker"`
	OpenedAt    *time.Time `json:"opened_at"`
	OpenedBy    *string    `json:"opened_by"`
	Cause       *string    `json:"cause"`
	NextProbeAt *time.Time `json:"next_probe_at"`
	Probes      int        `json:"probes"`  // calls since it opened
	Waiting     int        `json:"waiting"` // events, exact up to MaxWaiting; one more stands for more
}

// MaxWaiting is up to how many waiting events are counted.
const MaxWaiting = 10_000

// Handlers returns the handlers of generations that are not retired, those with an open breaker first.
func (c *Client) Handlers(ctx context.Context) ([]Handler, error) {
	return list[Handler](ctx, c, "list handlers", `
select h.generation, h.handler_name as handler, h.event_type, coalesce(h.effect, '') as acts_outside, h.on_replay,
  (select count(*)::int from core.live_workers w where w.generation = h.generation
    and w.handlers -> h.event_type ? h.handler_name) as workers,
  case when b.handler_name is null then 'closed' when b.closing then 'closing' when b.forced then 'forced'
    else 'open' end as breaker, b.opened_at, b.opened_by, b.cause,
  case when not b.forced and not b.closing then b.next_probe_at end as next_probe_at, coalesce(b.probes, 0) as probes,
  case when b.handler_name is null then 0 else (select count(*)::int from (select from core.outbox o
    where o.generation = h.generation and o.waiting_for = h.handler_name and o.status = 'pending'
      and o.deleted_at is null limit $1 + 1) w) end as waiting
from (select k.generation, k.handler_name, k.event_type, k.effect, k.on_replay from core.handlers k
  union all
  select b.generation, b.handler_name, b.event_type, null, 'allow' from core.breakers b where not exists
    (select from core.handlers k where k.generation = b.generation and k.handler_name = b.handler_name)) h
join core.deployments d on d.generation = h.generation and d.status <> 'retired'
left join core.breakers b on b.generation = h.generation and b.handler_name = h.handler_name
order by b.handler_name is null, h.generation desc, h.handler_name`, MaxWaiting)
}

// TripHandler opens the breaker of a handler until [Client.CloseHandler]: its events wait. It returns a [*RefusedError]
// for an unknown handler.
func (c *Client) TripHandler(ctx context.Context, g events.Generation, handler, by, reason string) error {
	return c.exec(ctx, "trip the handler", "select core.handler_trip($1, $2, nullif($3, ''), nullif($4, ''))", g, handler,
		by, reason)
}

// CloseHandler closes the breaker of a handler, makes due what waits for it, and returns how many events that were. It
// returns a [*RefusedError] if the breaker is not open.
func (c *Client) CloseHandler(ctx context.Context, g events.Generation, handler, by string) (released int, err error) {
	err = c.exec(ctx, "close the breaker", "select core.handler_close($1, $2, nullif($3, ''))", g, handler, by)
	for n := 1; err == nil && n > 0; released += n {
		n, err = value[int](ctx, c, "close the breaker", "select core.breaker_release($1, $2, $3)", g, handler, MaxBatch)
		if err != nil {
			n = 0
		}
	}
	return released, err
}
