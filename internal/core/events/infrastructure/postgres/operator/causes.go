package operator

import (
	"context"

	"github.com/google/uuid"

	"spectral/internal/core/events/infrastructure/postgres/pgtx"
)

// Relative is an event that caused another, or that it caused.
type Relative struct {
	EventID uuid.UUID `json:"event_id"`
	CauseID uuid.UUID `json:"cause_id"` // the nil UUID: none is known
	// Depth is the distance: below zero for causes, above for effects.
	Depth     int    `json:"depth"`
	EventType string `json:"event_type"` // empty: the event is gone
	Status    Status `json:"status"`
}

const (
	maxDepth   = 10
	maxEffects = 100
)

// relatives returns the causes of an event, the first one first, and what it has caused, each behind its cause; at most
// maxDepth steps away, and maxEffects effects. An id that events of different times share stands for all of them.
func relatives(ctx context.Context, tx *pgtx.Tx, id uuid.UUID) (causes, effects []Relative, err error) {
	columns := `select r.id as event_id, r.depth, coalesce(o.event_type, '') as event_type,
  coalesce(o.cause_id, r.cause_id, '00000000-0000-0000-0000-000000000000') as cause_id,
  coalesce(` + status + `, 'expired') as status`
	causes, err = rows[Relative](ctx, tx, `
with recursive up(id, cause_id, depth) as (
  select $1::uuid, null::uuid, 0
  union all
  select o.cause_id, null, u.depth - 1 from up u cross join lateral (
    select c.cause_id from core.outbox c where c.id = u.id and c.cause_id is not null limit 1) o
  where u.depth > -$2::integer)
`+columns+` from up r left join lateral
  (select `+unmasked+` from core.outbox o where o.id = r.id order by o.occurred_at limit 1) o on true
where r.depth < 0 order by r.depth`, id, maxDepth)
	if err != nil {
		return nil, nil, err
	}
	effects, err = rows[Relative](ctx, tx, `
with recursive down(id, cause_id, depth, path) as (
  select $1::uuid, null::uuid, 0, '{}'::uuid[]
  union all
  select o.id, d.id, d.depth + 1, d.path || o.id from down d cross join lateral (
    select c.id from core.outbox c where c.cause_id = d.id order by c.id limit $3) o
  where d.depth < $2 and o.id <> all (d.path) and o.id <> $1)
`+columns+` from (select * from down where depth > 0 order by path limit $3) r cross join lateral
  (select `+unmasked+` from core.outbox o where o.id = r.id order by o.occurred_at limit 1) o order by r.path`,
		id, maxDepth, maxEffects)
	return causes, effects, err
}
