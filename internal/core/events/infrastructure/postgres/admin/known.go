package admin

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// KnownGenerations are the generations that are registered, the latest first.
func (a *Admin) KnownGenerations(ctx context.Context) ([]string, error) {
	return a.known(ctx, "generations", "select d.generation::text from core.deployments d order by d.generation desc")
}

// OpenGenerations are those that are not retired, each with its status behind a tab: the highest live one first, and what is live before what
// is draining.
func (a *Admin) OpenGenerations(ctx context.Context) ([]string, error) {
	return a.known(ctx, "generations", `select d.generation || E'\t' || d.status from core.deployments d
		where d.status <> 'retired' order by d.status <> 'live', d.generation desc`)
}

// KnownChannels are the channels that the registered generations have by the registered event types.
func (a *Admin) KnownChannels(ctx context.Context) ([]string, error) {
	return a.known(ctx, "channels", `select distinct 'outbox_gen_' || d.generation || coalesce('_' || t.class, '')
		from core.deployments d, (select null as class union select e.class from core.event_types e) t order by 1`)
}

// KnownTypes are the event types that are registered.
func (a *Admin) KnownTypes(ctx context.Context) ([]string, error) {
	return a.known(ctx, "event types", "select distinct t.event_type from core.event_types t order by 1")
}

// KnownHandlers are the handlers that live workers have, or that have handled or failed an event that is still there. The names in
// core.event_handled are few, and found without reading all of it: its key begins with them.
func (a *Admin) KnownHandlers(ctx context.Context) ([]string, error) {
	return a.known(ctx, "handlers", `
		with recursive handled(name) as (
		  (select h.handler_name from core.event_handled h order by h.handler_name limit 1)
		  union all
		  select (select h.handler_name from core.event_handled h where h.handler_name > k.name order by h.handler_name limit 1)
		  from handled k where k.name is not null)
		select name from handled where name is not null
		union select jsonb_object_keys(o.handler_failures) from core.outbox o where o.status = 'failed' and o.deleted_at is null
		union select n.name from core.live_workers w
		cross join lateral jsonb_each(case when jsonb_typeof(w.handlers) = 'object' then w.handlers else '{}' end) as t(event_type, names)
		cross join lateral jsonb_array_elements_text(case when jsonb_typeof(t.names) = 'array' then t.names else '[]' end) as n(name)
		order by 1`)
}

// KnownErrorClasses are the error classes of failed events.
func (a *Admin) KnownErrorClasses(ctx context.Context) ([]string, error) {
	return a.known(ctx, "error classes", "select distinct "+errorClass+` from core.outbox o
		where o.status = 'failed' and o.deleted_at is null and o.last_error is not null order by 1`)
}

func (a *Admin) known(ctx context.Context, what, query string) (all []string, err error) {
	err = a.search(ctx, 0, func(tx pgx.Tx) error {
		rows, err := tx.Query(ctx, query)
		if err != nil {
			return err
		}
		all, err = pgx.CollectRows(rows, pgx.RowTo[string])
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("look for known %s: %w", what, err)
	}
	return all, nil
}
