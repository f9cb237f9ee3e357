package doctor

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// stuckTimeout bounds the look at the rows of one constraint.
const stuckTimeout = "2s"

// written is what of a table is still written to: events that are not settled, and failed ones, which may be replayed.
var written = map[string]string{
	"core.outbox": `select 'event ' || w.id from (
		select * from core.outbox o where o.status = 'in_flight' and o.deleted_at is null union all
		select * from core.outbox o where o.status = 'pending' and o.deleted_at is null union all
		select * from core.outbox o where o.status = 'failed' and o.deleted_at is null) as w`,
	"core.event_handled": `select pg_catalog.format('key %s of %s', w.idempotency_key, w.handler_name) from core.event_handled as w`,
}

// stuck finds rows that are in the way of a constraint that was added without a look at them (NOT VALID): whatever writes to them is refused.
func stuck(ctx context.Context, v *visit) ([]Finding, error) {
	constraints, err := all[struct{ Table, Name, Definition, Bears string }](ctx, v, `
select k.conrelid::regclass::text, k.conname::text, pg_get_constraintdef(k.oid), coalesce(pg_get_expr(k.conbin, k.conrelid), (select format('%I is not null', a.attname) from pg_attribute a where a.attrelid = k.conrelid and array[a.attnum] = k.conkey))
from pg_constraint k where k.conrelid in (to_regclass('core.outbox'), to_regclass('core.event_handled')) and k.contype in ('c', 'n') and not k.convalidated and pg_get_constraintdef(k.oid) !~ 'NOT ENFORCED' order by 1, 2`)
	if err != nil {
		return nil, err
	}
	var findings []Finding
	for _, k := range constraints {
		rows, err := inTheWay(ctx, v, written[k.Table]+" where not ("+k.Bears+") limit 5")
		if pg, ok := errors.AsType[*pgconn.PgError](err); ok && pg.Code == "57014" {
			findings = append(findings, Finding{Note, fmt.Sprintf("whether rows are in the way of constraint %s of %s takes too long to find out", k.Name, k.Table), "when there is time: select * from " + k.Table + " where not (" + k.Bears + ");"})
			continue
		}
		if err != nil {
			return nil, err
		}
		for _, row := range rows {
			findings = append(findings, Finding{Critical, fmt.Sprintf("%s is in the way of constraint %s of %s: whatever writes to it is refused, settling too", row, k.Name, k.Table),
				"look at its row, and correct as the owner what is otherwise than " + k.Definition})
		}
	}
	return findings, nil
}

// inTheWay reads some rows, for a time; the check goes on after it.
func inTheWay(ctx context.Context, v *visit, query string) ([]string, error) {
	tx, err := v.tx.Begin(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { _ = tx.Rollback(context.WithoutCancel(ctx)) }()
	if _, err := tx.Exec(ctx, "set local statement_timeout = '"+stuckTimeout+"'"); err != nil {
		return nil, err
	}
	rows, err := tx.Query(ctx, query)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowTo[string])
}
