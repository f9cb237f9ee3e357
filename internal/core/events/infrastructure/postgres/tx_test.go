package postgres

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// However a statement is written that ends the transaction, and whatever stands before it, the handler that it was lent to cannot.
func TestTxControlIsRefused(t *testing.T) {
	t.Parallel()
	for _, sql := range []string{
		"commit", "COMMIT;", " ; commit", "/**/ commit", "/* a /* nested */ one */commit", "-- a line\ncommit and chain",
		"rollback", "rollback work", "end", "abort", "begin", "start transaction", "prepare transaction 'x'", "rollback and no chain",
		"select 1; commit", "select 1;;/* */Rollback;begin", "select 1; rollback transaction", "select ';' ; -- ;\nend",
		"select E'it\\'s' ; commit --'", "select $a$ $b$ $a$; commit", `select 1 as ";"; commit`, "select 'it''s'; abort", "select $1; commit", "select a$$; commit --$$",
		"create function f() returns int begin atomic select 1; select 2; end; commit", "create table t (atomic int); commit",
		"create function f() returns void begin atomic end; commit",
		"select E'a'\n'x\\''; rollback; begin; select '1'", "select e'a' -- it's\n\t-- so\n'x\\''; commit; select '1'", "select E'a'\r'b'\n'x\\''; commit --'",
		"select E'a' 'x\\'; commit --'", "select E'a' /*\n*/ 'x\\'; commit --'", "select 'a'\n'x\\'; commit --'", "select U&'a'\n'x\\'; commit --'",
	} {
		if err := new(lentTx).begin(sql); !errors.Is(err, ErrTxControl) {
			t.Errorf("%q: %v", sql, err)
		}
		batch := &pgx.Batch{}
		batch.Queue(sql)
		if err := new(lentTx).SendBatch(t.Context(), batch).Close(); !errors.Is(err, ErrTxControl) {
			t.Errorf("%q in a batch: %v", sql, err)
		}
	}
	for _, args := range [][]any{{pgx.QueryExecModeSimpleProtocol}, {pgx.NamedArgs{"a": 1}, pgx.QueryExecModeSimpleProtocol}} {
		if err := new(lentTx).QueryRow(t.Context(), "select 1", args...).Scan(); !errors.Is(err, ErrTxControl) || !strings.Contains(err.Error(), "leave pgx.QueryExecModeSimpleProtocol out") {
			t.Errorf("several statements at once: %v", err)
		}
	}
	for _, sql := range []string{
		"select 1", "rollback to savepoint a", "savepoint a", "Rollback Work to a", "release a", "/* commit */ select 1", "-- commit", "/* never ends", "",
		"select '; commit'", "select $$; commit$$", "select $a$;commit;$$;commit$a$", `select 1 as "; commit"`, "select 'it''; commit'", "select E'\\'; commit'",
		"select U&'\\'; select '; commit", "'", `"`, "$", "$$", "$a", "select 1 /* ; commit */; select 2 -- ; commit", "select case when true then 1 end",
		"create function f() returns int begin atomic select 1; select 2; end", "create function f() returns int begin atomic select case when true then 1 end; select 2; end", "create rule r as on update to t do also (select 1; select 2)",
		"select \"a\"\"; commit\"", "select E'a'\n'\\'; commit'", "select 'a' -- '\n'; commit'",
	} {
		if err := new(lentTx).begin(sql); err != nil {
			t.Errorf("%q: %v", sql, err)
		}
	}
}

func TestWhatATextLeavesBehind(t *testing.T) {
	t.Parallel()
	undo := func(name string) string { return "select pg_catalog.set_config('" + name + "', null, true); " }
	for want, texts := range map[string][]string{
		"": {
			"select 1", "update t set n = 1; update t set n = 2", "insert into temp values (1)", "select temp, set from readings", "select 'set_config(1)'",
			"-- set\nselect 1", "select 1 /* ; set app.x = 1 */", "select pg_advisory_xact_lock(1)", "select pg_advisory_unlock(1)", "insert into t values ('; set app.x = 1')",
			"do $$ begin raise exception using errcode = '40001', message = 'set'; end $$", "create table t (set_at timestamptz)", "savepoint a", "alter role r set app.x = 1", "lock table t",
			"select setting from pg_settings", "update settings set pg_set = 1", "do $$ begin perform setting from pg_settings; end $$", "do $$ begin update t set open = open; end $$",
			"select advisory_lock_count, pg_advisory_lock from stats", "select set_config from t", `update t set "set_config" = 1`, "do $$ begin perform advisory_lock_count, set_config from t; end $$",
			"do $$ begin update t set n = 1; insert into t values (1) on conflict do update set n = 2; end $$", "do $$ declare load int; temp int = 1; begin perform temp + load; end $$",
			"do $$ begin create trigger r after update on t for each row execute function f(); end $$", "do $$ begin create trigger r after update on t execute procedure f(); end $$",
			"create function f() returns int begin atomic select 1; end", "with x as (select 1) select * into t from x",
		},
		undo("app.user"): {
			"set local app.user = 'x'", "SET LOCAL App.User TO 'x';", `set local "app"."user" = 'x'`, "select set_config('app.user', 'x', true)", "select Set_Config ( 'app.user' , $1 , TRUE )",
			"select pg_catalog.set_config('app.user', (select max(a, b) from t), true)", "select 1; set local app.user to x; select 2", "set/**/local app.user=1", "set--\nlocal app.user=1",
			`select "set_config"('app.user', array['a', 'b'][1], true)`, "update t set n = 1 where set_config('app.user', 'x', true) is null", "explain analyze select set_config('app.user', '', true)",
			"select set_config('app.user', 'x', 't')", "select set_config('app.user', 'x', true::bool)", "select set_config('app.user', 'x', 'true' :: boolean)",
		},
		undo("app.a") + undo("app.b"): {"select set_config('app.a', '1', true), set_config('app.b', '2', true)", "set local app.a = 1; set local app.b = 2; set local app.a = 3"},
		undo("timezone"):              {"set local time zone 'Asia/Tokyo'", "set local TimeZone = 'Asia/Tokyo'"},
		"close all;": {"declare c cursor for select 1", "declare c cursor for select 1; close c",
			"do $$ declare c cursor for select 1; begin open c; end $$", "do $$ declare c refcursor; begin open c for select 1; end $$"},
		"opaque": {
			"set local role spectral_worlds", "set local app.x from current", "select set_config($1, 'x', true)", "select set_config('app.' || 'x', 'x', true)", "set local names 'LATIN1'",
			"select set_config(E'app.x', 'x', true)", "select set_config('it''s', 'x', true)", "set transaction read only", "set constraints all immediate", "select set_config('app.'\n'x', '', true)",
			"set local " + strings.Repeat("n", 64) + " = 1", `set local "a""b" = 1`,
		},
		"kept": {
			"set app.x = 1", "SET SESSION app.x = 1", "/* */ set\tapp.x to 1", "select 1; set app.x = 1", "create view v as select atomic from t; set app.x = 1; select 1", "reset all", "discard temp", "listen x", "prepare p as select 1", "deallocate all", "load 'x'",
			"select set_config('app.x', 'x', false)", "select set_config('app.x', '1', true), set_config('app.y', '2', false)", "select set_config('app.x', 'x', false), coalesce(false, true)",
			"select set_config('app.x', 'x', $1)", "select set_config('app.x', is_local := true, new_value := 'x')", "select SET_CONFIG('app.x', 'x', false)", "select set_config('app.x'", "select set_config(", "select set_config/**/ ('app.x', 'x', false)",
			"select set_config('app.x', 'x', 'f')", "select set_config('app.x', 'x', true::bool and false)", "select set_config('app.x', 'x', true and false)", "select set_config('app.x', 'x', 't'\n'x')",
			"select set_config('app.x', 'x', not true)", "select set_config('app.x', 'x', )", "select set_config('app.x', true)",
			`select U&"set\005fconfig"('app.x', 'x', true)`, "select PG_ADVISORY_LOCK(1)", "select pg_try_advisory_lock_shared(1)", `select "pg_advisory_lock"(1)`,
			"create temp table t (n int)", "create local temporary table t (n int)", "create or replace temp view v as select 1", "select 1 as n into temp t", "select 1 into temporary table t", "create table pg_temp.t ()",
			"do $$ begin perform set_config('app.x', 'x', true); end $$", "do $a$ begin set local app.x = 1; end $a$", "do 'begin execute ''set app.x = 1''; end'", "do E'begin null; end'", "do language plpgsql 'begin perform PG_ADVISORY_LOCK(1); end'",
			"update pg_catalog.pg_settings set setting = '77s' where name = 'statement_timeout'", `with x as (update "pg_settings" set setting = '1' returning 1) select * from x`,
			"UPDATE PG_SETTINGS set setting = '1'", "do $$ begin update pg_settings set setting = '1'; end $$",
			"create function f() returns void begin atomic end; set app.x = 1", "do 'set app.x = 1'", "do 'begin se'\n't app.x = 1; end'", "do $$ begin null; reset all; end $$", "do $$ begin if a then discard temp; else load 'x'; end if; end $$", "do $$ begin if a then null; else listen x; end if; end $$",
			"do $$ begin loop set app.x = 1; end loop; end $$", "do $$ begin <<a>> set app.x = 1; end $$", "do $$ begin create temp table t (n int); end $$", "do $$ begin select 1 into temp t; end $$",
			"do $$ declare function text; begin execute function; end $$", "do $$ begin for r in execute function loop null; end loop; end $$", "do $$ begin open c for execute procedure; end $$",
			"declare c cursor with hold for select 1", "set session characteristics as transaction read only", "set role none",
		},
	} {
		for _, sql := range texts {
			r := remainsOf(sql)
			got := ""
			switch {
			case r.kept:
				got = "kept"
			case r.opaque:
				got = "opaque"
			default:
				for _, u := range r.undo {
					got += u
				}
			}
			if strings.TrimSpace(got) != strings.TrimSpace(want) || r.kept && !r.opaque {
				t.Errorf("%s: %q, want %q", sql, got, want)
			}
		}
	}
}

// However long a text is and whatever is in it, reading it takes time in proportion to its length.
func TestALongTextIsReadSoon(t *testing.T) {
	t.Parallel()
	var settings strings.Builder
	for n := range 20_000 {
		fmt.Fprintf(&settings, "set local app.n%d = 1; ", n)
	}
	for name, sql := range map[string]string{
		"calls that never end": strings.Repeat("set_config(", 50_000),
		"calls in calls":       "select " + strings.Repeat("set_config('app.x',", 20_000) + "''" + strings.Repeat(", true)", 20_000),
		"settings":             settings.String(),
		"a name of many parts": "set local a" + strings.Repeat(".a", 300_000) + " = 1",
	} {
		start := time.Now()
		r := remainsOf(sql)
		if took := time.Since(start); took > 2*time.Second {
			t.Errorf("%s: %s", name, took)
		}
		if !r.opaque {
			t.Errorf("%s: only %d settings to take back", name, len(r.undo))
		}
	}
}
