package sql_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/pressly/goose/v3"

	"spectral/internal/app"
	"spectral/tests/pgtest"
)

var update = flag.Bool("update", false, "rewrite db/privileges.txt and db/schema.txt")

// testTimeout bounds every wait of these tests; a shared, cold machine is slow.
const testTimeout = 2 * time.Minute

func TestMain(m *testing.M) { pgtest.Main(m) }

// deadline is a context that fails whatever still waits after testTimeout.
func deadline(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
	t.Cleanup(cancel)
	return ctx
}

// querier is a connection, a pool or a transaction.
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
	if err != nil {
		t.Fatal(err)
	}
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

// migrateMore runs one more migration on a migrated database.
func migrateMore(t *testing.T, url, up string) {
	t.Helper()
	files := steps(t, map[string]string{"99999_core_more.sql": "-- +goose Up\n-- +goose StatementBegin\n" +
		up + ";\n-- +goose StatementEnd\nreset role;\n-- +goose Down\nselect 1;\n"})
	config, err := pgx.ParseConfig(url)
	if err != nil {
		t.Fatal(err)
	}
	pool := stdlib.OpenDB(*config)
	defer func() { _ = pool.Close() }()
	provider, err := goose.NewProvider(goose.DialectPostgres, pool, files,
		goose.WithTableName("spectral_goose.goose_db_version"))
	if err != nil {
		t.Fatal(err)
	}
	results, err := provider.Up(deadline(t))
	if err != nil || len(results) != 1 {
		t.Fatalf("%d more migrations applied, want 1: %v", len(results), err)
	}
}

// diff says in which lines two texts differ.
func diff(want, have string) string {
	var b strings.Builder
	count := func(text string) map[string]int {
		lines := map[string]int{}
		for line := range strings.Lines(text) {
			lines[line]++
		}
		return lines
	}
	w, h := count(want), count(have)
	for line := range strings.Lines(want) {
		if w[line] > h[line] {
			fmt.Fprintf(&b, "- %s", line)
		}
	}
	for line := range strings.Lines(have) {
		if h[line] > w[line] {
			fmt.Fprintf(&b, "+ %s", line)
		}
	}
	if b.Len() == 0 && want != have {
		return "the same lines in another order\n"
	}
	return b.String()
}

func finish(t *testing.T, tx pgx.Tx) {
	t.Helper()
	if err := tx.Rollback(deadline(t)); err != nil {
		t.Fatal(err)
	}
}
