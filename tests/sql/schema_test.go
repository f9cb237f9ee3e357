package sql_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"spectral/db"
	"spectral/internal/app"
	"spectral/tests/pgtest"
)

// dump writes out our schemas.
func dump(t testing.TB, at string) string {
	t.Helper()
	objects, err := app.ReadSchema(deadline(t), pgtest.Conn(t, at))
	if err != nil {
		t.Fatal(err)
	}
	return app.WriteSchema(objects)
}

// wantSchema compares a database with one that was migrated without disturbance.
func wantSchema(t testing.TB, at string) {
	t.Helper()
	if want, have := dump(t, pgtest.New(t)), dump(t, at); want != have {
		t.Errorf("the schema is not that of a migrated database:\n%s", diff(want, have))
	}
}

// TestSchema compares with db/schema.txt; with -update it writes it, on PostgreSQL 15, whose expressions have the
// parentheses that the file has.
func TestSchema(t *testing.T) {
	at := pgtest.New(t)
	if *update {
		head, _, found := strings.Cut(db.Schema, "\n\n")
		if !found {
			t.Fatal("db/schema.txt has no head")
		}
		if err := os.WriteFile("../../db/schema.txt", []byte(head+"\n\n"+dump(t, at)), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if schema, _, err := app.Compare(deadline(t), pgtest.Conn(t, at)); err != nil || len(schema) > 0 {
		t.Errorf("the schema is not that of db/schema.txt; if it is meant to change: `make generate`, "+
			"and read the diff\n%v, error %v", schema, err)
	}
}

// What a database has set for its sessions does not change how its catalogs are read.
func TestCatalogsReadTheSameEverywhere(t *testing.T) {
	t.Parallel()
	at := pgtest.New(t)
	admin := pgtest.Conn(t, at)
	name := value[string](t, admin, "select quote_ident(current_database())")
	for _, settings := range []string{
		`timezone = 'Europe/Berlin'; datestyle = 'German'; intervalstyle = 'iso_8601'; quote_all_identifiers = on;
			standard_conforming_strings = off; bytea_output = 'escape'; extra_float_digits = -15; search_path = core, platform`,
		`timezone = 'Asia/Kolkata'; datestyle = 'SQL, DMY'; default_transaction_isolation = 'serializable';
			default_transaction_read_only = on`,
	} {
		for setting := range strings.SplitSeq(settings, ";") {
			exec(t, admin, "alter database "+name+" set "+setting)
		}
		conn := pgtest.Conn(t, at)
		exec(t, admin, "alter database "+name+" reset all")
		schema, privileges, err := app.Compare(deadline(t), conn)
		if err != nil || len(schema)+len(privileges) > 0 {
			t.Errorf("with %s: %v, %v, error %v", settings, schema, privileges, err)
		}
	}
}

// Logical replication needs a primary key, and a publication for all tables refuses updates of tables without one
// (55000).
func TestEveryTableHasAPrimaryKey(t *testing.T) {
	t.Parallel()
	conn := pgtest.Conn(t, pgtest.New(t))
	const without = `select c.oid::regclass::text from pg_class c join pg_namespace n on n.oid = c.relnamespace
		where c.relkind in ('r', 'p') and (n.nspowner = 'spectral_owner'::regrole or n.nspname = 'spectral_goose')
		  and not exists (select from pg_constraint k where k.conrelid = c.oid and k.contype = 'p')`
	if tables := values[string](t, conn, without); len(tables) > 0 {
		t.Errorf("tables without a primary key: %v; where the natural key holds a null, add an identity column", tables)
	}
}

// The outbox will be partitioned by occurred_at: id alone is never a key, and nothing refers to it.
func TestOutboxCanBePartitioned(t *testing.T) {
	t.Parallel()
	conn := pgtest.Conn(t, pgtest.New(t))
	if faults := values[string](t, conn, `
select 'foreign key ' || conname from pg_constraint where contype = 'f' and confrelid = 'core.outbox'::regclass
union all
select 'unique index ' || indexrelid::regclass from pg_index i
where indrelid = 'core.outbox'::regclass and indisunique
  and not exists (select from pg_attribute a where a.attrelid = i.indrelid and a.attname = 'occurred_at'
  	and a.attnum = any (i.indkey))
order by 1`); len(faults) > 0 {
		t.Errorf("core.outbox could not be partitioned: %v", faults)
	}
	names, err := filepath.Glob("../../db/*/*.sql")
	if err != nil || len(names) < 10 {
		t.Fatalf("%d files of SQL in db: %v", len(names), err)
	}
	for _, name := range names {
		content, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		if found := onIDAlone.Find(content); found != nil {
			t.Errorf("%s relies on the id of an event alone: %s", name, found)
		}
	}
}

var onIDAlone = regexp.MustCompile(`(?i)on\s+conflict\s*\(\s*id\s*\)|references\s+core\s*\.\s*outbox\b`)
