package operator

import (
	"context"
	"time"

	"github.com/google/uuid"

	"spectral/internal/core/events"
	"spectral/internal/core/events/infrastructure/postgres/pgtx"
)

// ErrorGroup is failures of one handler that look the same but for ids, numbers and quoted text: a row of
// core.error_groups, and the events that have failed so, or wait for a retry.
type ErrorGroup struct {
	GroupID    string    `json:"group_id"`
	Handler    string    `json:"handler"`
	ErrorClass string    `json:"error_class"`
	Message    string    `json:"message"` // without ids, numbers and quoted text
	Count      int       `json:"count"`   // of both
	Failed     int       `json:"failed"`
	Retrying   int       `json:"retrying"`
	FirstSeen  time.Time `json:"first_seen"`
	LastSeen   time.Time `json:"last_seen"` // to the minute
	// FirstGeneration is where it was first seen. New: that is the highest live one, and not the first of all.
	FirstGeneration events.Generation   `json:"first_generation"`
	New             bool                `json:"new"`
	Generations     []events.Generation `json:"generations"`
	Workspaces      int                 `json:"workspaces"`
	CameBack        int                 `json:"came_back"` // events that failed so before they were replayed, too
	Samples         []uuid.UUID         `json:"samples"`   // the latest few
	Note            *string             `json:"note"`
	NotedBy         *string             `json:"noted_by"`
	MutedUntil      *time.Time          `json:"muted_until"`
}

// GroupFilter selects groups of errors.
type GroupFilter struct {
	Events      Filter            // which events count; its statuses are not used
	Muted       bool              // also muted ones
	FirstSeenIn events.Generation // only those that are new since this generation; 0: all
	Limit       int
}

// ErrorGroups is what a filter selects, the largest first.
type ErrorGroups struct {
	AsOf   time.Time    `json:"as_of"`
	Groups []ErrorGroup `json:"groups"`
	Muted  int          `json:"muted"` // that were left out
	More   bool         `json:"more"`  // there are more than the limit
}

// ErrorGroups groups the events that have failed or wait for a retry. It returns a [*TooBroadError] if it takes too
// long.
func (c *Client) ErrorGroups(ctx context.Context, filter GroupFilter, timeout time.Duration) (g ErrorGroups,
	err error) {
	filter.Events.Statuses = []Status{Failed, retrying}
	condition, arguments := filter.Events.Where(2)
	err = c.search(ctx, "group errors", timeout, func(tx *pgtx.Tx, asOf time.Time) error {
		g.AsOf, g.Groups = asOf, []ErrorGroup{}
		all, err := rows[ErrorGroup](ctx, tx, `
with failing as materialized (
  select h.value ->> 'group' as group_id, o.id, o.status, o.generation, o.workspace_id,
    row_number() over (partition by h.value ->> 'group' order by o.first_failed_at desc, o.id) as place,
    o.failure_history <> '[]' and exists (select from core.failed_attempts f
      where f.event_id = o.id and f.occurred_at = o.occurred_at and f.group_id = h.value ->> 'group'
        and f.cycle < core.prior_replays(o.failure_history)) as came_back
  from core.outbox o cross join lateral jsonb_each(o.handler_failures) as h
  where `+condition+` and jsonb_typeof(h.value -> 'group') = 'string'),
counted as (
  select f.group_id, count(*)::int as count, (count(*) filter (where f.status = 'failed'))::int as failed,
    (count(*) filter (where f.status <> 'failed'))::int as retrying,
    array_agg(distinct f.generation order by f.generation) as generations,
    count(distinct f.workspace_id)::int as workspaces, (count(*) filter (where f.came_back))::int as came_back,
    array_agg(f.id order by f.place) filter (where f.place <= 3) as samples
  from failing f group by f.group_id)
select c.*, g.handler_name as handler, g.error_class, g.message, g.first_seen, g.last_seen, g.first_generation,
  exists (select from core.deployments d where d.generation < g.first_generation) and g.first_generation =
    coalesce((select max(d.generation) from core.deployments d where d.status = 'live'), 0) as new,
  g.note, g.noted_by, case when g.muted_until > clock_timestamp() then g.muted_until end as muted_until
from counted c join core.error_groups g on g.group_id = c.group_id
where g.first_generation >= $1
order by c.count desc, g.last_seen desc, c.group_id`, append([]any{filter.FirstSeenIn}, arguments...)...)
		for _, group := range all {
			switch {
			case group.MutedUntil != nil && !filter.Muted:
				g.Muted++
			case len(g.Groups) == filter.Limit:
				g.More = true
			default:
				g.Groups = append(g.Groups, group)
			}
		}
		return err
	})
	return g, err
}

// NoteGroup sets the note of a group of errors; an empty one removes it. It returns a [*RefusedError] for an unknown
// group.
func (c *Client) NoteGroup(ctx context.Context, group, note, by string) error {
	return c.exec(ctx, "note a group", "select core.error_group_note($1, nullif($2, ''), nullif($3, ''))", group, note, by)
}

// MuteGroup leaves a group of errors out of lists and warnings for so long; zero ends that. It returns a
// [*RefusedError] for an unknown group.
func (c *Client) MuteGroup(ctx context.Context, group string, length time.Duration, by string) error {
	return c.exec(ctx, "mute a group", `select core.error_group_mute($1,
		case when $2 > 0 then clock_timestamp() + make_interval(secs => $2) end, nullif($3, ''))`,
		group, length.Seconds(), by)
}
