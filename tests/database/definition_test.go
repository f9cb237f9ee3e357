package database_test

import (
	"fmt"
	osexec "os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"spectral/internal/app"
	"spectral/tests/pgtest"
)

// cured runs what is printed for each subject, as an operator pipes it, and wants the schema to be ours again.
func cured(t *testing.T, at string, subjects []string) {
	t.Helper()
	text := printed(t, subjects...)
	if out, err := pasted(t, at, text).CombinedOutput(); err != nil {
		lines := strings.Split(text, "\n")
		if line := regexp.MustCompile(`<stdin>:([0-9]+): ERROR`).FindSubmatch(out); line != nil {
			at, _ := strconv.Atoi(string(line[1]))
			lines = lines[max(0, at-40):min(len(lines), at+1)]
		}
		t.Fatalf("%v: %s\n%s", err, out, strings.Join(lines, "\n"))
	}
	wantOurs(t, at)
}

// printed is what is printed for some subjects.
func printed(t *testing.T, subjects ...string) string {
	t.Helper()
	var text strings.Builder
	for _, subject := range subjects {
		statements, err := app.SchemaStatements(subject)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = fmt.Fprintf(&text, "-- %s\n%s", subject, statements)
	}
	return text.String()
}

// pasted is psql with a text.
func pasted(t *testing.T, at, text string) *osexec.Cmd {
	t.Helper()
	cmd := osexec.CommandContext(deadline(t), "psql", "--no-psqlrc", "--quiet", "--set=ON_ERROR_STOP=1", "--set=VERBOSITY=terse", "--file=-", "--dbname="+at)
	cmd.Stdin = strings.NewReader(text)
	return cmd
}

func wantOurs(t *testing.T, at string) {
	t.Helper()
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
		"a schema":                 "drop schema worlds cascade",
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

const psqlWaits = "select exists (select from pg_stat_activity where datname = current_database() and application_name = 'psql' and wait_event_type = 'Lock' and query like '%s')"

// reading is a transaction that has read a table and stays, as one that dumps it does.
func reading(t *testing.T, at, table string) pgx.Tx {
	t.Helper()
	tx, err := pgtest.Conn(t, at).BeginTx(deadline(t), pgx.TxOptions{IsoLevel: pgx.RepeatableRead})
	if err != nil {
		t.Fatal(err)
	}
	exec(t, tx, "select count(*) from "+table)
	return tx
}

// curing is psql with what is printed for a subject; what it says comes when it has ended.
func curing(t *testing.T, at, subject string) <-chan error {
	t.Helper()
	cmd, ended := pasted(t, at, printed(t, subject)), make(chan error, 1)
	go func() {
		out, err := cmd.CombinedOutput()
		if err != nil {
			err = fmt.Errorf("%w: %s", err, out)
		}
		ended <- err
	}()
	return ended
}

func finish(t *testing.T, tx pgx.Tx) {
	t.Helper()
	if err := tx.Rollback(deadline(t)); err != nil {
		t.Fatal(err)
	}
}

// Claims go by an index that is altered until the one that replaces it is there, however long a dump takes.
func TestAnIndexServesWhileItIsReplaced(t *testing.T) {
	t.Parallel()
	at := pgtest.New(t)
	watcher := pgtest.Conn(t, at)
	exec(t, watcher, "alter index core.outbox_due set (fillfactor = 51)")
	serves := func(when string) {
		t.Helper()
		if !value[bool](t, watcher, "select exists (select from pg_index where indexrelid = to_regclass('core.outbox_due') and indisvalid)") {
			t.Errorf("%s, core.outbox_due does not serve", when)
		}
		exec(t, watcher, "set lock_timeout = '2s'; select core.outbox_publish('worlds.world_model_card.published', 'worlds', '{\"card_id\": \"c\", \"version\": 1, \"title\": \"t\"}')")
	}
	first := reading(t, at, "core.outbox")
	ended := curing(t, at, "index core.outbox_due")
	waitFor(t, watcher, fmt.Sprintf(psqlWaits, "%index concurrently%"))
	serves("while the dump goes on")
	second := reading(t, at, "core.outbox")
	finish(t, first)
	waitFor(t, watcher, fmt.Sprintf(psqlWaits, "drop index concurrently%"))
	serves("while the former one is dropped")
	finish(t, second)
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	wantOurs(t, at)
}

// What is printed for an index does not put one in its place that could not be built, even where psql goes on after an error.
func TestAnIndexIsNotReplacedByAnInvalidOne(t *testing.T) {
	t.Parallel()
	at := pgtest.New(t)
	conn := pgtest.Conn(t, at)
	const subject = "index platform.memories_statement_once"
	exec(t, conn, `drop index platform.memories_statement_once;
		create index memories_statement_once on platform.memories (statement);
		insert into platform.memories (memory_id, scope, statement, observations, version, recorded_at) select gen_random_uuid(), 'agent', 'twice', 1, 1, now() from generate_series(1, 2);
		insert into platform.memories (memory_id, scope, statement, observations, version, recorded_at, state, retired_at) values (gen_random_uuid(), 'agent', 'twice', 1, 1, now(), 'retired', now())`)
	text := printed(t, subject)
	cmd := pasted(t, at, "\\unset ON_ERROR_STOP\n"+text)
	if out, err := cmd.CombinedOutput(); err == nil || !strings.Contains(string(out), "could not create unique index") || !strings.Contains(string(out), "memories_statement_once_anew could not be built") {
		t.Errorf("psql says %v: %s", err, out)
	}
	if value[bool](t, conn, "select to_regclass('platform.memories_statement_once_anew') is not null") {
		t.Error("an index that could not be built has been left")
	}
	if !value[bool](t, conn, "select indisvalid from pg_index where indexrelid = 'platform.memories_statement_once'::regclass") {
		t.Error("an invalid index has replaced a valid one")
	}
	if n := value[int](t, conn, fmt.Sprintf("select n from (%s) as twice(a, b, c, n, copies)", advised(t, text))); n != 2 {
		t.Errorf("%d rows are in each other's way, and not 2", n)
	}
	exec(t, conn, fmt.Sprintf("delete from platform.memories where ctid in (select copies[1] from (%s) as twice(a, b, c, n, copies))", advised(t, text)))
	cured(t, at, []string{subject})
}

// advised is the query that finds what a unique index does not bear.
func advised(t *testing.T, text string) string {
	t.Helper()
	query := regexp.MustCompile(`(?m)^--   (select .* having count\(\*\) > 1);$`).FindStringSubmatch(text)
	if query == nil {
		t.Fatalf("no query finds what is there twice: %s", text)
	}
	return query[1]
}

// Nobody waits while the index of a key is built, and what has come in twice meanwhile can be found.
func TestAKeyComesBackBesideWhoeverWrites(t *testing.T) {
	t.Parallel()
	const subject, handled = "constraint event_handled_pk of core.event_handled",
		"insert into core.event_handled (handler_name, idempotency_key, event_id, event_type, content_class) values ('h.h', $1, gen_random_uuid(), 't', 'operational')"
	for name, damage := range map[string]string{
		"gone":          "alter table core.event_handled drop constraint event_handled_pk",
		"only an index": "alter table core.event_handled drop constraint event_handled_pk; create unique index event_handled_pk on core.event_handled (handler_name, idempotency_key)",
		"altered":       "alter table core.event_handled drop constraint event_handled_pk, add constraint event_handled_pk primary key (idempotency_key, handler_name)",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			at := pgtest.New(t)
			conn := pgtest.Conn(t, at)
			exec(t, conn, damage)
			dump := reading(t, at, "core.event_handled")
			ended := curing(t, at, subject)
			waitFor(t, conn, fmt.Sprintf(psqlWaits, "%"))
			exec(t, conn, "set lock_timeout = '2s'")
			exec(t, conn, "select count(*) from core.event_handled")
			exec(t, conn, handled, "while it is built")
			finish(t, dump)
			if err := <-ended; err != nil {
				t.Fatal(err)
			}
			wantOurs(t, at)
		})
	}
	t.Run("twice", func(t *testing.T) {
		t.Parallel()
		at := pgtest.New(t)
		conn := pgtest.Conn(t, at)
		exec(t, conn, "alter table core.event_handled drop constraint event_handled_pk")
		exec(t, conn, handled, "twice")
		exec(t, conn, handled, "twice")
		text := printed(t, subject)
		if out, err := pasted(t, at, text).CombinedOutput(); err == nil || !strings.Contains(string(out), "could not create unique index") {
			t.Fatalf("psql says %v: %s", err, out)
		}
		exec(t, conn, fmt.Sprintf("delete from core.event_handled where ctid in (select copies[1] from (%s) as twice(a, b, n, copies))", advised(t, text)))
		cured(t, at, []string{subject})
	})
}

// What is printed for whatever is unique says what to do about what is there twice.
func TestWhatIsUniqueSaysWhatToDoAboutDuplicates(t *testing.T) {
	t.Parallel()
	conn := pgtest.Conn(t, pgtest.New(t))
	for _, index := range values[string](t, conn, "select 'index ' || indexrelid::regclass from pg_index where indisunique and indrelid in (select oid from pg_class where relkind = 'r' and relnamespace "+inOurs+")") {
		text := printed(t, index)
		exec(t, conn, advised(t, text))
		if !strings.Contains(text, "create unique index concurrently ") {
			t.Errorf("%s is not built beside whoever writes: %s", index, text)
		}
	}
}
