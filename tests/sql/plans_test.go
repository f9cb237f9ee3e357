package sql_test

import (
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"spectral/tests/pgtest"
)

// Plans that a session made when the outbox was empty must serve it when it no longer is: each
// claimed row is read a few times, not once for each row that is pending.
func TestPlansMadeForAnEmptyOutbox(t *testing.T) {
	t.Parallel()
	at := pgtest.New(t)
	admin := pgtest.Conn(t, at)
	exec(t, admin, "analyze core.outbox; alter table core.outbox disable trigger outbox_notify")
	const rows, batch = 1600, 400
	worker := pgtest.Conn(t, at)
	exec(t, worker, "set plan_cache_mode = force_generic_plan")
	dispatch := func() {
		exec(t, worker, `do $$
			declare
				v_ids uuid[];
				v_times timestamptz[];
				-- what is settled is not to be walked past
				v_floor timestamptz := coalesce(nullif(current_setting('test.floor', true), ''), '-infinity')::timestamptz;
			begin
				perform core.outbox_look(1, '{worlds.world_model_card.published}', array[v_floor]);
				perform * from core.outbox_reap();
				select array_agg(c.event_id), array_agg(c.occurred_at), coalesce(max(c.available_at), '-infinity') into v_ids, v_times, v_floor
				from core.outbox_claim(1, 'worlds.world_model_card.published', 400, v_floor, gen_random_uuid(), false) c;
				if core.outbox_deliver(v_ids, v_times) <> cardinality(v_ids) then
					raise exception 'not all delivered';
				end if;
				perform set_config('test.floor', v_floor::text, false);
			end $$`)
		exec(t, worker, "select core.outbox_floor(1, 'worlds.world_model_card.published', clock_timestamp() - interval '1 millisecond')")
		exec(t, worker, `select core.outbox_retry(i, now(), now(), 0, '', '{}', true), core.outbox_fail(i, now(), now(), '', '{}') from gen_random_uuid() i`)
	}
	dispatch()
	exec(t, admin, `select core.outbox_publish_many((select jsonb_agg(jsonb_build_object('event_type', 'worlds.world_model_card.published',
		'source', 'worlds', 'payload', '{"card_id": "c", "version": 1, "title": "t"}'::jsonb)) from generate_series(1, 1600)))`)
	for range rows / batch {
		dispatch()
	}
	exec(t, worker, "select pg_stat_force_next_flush()")
	exec(t, worker, "select 1")
	read := value[int](t, admin, `select (select sum(idx_tup_read) from pg_stat_user_indexes where relname = 'outbox')::int
		+ (select seq_tup_read from pg_stat_user_tables where relname = 'outbox')::int`)
	if read > 6*rows || read < rows {
		t.Fatalf("%d entries were read to claim and settle %d rows", read, rows)
	}
	if left := value[int](t, admin, "select count(*) from core.outbox where status <> 'delivered'"); left != 0 {
		t.Fatalf("%d rows are not delivered", left)
	}
}

// The same of leases, beside as many rows that are settled already: whoever names rows reads those, and not
// all that is in flight.
func TestPlansOfLeasesMadeForAnEmptyOutbox(t *testing.T) {
	t.Parallel()
	at := pgtest.New(t)
	admin := pgtest.Conn(t, at)
	exec(t, admin, "analyze core.outbox; alter table core.outbox disable trigger outbox_notify")
	const rows, batch = 1600, 400
	worker := pgtest.Conn(t, at)
	exec(t, worker, "set plan_cache_mode = force_generic_plan")
	entries := func() int {
		exec(t, worker, "select pg_stat_force_next_flush()")
		exec(t, worker, "select 1")
		return value[int](t, admin, `select (select sum(idx_tup_read) from pg_stat_user_indexes where relname = 'outbox')::int
			+ (select seq_tup_read from pg_stat_user_tables where relname = 'outbox')::int`)
	}
	read, rowsOf, last := map[string]int{}, map[string]int{}, 0
	count := func(function string, rows int) {
		now := entries()
		read[function] += now - last
		rowsOf[function] += rows
		last = now
	}
	dispatch := func() {
		last = entries()
		leases := leaseRows(t, worker, "p_limit => 400", "p_handlers => '{a.b,c.d}'")
		count("lease", len(leases))
		exec(t, worker, "select core.lease_expires_in()")
		count("lease_expires_in", len(leases))
		exec(t, worker, "select core.outbox_reap()")
		count("reap", len(leases))
		for _, c := range []struct {
			function, sql string
			quarter       int
		}{
			{"heartbeat", "select core.outbox_heartbeat($1, $2, $3)", 3},
			{"retry", "select core.outbox_retry_leased(i, o, 3600, '', '{}', true, t) from unnest($1::uuid[], $2::timestamptz[], $3::uuid[]) as l(i, o, t)", 0},
			{"heartbeat of what is lost", "select core.outbox_heartbeat($1, $2, $3)", 0},
			{"fail", "select core.outbox_fail_leased(i, o, '', '{}', true, t) from unnest($1::uuid[], $2::timestamptz[], $3::uuid[]) as l(i, o, t)", 1},
			{"release", "select core.outbox_release($1, $2, $3)", 2},
			{"deliver", "select core.outbox_deliver_leased($1, $2, $3)", 3},
		} {
			part := leases[c.quarter*len(leases)/4 : (c.quarter+1)*len(leases)/4]
			exec(t, worker, c.sql, named(part)...)
			count(c.function, len(part))
		}
	}
	dispatch()
	publish := `select core.outbox_publish_many((select jsonb_agg(jsonb_build_object('event_type', 'worlds.world_model_card.published',
		'source', 'worlds', 'payload', '{"card_id": "c", "version": 1, "title": "t"}'::jsonb)) from generate_series(1, 1600)))`
	exec(t, admin, publish)
	exec(t, admin, "update core.outbox set status = 'delivered'")
	exec(t, admin, "vacuum core.outbox")
	exec(t, admin, publish)
	exec(t, admin, "select pg_stat_force_next_flush()") // what all this has read is told before the rest
	clear(read)
	clear(rowsOf)
	for range rows / batch {
		// a transaction of another test may keep what is settled from being passed over
		exec(t, admin, "vacuum (index_cleanup on) core.outbox")
		dispatch()
	}
	for function, most := range map[string]int{
		"lease": 4, "lease_expires_in": 4, "reap": 6, "heartbeat": 6, "heartbeat of what is lost": 6, "retry": 4, "fail": 4, "release": 4, "deliver": 4,
	} {
		if n := rowsOf[function]; n < rows/4 || read[function] < n || read[function] > most*n {
			t.Errorf("%s: %d entries were read for %d rows, want no more than %d times as many", function, read[function], n, most)
		}
	}
}

// What turns a way to read tables off makes plans look dear, its own and those of what it calls, and a
// dear plan is compiled by JIT anew for each execution: half a second for a millisecond's work.
func TestPlansThatLookDearAreNotCompiled(t *testing.T) {
	t.Parallel()
	at := pgtest.New(t)
	admin := pgtest.Conn(t, at)
	if dear := value[[]string](t, admin, `select coalesce(array_agg(p.oid::regprocedure::text), '{}') from pg_proc p
		where p.pronamespace = 'core'::regnamespace and p.proconfig::text ~ 'enable_\w+=off' and p.proconfig::text !~ 'jit=off'`); len(dear) > 0 {
		t.Errorf("without jit = off: %v", dear)
	}
}

// Settled events are not read, whatever the session planned when there were none.
func TestPlansOfGenerations(t *testing.T) {
	t.Parallel()
	d := setupNew(t)
	exec(t, d.admin, "analyze core.outbox; alter table core.outbox disable trigger outbox_notify; select core.generation_announce(3)")
	operator := d.session(t, "operator")
	exec(t, operator, "set plan_cache_mode = force_generic_plan")
	calls := []string{
		"select core.generation_status(1)", "select core.generation_backlog(1)", "select core.outbox_adoptable(1, 3)",
		"select core.outbox_adopt(1, 3, 10)", "select core.outbox_adopt(1, 3, 10, null, '{worlds.world_model_card.published}')", "select core.generation_retire(1)",
	}
	for _, sql := range calls[:5] {
		exec(t, operator, sql)
	}
	exec(t, d.admin, "select core.generation_drain(1)")
	d.rows(t, 4100, "status = case when (payload ->> 'n')::int > 100 then 'delivered' else 'pending' end")
	exec(t, d.admin, "vacuum core.outbox")
	for _, call := range calls {
		before := entriesRead(t, d.admin, operator)
		exec(t, operator, call)
		if read := entriesRead(t, d.admin, operator) - before; read > 450 {
			t.Errorf("%s reads %d entries beside 100 events", call, read)
		}
	}
}

// entriesRead counts entries of core.outbox and its indexes that the sessions have read.
func entriesRead(t testing.TB, admin *pgx.Conn, sessions ...*pgx.Conn) int {
	t.Helper()
	for _, session := range append(sessions, admin) {
		exec(t, session, "select pg_stat_force_next_flush()")
		exec(t, session, "select 1")
	}
	return value[int](t, admin, `select (select sum(idx_tup_read) from pg_stat_user_indexes where relname = 'outbox')::int
		+ (select seq_tup_read from pg_stat_user_tables where relname = 'outbox')::int`)
}

// With many rows, and plans from when there was none, each row that an operator names is read a few times.
func TestPlansOfOperators(t *testing.T) {
	t.Parallel()
	d := setupOperator(t, 0, nil)
	exec(t, d.admin, "alter table core.outbox disable trigger outbox_notify; analyze core.outbox")
	conn := d.session(t, "superuser")
	exec(t, conn, "set plan_cache_mode = force_generic_plan")
	calls := []string{"outbox_replay_preview_many($1, 3)", "outbox_discard_many($1, 'a')", "outbox_undiscard_many($1, 'a')", "outbox_replay_many($1, 1)", "outbox_retry_now_many($1, 'a')"}
	ids := func(from int) (all []uuid.UUID) {
		for n := range 100 {
			all = append(all, key(from+n))
		}
		return all
	}
	for _, call := range calls {
		exec(t, conn, "select count(*) from core."+call, ids(1))
	}
	d.rows(t, 3000, failedRow)
	for _, call := range calls {
		exec(t, d.admin, "update core.outbox set available_at = clock_timestamp() + interval '1 h' where status = 'pending'")
		before := entriesRead(t, d.admin, conn)
		n := value[int](t, conn, "select count(*) from core."+call, ids(2000))
		if read := entriesRead(t, d.admin, conn) - before; n != 100 || read > 2500 {
			t.Errorf("%s: %d entries were read for %d events", call, read, n)
		}
	}
}
