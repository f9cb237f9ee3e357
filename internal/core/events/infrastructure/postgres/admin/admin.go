package admin

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"spectral/internal/core/events/infrastructure/postgres/coredb"
	"spectral/internal/core/events/infrastructure/postgres/pgtx"
)

// Role is the database role that operators act as; its logins join it.
const Role = "spectral_operator"

// Admin acts on a database as an operator. Safe for concurrent use. Calls are bounded by their contexts alone: what
// operators ask may take long.
type Admin struct {
	pool *pgxpool.Pool
}

// New returns an Admin on pool, whose logins are members of [Role].
func New(pool *pgxpool.Pool) *Admin { return &Admin{pool: pool} }

// inTx runs work in one transaction as an operator. What the database refuses is a [*RefusedError].
func (a *Admin) inTx(ctx context.Context, work func(pgx.Tx) error) error {
	return pgtx.AsRefused(pgtx.RunAs(ctx, a.pool, Role, work))
}

// ask runs one query as an operator; an error begins with what was asked.
func ask[T any](ctx context.Context, a *Admin, what string,
	query func(*coredb.Queries) (T, error)) (answer T, err error) {
	err = a.inTx(ctx, func(tx pgx.Tx) (err error) {
		answer, err = query(coredb.New(tx))
		return err
	})
	if err != nil {
		err = fmt.Errorf("%s: %w", what, err)
	}
	return answer, err
}

// tell is ask without an answer.
func (a *Admin) tell(ctx context.Context, what string, query func(*coredb.Queries) error) error {
	_, err := ask(ctx, a, what, func(q *coredb.Queries) (struct{}, error) { return struct{}{}, query(q) })
	return err
}

// RefusedError is a refusal of one of the SQL functions that act for operators: nothing was done.
type RefusedError = pgtx.RefusedError
