package sql_test

import (
	"context"
	"errors"
	"flag"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"spectral/internal/app"
	"spectral/tests/pgtest"
)

var update = flag.Bool("update", false, "rewrite db/privileges.txt and db/schema.txt")

// testTimeout bounds every wait of these tests; a shared, cold machine is slow.
const testTimeout = 2 * time.Minute

func TestMain(m *testing.M) { pgtest.MainWith(m, addFixtures) }

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// deadline is a context that fails whatever still waits after testTimeout.
func deadline(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
	t.Cleanup(cancel)
	return ctx
}

type querier interface {
	Exec(context.Context, string, ...any) (pgconn.CommandTag, error)
	Query(context.Context, string, ...any) (pgx.Rows, error)
	QueryRow(context.Context, string, ...any) pgx.Row
}

func exec(t testing.TB, q querier, sql string, arguments ...any) {
	t.Helper()
	if _, err := q.Exec(deadline(t), sql, arguments...); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

func value[T any](t testing.TB, q querier, sql string, arguments ...any) T {
	t.Helper()
	var v T
	if err := q.QueryRow(deadline(t), sql, arguments...).Scan(&v); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return v
}

func values[T any](t testing.TB, q querier, sql string, arguments ...any) []T {
	t.Helper()
	rows, err := q.Query(deadline(t), sql, arguments...)
	if err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	all, err := pgx.CollectRows(rows, pgx.RowTo[T])
	if err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return all
}

// begin starts a transaction that the test's end rolls back.
func begin(t testing.TB, conn *pgx.Conn) pgx.Tx {
	t.Helper()
	tx, err := conn.Begin(deadline(t))
	must(t, err)
	t.Cleanup(func() { _ = tx.Rollback(context.Background()) })
	return tx
}

// sqlstate is the code of a Postgres error, empty for no error.
func sqlstate(t testing.TB, err error) string {
	t.Helper()
	var pg *pgconn.PgError
	if err != nil && !errors.As(err, &pg) {
		t.Fatalf("want an error of Postgres, have %v", err)
	}
	if pg == nil {
		return ""
	}
	return pg.Code
}

// migrateUp is what `workers migrate up` does.
func migrateUp(ctx context.Context, url string) error {
	migrator, err := app.NewMigrator(ctx, url, slog.New(slog.DiscardHandler))
	if err != nil {
		return err
	}
	_, err = migrator.Up(ctx, pgtest.Generation)
	return errors.Join(err, migrator.Close())
}

func diff(want, have string) string {
	only := func(a, b, sign string) (lines string) {
		for line := range strings.Lines(a) {
			if !strings.Contains("\n"+b, "\n"+line) {
				lines += sign + line
			}
		}
		return lines
	}
	return only(want, have, "- ") + only(have, want, "+ ")
}

func finish(t *testing.T, tx pgx.Tx) {
	t.Helper()
	must(t, tx.Rollback(deadline(t)))
}
