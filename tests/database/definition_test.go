package database_test

import (
	"fmt"
	osexec "os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"spectral/internal/app"
	"spectral/tests/pgtest"
)

// cured runs what is printed for each subject, as an operator pipes it, and wants the schema to be ours again.
func cured(t *testing.T, at string, subjects []string) {
	t.Helper()
	var text strings.Builder
	for _, subject := range subjects {
		statements, err := app.SchemaStatements(subject)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = fmt.Fprintf(&text, "-- %s\n%s", subject, statements)
	}
	cmd := osexec.CommandContext(deadline(t), "psql", "--no-psqlrc", "--quiet", "--set=ON_ERROR_STOP=1", "--set=VERBOSITY=terse", "--file=-", "--dbname="+at)
	cmd.Stdin = strings.NewReader(text.String())
	if out, err := cmd.CombinedOutput(); err != nil {
		lines := strings.Split(text.String(), "\n")
		if line := regexp.MustCompile(`<stdin>:([0-9]+): ERROR`).FindSubmatch(out); line != nil {
			at, _ := strconv.Atoi(string(line[1]))
			lines = lines[max(0, at-40):min(len(lines), at+1)]
		}
		t.Fatalf("%v: %s\n%s", err, out, strings.Join(lines, "\n"))
	}
	conn := pgtest.Conn(t, at)
	d, err := app.CompareSchema(deadline(t), conn)
	if err != nil || len(d.Missing)+len(d.Altered)+len(d.Unexpected) > 0 {
		t.Errorf("afterwards the schema differs: %+v, %v", d, err)
	}
	missing, unexpected, err := app.ComparePrivileges(deadline(t), conn)
	if err != nil || len(missing)+len(unexpected) > 0 {
		t.Errorf("afterwards the privileges differ: %q, %q, %v", missing, unexpected, err)
	}
}

// damaged wants so many objects of each kind to be missing or altered, and returns them.
func damaged(t *testing.T, at string, want map[string]int) []string {
	t.Helper()
	d, err := app.CompareSchema(deadline(t), pgtest.Conn(t, at))
	if err != nil {
		t.Fatal(err)
	}
	all := slices.Concat(d.Missing, d.Altered)
	app.SortForCreation(all)
	have := make(map[string]int)
	for _, subject := range all {
		kind, _, _ := strings.Cut(subject, " ")
		have[kind]++
	}
	for kind, n := range want {
		if have[kind] != n {
			t.Errorf("%d of kind %s are damaged, not %d", have[kind], kind, n)
		}
	}
	return all
}

// declared counts the objects of a kind.
func declared(kind string) (n int) {
	for _, subject := range app.SchemaObjects() {
		if strings.HasPrefix(subject, kind+" ") {
			n++
		}
	}
	return n
}

const inOurs = `in (select oid from pg_catalog.pg_namespace where nspname in ('core', 'platform', 'worlds'))`

// each executes what a query composes for each object.
func each(query string) string {
	return fmt.Sprintf("do $damage$ declare v_sql text; begin for v_sql in %s loop execute v_sql; end loop; end $damage$;", query)
}

// What is dropped comes back by what is printed for it: every object but tables, whose rows nothing brings back.
func TestDroppedObjectsComeBack(t *testing.T) {
	t.Parallel()
	at := pgtest.New(t)
	exec(t, pgtest.Conn(t, at), each(`select format('drop view %s cascade', oid::regclass) from pg_class where relkind = 'v' and relnamespace `+inOurs)+
		each(`select format('drop trigger %I on %s', tgname, tgrelid::regclass) from pg_trigger where not tgisinternal and tgrelid in (select oid from pg_class where relnamespace `+inOurs+`)`)+
		each(`select format('drop policy %I on %s', polname, polrelid::regclass) from pg_policy`)+
		each(`select format('alter table %s drop constraint if exists %I cascade', conrelid::regclass, conname) from pg_constraint where contype <> 'n' and conrelid in (select oid from pg_class where relnamespace `+inOurs+`) order by contype`)+
		each(`select format('drop index %s', indexrelid::regclass) from pg_index where indrelid in (select oid from pg_class where relkind = 'r' and relnamespace `+inOurs+`)`)+
		each(`select format('drop function if exists %s cascade', oid::regprocedure) from pg_proc where pronamespace `+inOurs))
	cured(t, at, damaged(t, at, map[string]int{
		"function": declared("function"), "trigger": declared("trigger"), "policy": declared("policy"), "constraint": declared("constraint"),
		"index": declared("index"), "query": declared("query"),
	}))
}

// What is altered becomes what it was, object by object.
func TestAlteredObjectsBecomeWhatTheyWere(t *testing.T) {
	t.Parallel()
	at := pgtest.New(t)
	conn := pgtest.Conn(t, at)
	const checks = `select count(*) from pg_constraint where contype = 'c' and conrelid in (select oid from pg_class where relnamespace ` + inOurs + `)`
	const trees = `select count(*) from pg_index i join pg_class c on c.oid = i.indexrelid join pg_am a on a.oid = c.relam where a.amname = 'btree' and indrelid in (select oid from pg_class where relkind = 'r' and relnamespace ` + inOurs + `)`
	exec(t, conn, each(`select format('create or replace view %s as select * from (%s) as v limit 1000000', oid::regclass, rtrim(pg_get_viewdef(oid), ';')) from pg_class where relkind = 'v' and relnamespace `+inOurs)+
		each(`select format('alter table %s disable trigger %I', tgrelid::regclass, tgname) from pg_trigger where not tgisinternal and tgrelid in (select oid from pg_class where relnamespace `+inOurs+`)`)+
		each(`select format('alter policy %I on %s using (true)', polname, polrelid::regclass) from pg_policy`)+
		each(`select format('alter table %s drop constraint %I, add constraint %2$I check (true)', conrelid::regclass, conname) from pg_constraint where contype = 'c' and conrelid in (select oid from pg_class where relnamespace `+inOurs+`)`)+
		each(`select format('alter index %s set (fillfactor = 51)', indexrelid::regclass) from pg_index i join pg_class c on c.oid = i.indexrelid join pg_am a on a.oid = c.relam where a.amname = 'btree' and indrelid in (select oid from pg_class where relkind = 'r' and relnamespace `+inOurs+`)`)+
		each(`select format('alter function %s set work_mem = ''65kB''', oid::regprocedure) from pg_proc where pronamespace `+inOurs)+
		each(`select format('alter table %s set (toast_tuple_target = 1024, autovacuum_analyze_threshold = 77), enable row level security, force row level security', oid::regclass) from pg_class where relkind = 'r' and relnamespace `+inOurs)+
		each(`select format('alter table %s disable row level security', oid::regclass) from pg_class where relkind = 'r' and relrowsecurity and relnamespace `+inOurs+` and relname < 'p'`)+
		each(`select format('alter table %s alter column %I set default null', attrelid::regclass, attname) from pg_attribute where attnum > 0 and not attisdropped and attgenerated = '' and attidentity = '' and attrelid in (select oid from pg_class where relkind = 'r' and relnamespace `+inOurs+`)`)+
		each(`select format('comment on column %s.%I is ''x''', attrelid::regclass, attname) from pg_attribute where attnum > 0 and not attisdropped and attrelid in (select oid from pg_class where relkind in ('r', 'v') and relnamespace `+inOurs+`)`)+
		each(`select format('comment on table %s is ''x''', oid::regclass) from pg_class where relkind = 'r' and relnamespace `+inOurs)+
		each(`select format('comment on schema %s is ''x''', nspname) from pg_namespace where nspname in ('core', 'platform', 'worlds')`))
	subjects := damaged(t, at, map[string]int{
		"function": declared("function"), "trigger": declared("trigger"), "policy": declared("policy"), "table": declared("table") - declared("query"), "column": declared("column"),
		"query": declared("query"), "schema": declared("schema"), "constraint": value[int](t, conn, checks), "index": value[int](t, conn, trees),
	})
	cured(t, at, subjects)
}

// rowsOf writes out the rows that migrations have put in.
func rowsOf(t *testing.T, at string) []string {
	t.Helper()
	return values[string](t, pgtest.Conn(t, at), `select 'leads ' || l.duty from core.leads l union all select format('publisher_sources %s %s', s.role_name, s.source) from core.publisher_sources s
		union all select format('retention_policies %s %s %s %s', p.subject, p.content_class, p.active_ttl_days, p.tombstoned_grace_days) from core.retention_policies p order by 1`)
}

// Tables and columns come back as well, empty but for the rows that migrations put in, with all that stood on them and in one go.
func TestDroppedTablesComeBack(t *testing.T) {
	t.Parallel()
	for name, damage := range map[string]string{
		"some tables and a column": `drop table core.retention_policies, core.leads, core.ack_latencies, worlds.scans cascade; alter table core.outbox drop column crashes cascade`,
		"what a default calls":     `drop function core.uuid_v7() cascade; drop table core.outbox cascade; alter table core.operator_actions drop column id cascade`,
		"every table":              each(`select format('drop table %s cascade', oid::regclass) from pg_class where relkind = 'r' and relnamespace ` + inOurs),
		"everything in them": each(`select format('drop table %s cascade', oid::regclass) from pg_class where relkind = 'r' and relnamespace `+inOurs) +
			each(`select format('drop function if exists %s cascade', oid::regprocedure) from pg_proc where pronamespace `+inOurs),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			at := pgtest.New(t)
			before := rowsOf(t, at)
			if len(before) == 0 {
				t.Fatal("migrations put no rows in")
			}
			exec(t, pgtest.Conn(t, at), damage)
			subjects := damaged(t, at, nil)
			if len(subjects) < 10 {
				t.Fatalf("only %q are damaged", subjects)
			}
			cured(t, at, app.WithoutKeyIndexes(subjects))
			if after := rowsOf(t, at); !slices.Equal(after, before) {
				t.Errorf("afterwards the rows are %q, not %q", after, before)
			}
		})
	}
}

// Rows that somebody has taken out of a table that is there stay out: they may be what a role is no longer allowed to do.
func TestWhatHasBeenTakenOutStaysOut(t *testing.T) {
	t.Parallel()
	at := pgtest.New(t)
	exec(t, pgtest.Conn(t, at), "delete from core.publisher_sources where source = 'worlds'")
	before := rowsOf(t, at)
	cured(t, at, []string{"table core.publisher_sources", "table core.leads", "table core.retention_policies"})
	if after := rowsOf(t, at); !slices.Equal(after, before) {
		t.Errorf("afterwards the rows are %q, not %q", after, before)
	}
}
