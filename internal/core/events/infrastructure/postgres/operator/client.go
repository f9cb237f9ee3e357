package operator

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"spectral/internal/core/events/infrastructure/postgres/coredb"
	"spectral/internal/core/events/infrastructure/postgres/pgtx"
)

// Role is the database role that operators act as; their logins are members of it.
const Role = "spectral_operator"

// Client acts on a database as an operator. It is safe for concurrent use. Only the context bounds a call, unless the
// method says otherwise: what operators ask may take long.
type Client struct {
	pool *pgxpool.Pool
}

// New returns a Client on pool, whose login is a member of [Role].
func New(pool *pgxpool.Pool) *Client { return &Client{pool: pool} }

// RefusedError says why a SQL function for operators refused a call. Nothing was changed.
type RefusedError = pgtx.RefusedError

// inTx runs work in one transaction as an operator. A refusal of the database becomes a [*RefusedError].
func (c *Client) inTx(ctx context.Context, work func(pgx.Tx) error) error {
	return pgtx.AsRefused(pgtx.RunAs(ctx, c.pool, Role, work))
}

// query runs one generated query as an operator. Its errors begin with what, the purpose of the query.
func query[T any](ctx context.Context, c *Client, what string, run func(*coredb.Queries) (T, error)) (answer T,
	err error) {
	err = c.inTx(ctx, func(tx pgx.Tx) (err error) {
		answer, err = run(coredb.New(tx))
		return err
	})
	if err != nil {
		err = fmt.Errorf("%s: %w", what, err)
	}
	return answer, err
}

// exec is query for what returns no rows.
func (c *Client) exec(ctx context.Context, what string, run func(*coredb.Queries) error) error {
	_, err := query(ctx, c, what, func(q *coredb.Queries) (struct{}, error) { return struct{}{}, run(q) })
	return err
}
