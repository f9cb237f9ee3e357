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
