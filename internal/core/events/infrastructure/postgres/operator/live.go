package operator

import (
	"context"
	"time"

	"github.com/google/uuid"

	"spectral/internal/core/events"
	"spectral/internal/core/events/infrastructure/postgres/pgtx"
)

// LiveMinutes is how many minutes the short history of [Live] has.
const LiveMinutes = 30

// Live is what the database says of this moment. One statement reads it, whatever is shown of it.
type Live struct {
	At       time.Time `json:"at"` // by the database clock
	Database string    `json:"database"`
	// Rates of all types, in events per second, of the last complete minute.
	PublishedPerSecond float64       `json:"published_per_second"`
	HandledPerSecond   float64       `json:"handled_per_second"`
	RetriedPerSecond   float64       `json:"retried_per_second"`
	UntilClaimed       Percentiles   `json:"until_claimed"` // of the last five minutes
	Took               Percentiles   `json:"took"`
	Types              []LiveType    `json:"types"`
	Handlers           []LiveHandler `json:"handlers"`
	Workers            []LiveWorker  `json:"workers"`
	Generations        []LiveDeploy  `json:"generations"`
	// Operations that are running or paused, the latest first, at most ten.
	Operations  []LiveOperation `json:"operations"`
	Failed      int             `json:"failed"`      // at most MaxWaiting + 1, which stands for more
	Retrying    int             `json:"retrying"`    // at most MaxWaiting + 1
	Quarantined int             `json:"quarantined"` // at most MaxWaiting + 1
	// QueueUsage is how full the queue of notifications is, from 0 to 1.
	QueueUsage float64 `json:"queue_usage"`
	// OldestSnapshot is the age of the oldest transaction that holds up vacuum; nil: there is none, or it may not be seen.
	OldestSnapshot *float64   `json:"oldest_snapshot_seconds"`
	LastSweep      *time.Time `json:"last_sweep"`
}

// LiveType is an event type in a generation. Counts are exact up to MaxWaiting; MaxWaiting + 1 stands for more.
type LiveType struct {
	EventType          string            `json:"event_type"`
	Generation         events.Generation `json:"generation"`
	Due                int               `json:"due"`
	OldestDue          *time.Time        `json:"oldest_due"`
	Waiting            int               `json:"waiting"`  // for an open breaker
	Retrying           int               `json:"retrying"` // pending or leased after a failure
	Failed             int               `json:"failed"`
	PublishedPerSecond float64           `json:"published_per_second"` // of the last complete minute
	HandledPerSecond   float64           `json:"handled_per_second"`
	UntilClaimed       Percentiles       `json:"until_claimed"` // of the last five minutes
	Published          []int64           `json:"published"`     // by minute, the oldest first, LiveMinutes of them
	Handled            []int64           `json:"handled"`
	PausedAt           *time.Time        `json:"paused_at"`
	PausedBy           *string           `json:"paused_by"`
	Workers            int               `json:"workers"` // live ones that handle it
}

// LiveHandler is a handler of a type in a generation.
type LiveHandler struct {
	Handler          string            `json:"handler"`
	EventType        string            `json:"event_type"`
	Generation       events.Generation `json:"generation"`
	Workers          int               `json:"workers"` // live ones that have it
	HandledPerSecond float64           `json:"handled_per_second"`
	FailedCalls      int64             `json:"failed_calls"` // of the last five minutes, those that are retried included
	Calls            int64             `json:"calls"`
	Took             Percentiles       `json:"took"`
	Breaker          string            `json:"breaker"` // closed, open, forced or closing
	OpenedAt         *time.Time        `json:"opened_at"`
	Cause            *string           `json:"cause"`
	Waiting          int               `json:"waiting"`
	ActsOutside      string            `json:"acts_outside"`
}

// LiveWorker is a worker process whose session lives.
type LiveWorker struct {
	Name         string            `json:"name"`
	Generation   events.Generation `json:"generation"`
	RegisteredAt time.Time         `json:"registered_at"`
	Types        int               `json:"types"`
	Running      int               `json:"running"` // events that it holds in its own transactions, by its journal
	Leased       int               `json:"leased"`
}

// LiveDeploy is a generation that is not retired.
type LiveDeploy struct {
	Generation   events.Generation `json:"generation"`
	Status       string            `json:"status"` // live, draining or closing
	RegisteredAt time.Time         `json:"registered_at"`
	Workers      int               `json:"workers"`
}

// LiveOperation is an operation that is not over.
type LiveOperation struct {
	ID        uuid.UUID `json:"operation_id"`
	Name      string    `json:"name"`
	State     string    `json:"state"`
	Why       *string   `json:"why"`
	CreatedBy string    `json:"created_by"`
	Total     int       `json:"total"`
	Acted     int       `json:"acted"`
	Skipped   int       `json:"skipped"`
	Delivered int       `json:"delivered"`
	Failed    int       `json:"failed"`
}

// liveStatement returns one row, with the parts of [Live] as JSON.
const liveStatement = `
with clock as materialized (select statement_timestamp() as now,
  date_trunc('minute', statement_timestamp(), 'UTC') as minute),
lines as materialized
  (select s.*, (extract(epoch from clock.minute - s.at) / 60)::int as ago from core.event_stats s, clock
   where not s.hourly and s.at >= clock.minute - $2 * interval '1 minute' and s.at < clock.minute),
workers as materialized (select * from core.live_workers),
handled as materialized
  (select w.generation, t.event_type, h.handler, count(*)::int as workers
   from workers w, jsonb_each(w.handlers) as t(event_type, names), jsonb_array_elements_text(t.names) as h(handler)
   group by 1, 2, 3),
lanes as materialized
  (select p.generation, p.event_type from core.pending_types() p
   union select l.generation, l.event_type from lines l
   union select h.generation, h.event_type from handled h),
failed as materialized
  (select f.event_type, f.generation, count(*)::int as count from (select o.event_type, o.generation from core.outbox o
     where o.status = 'failed' and o.deleted_at is null order by o.claimed_at desc limit $1 + 1) f group by 1, 2),
retrying as materialized
  (select f.event_type, f.generation, count(*)::int as count from (select o.event_type, o.generation from core.outbox o
     where o.status in ('pending', 'in_flight') and o.deleted_at is null and o.first_failed_at is not null
     order by o.first_failed_at limit $1 + 1) f group by 1, 2),
leased as materialized
  (select o.claimed_by, count(*)::int as count from (select o.claimed_by from core.outbox o
     where o.status = 'in_flight' and o.deleted_at is null order by o.id limit $1 + 1) o group by 1),
breakers as materialized
  (select b.*, case when b.closing then 'closing' when b.forced then 'forced' else 'open' end as state,
     (select count(*)::int from (select from core.outbox o where o.generation = b.generation
        and o.waiting_for = b.handler_name and o.status = 'pending' and o.deleted_at is null limit $1 + 1) w) as waiting
   from core.breakers b),
types as
  (select l.generation, l.event_type, d.count as due, d.oldest as oldest_due,
     coalesce((select sum(b.waiting) from breakers b where b.generation = l.generation and b.event_type = l.event_type),
       0)::int as waiting,
     coalesce(f.count, 0) as failed, coalesce(r.count, 0) as retrying, p.paused_at, p.paused_by,
     (select count(*)::int from workers w where w.generation = l.generation and w.handlers ? l.event_type) as workers,
     coalesce((select jsonb_object_agg(x.ago, array[x.published, x.handled, x.retried]) from lines x
       where x.generation = l.generation and x.event_type = l.event_type and x.handler_name = ''), '{}') as minutes,
     (select jsonb_agg(x.pickup) from lines x where x.generation = l.generation and x.event_type = l.event_type
       and x.handler_name = '' and x.ago <= 5) as pickups
   from lanes l
   cross join lateral (select count(*)::int as count, min(x.available_at) filter (where isfinite(x.available_at))
     as oldest from (select o.available_at from core.outbox o, clock where o.generation = l.generation
       and o.event_type = l.event_type and o.status = 'pending' and o.deleted_at is null
       and o.available_at <= clock.now order by o.available_at limit $1 + 1) x) d
   left join failed f on f.event_type = l.event_type and f.generation = l.generation
   left join retrying r on r.event_type = l.event_type and r.generation = l.generation
   left join core.paused_types p on p.event_type = l.event_type and p.generation = l.generation),
handlers as
  (select k.generation, k.event_type, k.handler, coalesce(h.workers, 0) as workers, coalesce(c.effect, '')
     as acts_outside, coalesce(b.state, 'closed') as breaker, b.opened_at, b.cause, coalesce(b.waiting, 0) as waiting,
     coalesce((select sum(x.handled) from lines x where x.generation = k.generation and x.event_type = k.event_type
       and x.handler_name = k.handler and x.ago = 1), 0) as last_minute,
     coalesce((select sum(x.retried + x.failed) from lines x where x.generation = k.generation
       and x.event_type = k.event_type and x.handler_name = k.handler and x.ago <= 5), 0) as failed_calls,
     coalesce((select sum(x.handled + x.retried + x.failed) from lines x where x.generation = k.generation
       and x.event_type = k.event_type and x.handler_name = k.handler and x.ago <= 5), 0) as calls,
     (select jsonb_agg(x.handling) from lines x where x.generation = k.generation and x.event_type = k.event_type
       and x.handler_name = k.handler and x.ago <= 5) as handlings
   from (select h.generation, h.event_type, h.handler from handled h
         union select b.generation, b.event_type, b.handler_name from breakers b) k
   left join handled h on (h.generation, h.event_type, h.handler) = (k.generation, k.event_type, k.handler)
   left join core.handlers c on (c.generation, c.event_type, c.handler_name) = (k.generation, k.event_type, k.handler)
   left join breakers b on b.generation = k.generation and b.handler_name = k.handler)
select clock.now as at, current_database()::text as database,
  coalesce((select jsonb_agg(t order by t.event_type, t.generation) from types t), '[]') as types,
  coalesce((select jsonb_agg(h order by h.handler, h.event_type, h.generation) from handlers h), '[]') as handlers,
  coalesce((select jsonb_agg(jsonb_build_object('name', w.name, 'generation', w.generation, 'registered_at',
      w.registered_at, 'types', (select count(*) from jsonb_object_keys(w.handlers)), 'running',
      coalesce((select sum(cardinality(j.ids)) from core.claim_journal j where j.worker_id = w.worker_id), 0),
      'leased', coalesce((select l.count from leased l where l.claimed_by = w.name), 0))
    order by w.generation, w.name) from workers w), '[]') as workers,
  coalesce((select jsonb_agg(jsonb_build_object('generation', d.generation, 'status',
      case when d.closed_at is not null then 'closing' else d.status end, 'registered_at', d.registered_at, 'workers',
      (select count(*) from workers w where w.generation = d.generation)) order by d.generation)
    from core.deployments d where d.status <> 'retired'), '[]') as generations,
  coalesce((select jsonb_agg(jsonb_build_object('operation_id', o.id, 'name', o.name, 'state', o.state, 'why', o.why,
      'created_by', o.created_by, 'total', o.total, 'acted', o.acted, 'skipped', o.skipped, 'delivered', o.delivered,
      'failed', o.failed) order by o.id desc) from (select * from core.operations o
      where o.state in ('running', 'paused') order by o.id desc limit 10) o), '[]') as operations,
  coalesce((select sum(f.count) from failed f), 0)::int as failed,
  coalesce((select sum(r.count) from retrying r), 0)::int as retrying,
  (select count(*)::int from (select from core.quarantined_events limit $1 + 1) q) as quarantined,
  pg_notification_queue_usage() as queue_usage,
  (select extract(epoch from max(clock.now - a.xact_start))::double precision from pg_stat_activity a
   where a.backend_xmin is not null and a.datname = current_database() and a.pid <> pg_backend_pid())
    as oldest_snapshot,
  (select p.swept_at from core.retention_policies p where p.subject = 'outbox_row' and p.content_class = '*')
    as last_sweep
from clock`

// liveRow is what liveStatement returns.
type liveRow struct {
	At                            time.Time
	Database                      string
	Workers                       []LiveWorker
	Generations                   []LiveDeploy
	Operations                    []LiveOperation
	Failed, Retrying, Quarantined int
	QueueUsage                    float64
	OldestSnapshot                *float64
	LastSweep                     *time.Time
	Types                         []struct {
		LiveType
		Minutes map[int][3]int64 // by how many minutes ago: published, handled, retried
		Pickups [][]int64        // histograms
	}
	Handlers []struct {
		LiveHandler
		LastMinute int64 `json:"last_minute"`
		Handlings  [][]int64
	}
}

// Live returns what the database says of this moment, by one statement that is bounded in what it reads, however many
// events there are (some 30 ms at 1 M pending ones).
func (c *Client) Live(ctx context.Context) (Live, error) {
	var r liveRow
	err := c.inTx(ctx, "read live figures", func(tx *pgtx.Tx) error {
		if _, err := tx.Exec(ctx, byIndex+"; set local jit = off"); err != nil {
			return err
		}
		found, err := rows[liveRow](ctx, tx, liveStatement, MaxWaiting, LiveMinutes)
		if err == nil {
			r = found[0]
		}
		return err
	})
	if err != nil {
		return Live{}, err
	}
	l := Live{At: r.At, Database: r.Database, Workers: r.Workers, Generations: r.Generations, Operations: r.Operations,
		Failed: r.Failed, Retrying: r.Retrying, Quarantined: r.Quarantined, QueueUsage: r.QueueUsage,
		OldestSnapshot: r.OldestSnapshot, LastSweep: r.LastSweep, Types: []LiveType{}, Handlers: []LiveHandler{}}
	var pickups, handlings [][]int64
	for _, row := range r.Types {
		t := row.LiveType
		t.Published, t.Handled = make([]int64, LiveMinutes), make([]int64, LiveMinutes)
		for ago, counts := range row.Minutes {
			t.Published[LiveMinutes-ago], t.Handled[LiveMinutes-ago] = counts[0], counts[1]
		}
		last := row.Minutes[1]
		t.PublishedPerSecond, t.HandledPerSecond = float64(last[0])/60, float64(last[1])/60
		t.UntilClaimed = percentiles(sums(row.Pickups))
		l.PublishedPerSecond += t.PublishedPerSecond
		l.HandledPerSecond += t.HandledPerSecond
		l.RetriedPerSecond += float64(last[2]) / 60
		pickups = append(pickups, row.Pickups...)
		l.Types = append(l.Types, t)
	}
	for _, row := range r.Handlers {
		h := row.LiveHandler
		h.HandledPerSecond, h.Took = float64(row.LastMinute)/60, percentiles(sums(row.Handlings))
		handlings = append(handlings, row.Handlings...)
		l.Handlers = append(l.Handlers, h)
	}
	l.UntilClaimed, l.Took = percentiles(sums(pickups)), percentiles(sums(handlings))
	return l, nil
}

// sums adds histograms.
func sums(all [][]int64) []int64 {
	var sum []int64
	for _, counts := range all {
		for i, n := range counts {
			if i == len(sum) {
				sum = append(sum, 0)
			}
			sum[i] += n
		}
	}
	return sum
}
