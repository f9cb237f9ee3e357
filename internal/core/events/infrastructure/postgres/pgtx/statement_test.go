package pgtx

import (
	"errors"
	"testing"

	"github.com/jackc/pgx/v5"
)

func TestStatementsAreTreatedByTheirFirstWords(t *testing.T) {
	t.Parallel()
	for want, texts := range map[StatementKind][]string{
		TransactionControl: {"commit", "COMMIT;", " ;; commit", "/**/ commit", "/* a /* nested */ one */commit/**/",
			"-- a line\ncommit and chain", "--\r\v\fcommit", "commit prepared 'x'", "rollback", "rollback work",
			"rollback and no chain", "rollback transaction", "rollback prepared 'x'", "end", "abort", "begin",
			"start transaction", "prepare transaction 'x'", "prepare/**/transaction 'x'"},
		LocalSetting: {"set local app.x = 1", "SET\nLocal time zone 'UTC'", "set/**/local role x",
			"set local x = 'set_config('"},
		SessionState: {"set app.x = 1", "SET SESSION app.x = 1", "set transaction read only",
			"set constraints all immediate", "reset all", "discard temp", "listen x", "prepare p as select 1",
			"deallocate all", "declare c cursor for select 1", "load 'x'", "do $$ begin null; end $$", "call p()",
			"select set_config('app.x', 'x', true)", `select "set_config"('app.x', 'x', false)`,
			"select pg_catalog.SET_CONFIG ('app.x', 'x', false)", `select U&"set\005fconfig"('app.x', 'x', true)`,
			"update pg_catalog.pg_settings set setting = '1'", "select pg_advisory_lock(1)",
			"select PG_TRY_ADVISORY_LOCK_SHARED(1)", "create temp table t (n int)",
			"create local temporary table t (n int)", "create or replace temp view v as select 1",
			"create/**/temp table t ()", "create --\ntemp table t ()", "select 1 as n into temp t",
			"explain analyze create temp table t as select 1", "create table pg_temp.t ()"},
		Plain: {"", ";", "-- commit", "/* commit */", "/* never ends", "select 1", "(select 1)", "select '; commit'",
			"update t set n = 1", "lock table t", "notify x", "savepoint a", "release a", "rollback to a",
			"Rollback Work to savepoint a", "rollback transaction/**/to a", "execute p", "fetch c",
			"select pg_advisory_xact_lock(1)", "select pg_advisory_unlock(1)", "select temp, created from readings",
			"insert into readings (temp) values (1)", "create table t (temp int)", "create table attempts ()"},
	} {
		for _, sql := range texts {
			if got := readStatement(sql); got != want {
				t.Errorf("%q: %d, want %d", sql, got, want)
			}
		}
	}
}

// However the transaction's end is asked for, it is refused.
func TestTransactionControlIsRefused(t *testing.T) {
	t.Parallel()
	h := new(HandlerTx)
	batch := &pgx.Batch{}
	batch.Queue("select 1")
	batch.Queue("commit")
	_, exec := h.Exec(t.Context(), "commit")
	_, query := h.Query(t.Context(), "commit")
	for how, err := range map[string]error{
		"Exec": exec, "Query": query, "QueryRow": h.QueryRow(t.Context(), "commit").Scan(),
		"SendBatch":       h.SendBatch(t.Context(), batch).Close(),
		"simple protocol": h.QueryRow(t.Context(), "select 1", pgx.NamedArgs{"a": 1}, pgx.QueryExecModeSimpleProtocol).Scan(),
	} {
		if !errors.Is(err, ErrTxControl) {
			t.Errorf("%s: %v", how, err)
		}
	}
}
