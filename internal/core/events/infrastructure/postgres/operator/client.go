package operator

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"spectral/internal/core/events/infrastructure/postgres/pgtx"
)

// Role is the database role that operators act as; their logins are members of it.
const Role = "spectral_operator"

// The other roles that a [Client] may act as (docs/decisions/0025). Each but Viewer includes the rights of the one
// before: viewer, payload reader, operator, corrector.
const (
	Viewer        = "spectral_viewer"         // reads all, but sensitive fields of payloads
	PayloadReader = "spectral_payload_reader" // reads payloads as they are
	Corrector     = "spectral_corrector"      // publishes corrected copies
)

// Client acts on a database as an operator. It is safe for concurrent use. Only the context bounds a call, unless the
// method says otherwise: what operators ask may take long.
type Client struct {
	pool *pgxpool.Pool
	role string
}

// New returns a Client on pool, whose login is a member of [Role].
func New(pool *pgxpool.Pool) *Client { return &Client{pool, Role} }

// As returns a Client on the same pool that acts as another role, which the pool's login is a member of. What it may do
// the database decides.
func (c *Client) As(role string) *Client { return &Client{c.pool, role} }

// RefusedError says why a SQL function for operators refused a call. Nothing was changed.
type RefusedError = pgtx.RefusedError

// inTx runs work in one transaction as an operator. A refusal of the database becomes a [*RefusedError]. Errors begin
// with what, the purpose of the work.
func (c *Client) inTx(ctx context.Context, what string, work func(*pgtx.Tx) error) error {
	err := pgtx.RunAs(ctx, c.pool, c.role, func(tx *pgtx.Tx) error {
		if err := tx.Flush(ctx); err != nil { // most texts are composed
			return err
		}
		return work(tx)
	})
	if err := pgtx.AsRefused(err); err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	return nil
}

// exec runs one statement as an operator.
func (c *Client) exec(ctx context.Context, what, sql string, arguments ...any) error {
	return c.inTx(ctx, what, func(tx *pgtx.Tx) error {
		_, err := tx.Exec(ctx, sql, arguments...)
		return err
	})
}

// value returns the one value of a statement that it runs as an operator.
func value[T any](ctx context.Context, c *Client, what, sql string, arguments ...any) (v T, err error) {
	err = c.inTx(ctx, what, func(tx *pgtx.Tx) error { return tx.QueryRow(ctx, sql, arguments...).Scan(&v) })
	return v, err
}

// list returns the rows of a statement that it runs as an operator.
func list[T any](ctx context.Context, c *Client, what, sql string, arguments ...any) (all []T, err error) {
	err = c.inTx(ctx, what, func(tx *pgtx.Tx) error {
		all, err = rows[T](ctx, tx, sql, arguments...)
		return err
	})
	return all, err
}

// rows returns the rows of a statement, whose columns are named like fields of T.
func rows[T any](ctx context.Context, tx *pgtx.Tx, sql string, arguments ...any) ([]T, error) {
	found, err := tx.Query(ctx, sql, arguments...)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(found, pgx.RowToStructByNameLax[T])
}
