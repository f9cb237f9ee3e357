package admin

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"spectral/internal/core/events/infrastructure/postgres"
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
	return refused(postgres.ActAs(ctx, a.pool, Role, work))
}

// RefusedError is a refusal of one of the SQL functions that act for operators: nothing was done.
type RefusedError struct {
	Code   string // SQLSTATE of class SP; docs/runbook.md lists them
	Field  string // the parameter at fault
	Reason string
	Detail string // more of the reason; may be empty
	Hint   string // what to do; may be empty
}

func (e *RefusedError) Error() string {
	var s strings.Builder
	_, _ = fmt.Fprintf(&s, "%s (%s)", e.Reason, e.Code)
	for _, further := range []string{e.Detail, e.Hint} {
		if further != "" {
			_, _ = fmt.Fprintf(&s, "; %s", further)
		}
	}
	return s.String()
}

// refused turns an error that one of our functions raised on purpose into a [*RefusedError].
func refused(err error) error {
	pg, ok := errors.AsType[*pgconn.PgError](err)
	if !ok || !strings.HasPrefix(pg.Code, "SP") {
		return err
	}
	return &RefusedError{Code: pg.Code, Field: pg.ColumnName, Reason: pg.Message, Detail: pg.Detail, Hint: pg.Hint}
}
