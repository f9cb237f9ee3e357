package pgtest

import (
	"context"
	"slices"
	"testing"

	"github.com/jackc/pgx/v5"
)

func TestMain(m *testing.M) { Main(m) }

// content returns what a test finds in its database, line by line.
func content(t *testing.T, at string) []string {
	t.Helper()
	rows, err := Conn(t, at).Query(t.Context(), `
		select format('%s: %s', c.oid::regclass,
			query_to_xml(format('select md5(string_agg(t::text, $$ $$ order by t::text)) as rows from %s as t',
				c.oid::regclass), true, true, ''))
		from pg_class c where relkind = 'r' and relnamespace not in ('pg_catalog'::regnamespace,
			'information_schema'::regnamespace)
		union all select format('%s: statistics %s %s', oid::regclass, relpages, reltuples) from pg_class
			where relkind = 'r' and oid >= 16384
		union all select format('%s: statistics of column %s', starelid::regclass, staattnum) from pg_statistic
			where starelid >= 16384
		union all select format('%s: %s %s', oid::regprocedure, md5(prosrc), proacl) from pg_proc where oid >= 16384
		union all select format('sequence %s: %s', sequencename, last_value) from pg_sequences
		union all select format('schema %s: %s', nspname, nspacl) from pg_namespace where nspname !~ '^pg_(toast_)?temp_'
		order by 1`)
	fatal(t, err)
	lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
	fatal(t, err)
	return lines
}

func databaseOID(t *testing.T, at string) (oid uint32) {
	t.Helper()
	fatal(t, Conn(t, at).QueryRow(t.Context(),
		"select oid from pg_database where datname = current_database()").Scan(&oid))
	return oid
}

func TestNextTestFindsNoChangesOfTheOneBefore(t *testing.T) {
	const publish = `select core.outbox_publish('worlds.world_model_card.published', 'worlds',
		'{"card_id": "c", "version": 1, "title": "t"}'); `
	for name, tc := range map[string]struct {
		sql    string
		reused bool // the next test gets the same database
	}{
		"rows": {publish + publish + "delete from core.outbox; " + publish + "select core.generation_register(7)", true},
		"initial rows are truncated, then analyzed": {"truncate core.event_types cascade; analyze", true},
		"function altered":                          {"alter function core.outbox_notify() cost 7", false},
		"setting of the database": {`do $$ begin execute format('alter database %I set work_mem = 100',
			current_database()); end $$`, false},
		"statistics reset": {"select pg_stat_reset()", false},
	} {
		t.Run(name, func(t *testing.T) {
			var before, after []string
			var first, second uint32
			var session *pgx.Conn
			t.Run("first", func(t *testing.T) {
				at := New(t)
				before, first = content(t, at), databaseOID(t, at)
				var err error
				session, err = pgx.Connect(t.Context(), at) // stays open
				fatal(t, err)
				_, err = session.Exec(t.Context(), tc.sql)
				fatal(t, err)
			})
			if err := session.Ping(context.Background()); err == nil {
				t.Error("the first test's session still works")
			}
			if conn, err := pgx.ConnectConfig(t.Context(), session.Config()); err == nil {
				_ = conn.Close(t.Context())
				t.Error("the first test's URL still works")
			}
			t.Run("second", func(t *testing.T) {
				at := New(t)
				after, second = content(t, at), databaseOID(t, at)
			})
			for _, line := range after {
				if !slices.Contains(before, line) {
					t.Errorf("the second test finds %s", line)
				}
			}
			if len(after) != len(before) {
				t.Errorf("the second test finds %d lines, want %d", len(after), len(before))
			}
			if reused := first == second; reused != tc.reused {
				t.Errorf("the database was reused: %t, want %t", reused, tc.reused)
			}
		})
	}
}
