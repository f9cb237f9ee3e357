package sql_test

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"spectral/internal/core/events/infrastructure/postgres/operator"
	"spectral/tests/pgtest"
)

// perEvent are the tables that each event has a row in.
const perEvent = `select t::oid as oid from unnest('{core.outbox,core.event_handled}'::regclass[]) t
	union all select inhrelid from pg_inherits where inhparent = 'core.outbox'::regclass`

// entriesOf sums what a function that counts says of the tables that grow and of their indexes.
func entriesOf(function string) string {
	return fmt.Sprintf(`with growing as (%s union all select 'core.operator_actions'::regclass)
		select sum(%s(c.oid))::int from pg_class c where c.oid in (select oid from growing
		union all select indexrelid from pg_index where indrelid in (select oid from growing))`, perEvent, function)
}

// plans tests what calls read in sessions that planned them at different times.
type plans struct {
	*database
	calls []string
	empty *pgx.Conn // planned all calls, by generic plans, when the tables were empty
}

// planned returns plans of a database with 10,000 events, of which 300 are not settled.
func planned(t *testing.T, partitions bool) *plans {
	t.Helper()
	d := setup(t)
	if partitions {
		must(t, pgtest.Partition(deadline(t), d.at))
	}
	exec(t, d.admin, `analyze core.outbox; analyze core.event_handled; analyze core.operator_actions; alter table
		core.outbox disable trigger outbox_notify;
		do $$ declare v regclass; begin
			for v in select oid from (`+perEvent+`) t where (select relkind from pg_class c where c.oid = t.oid) = 'r' loop
				execute format('alter table %s set (autovacuum_enabled = off)', v);
			end loop;
		end $$;
		select core.generation_announce(3), core.generation_drain(1);
		update core.relay set path = 'jetstream';
		insert into core.workers (worker_id, session_id, generation, name, handlers)
			select w, w, 1, 'w', '{}' from gen_random_uuid() w`)
	ids := func(from int) string {
		return fmt.Sprintf("array(select ('00000000-0000-7000-8000-' || lpad(to_hex(i), 12, '0'))::uuid from "+
			"generate_series(%d, %d) i)", from, from+99)
	}
	const times = "array_fill('2026-01-01'::timestamptz, array[100])"
	pending, failed := ids(9701), ids(9801)
	leases := fmt.Sprintf("%s, %s, %[1]s", ids(9901), times) // the token is the id
	each := func(value string) string { return "array_fill(" + value + ", array[100])" }
	p := &plans{database: d, empty: d.session(t, "superuser"), calls: []string{
		"core.outbox_barrier_poll('{outbox_gen_1}', 1, '{{card}}', '{-infinity}')",
		"core.outbox_poll(3, '{{card},platform.thing.happened}', '{-infinity,-infinity}', " + pending + ", " + times + ")",
		"core.outbox_barrier('outbox_gen_1')",
		"core.outbox_watermark(1, '{card}', clock_timestamp() - interval '1 h')",
		"core.outbox_watermark(3, '{card}', '-infinity')",
		"core.outbox_claim(1, '{card}', 100, '-infinity', gen_random_uuid(), false)",
		"core.outbox_claim(3, '{card}', 100, '-infinity', gen_random_uuid(), false)",
		"core.outbox_claim(3, '{card}', 100, '-infinity', gen_random_uuid(), true)",
		"core.workers w, core.claim_journal_write(w.worker_id, '{card}', 1, " + pending + ")",
		"core.outbox_deliver(" + pending + ", " + times + ")",
		// of no ids while the tables are empty: it raises an error for those that it does not find
		"(select coalesce(max(j.ids), '{}') i from core.claim_journal j) r, core.outbox_relayed(r.i, array_fill(" +
			"'2026-01-01'::timestamptz, array[cardinality(r.i)]), array_fill(true, array[cardinality(r.i)]))",
		"core.outbox_relayed_take(1, 'a.b', " + pending + ", " + times + ")",
		"core.outbox_relayed_deliver('{a.b}', " + pending + ", " + times + ")",
		"core.outbox_relayed_deliver('{a.b,c.d}', " + pending + ", " + times + ")",
		"core.outbox_relayed_return(" + pending + ", " + times + ")",
		"core.outbox_relayed_return_lost(1, '{card}', now(), null, 100)", "core.outbox_relayed_since(1, '{{card}}')",
		"core.outbox_publish_event('{9701}', null, '{card}', 'worlds', '{}', 1, null, null, 'k9701', null, null, null, " +
			"null, null)",
		"core.outbox_publish_rows(" + pending + ", null, " + each("'{card}'::text") + ", " + each("'worlds'::text") + ", " +
			each("'{}'::jsonb") + ", " + each("1") + ", null, null, " + each("'k9701'::text") +
			", null, null, null, null, null)",
		`core.outbox_publish_many('[{"event_type": "{card}", "source": "worlds", "payload": {}}]')`,
		"core.outbox_retry('{9701}', '2026-01-01', now(), 0, '', '{}', true)",
		"core.outbox_fail('{9701}', '2026-01-01', now(), '', '{}')",
		"core.outbox_lease(1, '{card}', 100, p_handlers => '{a.b,c.d}')",
		"core.outbox_lease(3, '{card}', 100, p_handlers => '{a.b,c.d}')",
		"core.lease_expires_in()", "core.outbox_reap()", "core.latency_sample()",
		"core.outbox_isolate(1, '{card}', 10, '-infinity', false, 'settle', false)",
		"core.outbox_isolate(3, '{card}', 10, '-infinity', false, 'settle', false)",
		"core.outbox_give_up('{9701}', '2026-01-01', null, 'a')",
		"core.outbox_heartbeat(" + leases + ")", "core.outbox_deliver_leased(" + leases + ")", "core.outbox_release(" +
			leases + ")",
		"unnest(" + leases + ") l(i, o, t), core.outbox_retry_leased(i, o, 3600, '', '{}', true, t)",
		"unnest(" + leases + ") l(i, o, t), core.outbox_fail_leased(i, o, '', '{}', true, t)",
		"core.generation_status(1)", "core.generation_backlog(1)", "core.outbox_adoptable(1, 3)",
		"core.outbox_adopt(1, 3, 10)",
		"core.outbox_adopt(1, 3, 10, null, '{{card}}')", "core.generation_retire(1)",
		"core.outbox_replay_preview_many(" + failed + ", 3)", "core.outbox_discard_many(" + failed + ", 'a')",
		"core.outbox_undiscard_many(" + failed + ", 'a')",
		"core.outbox_replay_many(" + failed + ", 3)", "core.outbox_retry_now_many(" + pending + ", 'a')",
		"core.outbox_failures('worlds')",
		"core.retention_sweep('core.retention_tombstone_outbox', null, 100)",
		"core.retention_sweep('core.retention_tombstone_event_handled', null, 100)",
		"core.retention_sweep('core.retention_delete_outbox', null, 100)",
		"core.retention_sweep('core.retention_delete_event_handled', null, 100)",
	}}
	exec(t, p.empty, "set plan_cache_mode = force_generic_plan")
	for _, call := range append(p.calls, claimKeys) {
		p.read(t, p.empty, call)
	}
	d.rows(t, 10000, "occurred_at = '2026-01-01'")
	exec(t, d.admin, `update core.outbox set status = 'delivered', delivered_at = now()
		where (payload ->> 'n')::int <= 9700;
		update core.outbox set occurred_at = now() - interval '70 days', delivered_at = now() - interval '70 days',
			deleted_at = case when (payload ->> 'n')::int > 200 then now() - interval '8 days' end
				where (payload ->> 'n')::int <= 400;
		update core.outbox set available_at = now() + interval '1 h' where id = any (`+ids(9751)+`) and status = 'pending';
		update core.outbox set status = 'failed', attempts = 6, last_error = 'HandlerError: a.b: no', claimed_at = now()
			where id = any (`+failed+`);
		update core.outbox set status = 'in_flight', claim_token = id, claimed_at = now(), lease_seconds = 3600
			where id = any (`+ids(9901)+`);
		insert into core.event_handled (handler_name, idempotency_key, event_id, event_type, content_class, handled_at,
			deleted_at)
			select 'a.b', idempotency_key, id, event_type, 'operational', occurred_at, deleted_at from core.outbox
				where status = 'delivered';
		update core.workers set gone_at = now() - interval '1 h'; -- with all that is pending
		insert into core.claim_journal (worker_id, event_type, runner, ids)
			select worker_id, 't', 1, `+pending+` from core.workers`)
	return p
}

// claimKeys is the name of the statement by which a batch takes its keys. Every other one is taken.
const claimKeys = "ClaimKeys"

// statement returns the text of a statement of that name.
func statement(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile("../../db/queries/core/event_handled.sql")
	must(t, err)
	_, found, _ := strings.Cut(string(text), "-- name: "+name+" ")
	found, _, _ = strings.Cut(found, "-- name: ")
	return "--" + found
}

func repeated[T any](v T) []T { return slices.Repeat([]T{v}, 100) }

// read makes a call, and undoes it. It returns how many entries of tables and indexes it read, and in how many
// sequential scans of those that each event has a row in.
func (p *plans) read(t *testing.T, session *pgx.Conn, call string) (entries, scans int) {
	t.Helper()
	tx := begin(t, session)
	defer finish(t, tx)
	const scansOf = "select sum(pg_stat_get_xact_numscans(t.oid))::int from (" + perEvent + ") t"
	counted := entriesOf("pg_stat_get_xact_tuples_returned")
	entries, scans = value[int](t, tx, counted), value[int](t, tx, scansOf)
	if call == claimKeys {
		exec(t, tx, statement(t, call), pgx.NamedArgs{
			"event_type": cardType, "handler_names": repeated("a.b"),
			"idempotency_keys": values[string](t, tx, "select 'k' || i from generate_series(9651, 9750) i"),
			"event_ids":        repeated(key(1)), "workspace_ids": repeated(uuid.Nil),
			"content_classes": repeated("operational"),
		})
	} else {
		exec(t, tx, filled("select * from "+call))
	}
	return value[int](t, tx, counted) - entries, value[int](t, tx, scansOf) - scans
}

// most is how many entries a call that is about 100 may read: each of those a few times.
const most = 2500

// wantFew makes each call until it reads few entries: the first also reads what updates left behind, and marks it for
// the next. It can do so once their commits are on disk, which without synchronous_commit takes a checkpoint or a
// moment, and once no other session, such as one that analyzes a table, has a snapshot of before.
func (p *plans) wantFew(t *testing.T, plans string, session *pgx.Conn) {
	t.Helper()
	exec(t, p.session(t, "superuser 4"), "checkpoint")
	for _, call := range append(p.calls, claimKeys) {
		p.read(t, session, call)
		n, scans := 0, 0
		if !pgtest.Eventually(30*time.Second, func() bool {
			n, scans = p.read(t, session, call)
			return n <= most && scans == 0
		}) {
			t.Errorf("%s: %s reads %d entries, with %d sequential scans", plans, call, n, scans)
		}
	}
}

// Plans that a session made when the tables were empty must serve it when they no longer are.
func TestCallsReadWhatTheyAreAbout(t *testing.T) {
	t.Parallel()
	for name, partitions := range map[string]bool{"one table": false, "partitions": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			callsReadWhatTheyAreAbout(t, partitions)
		})
	}
}

func callsReadWhatTheyAreAbout(t *testing.T, partitions bool) {
	t.Helper()
	d := planned(t, partitions)
	d.wantFew(t, "made when the tables were empty", d.empty)
	client, err := pgxpool.New(deadline(t), pgtest.Login(t, d.at, operator.Role)+"&pool_max_conns=1")
	must(t, err)
	t.Cleanup(client.Close)

	// pages and counts of operators, whatever the server knows of the tables
	d.acts(t, 10000)
	a := operator.New(client)
	find := func(statuses ...operator.Status) func(context.Context) (int, error) {
		return func(ctx context.Context) (int, error) {
			filter, page := operator.Filter{Statuses: statuses}, operator.Page{Limit: 50}
			found, err := a.Find(ctx, filter, page)
			if err != nil {
				return 0, err
			}
			page.After = found.Next
			found, err = a.Find(ctx, filter, page)
			return len(found.Events), err
		}
	}
	actions := func(filter operator.ActionFilter) func(context.Context) (int, error) {
		return func(ctx context.Context) (int, error) {
			found, err := a.Actions(ctx, filter, operator.Page{Limit: 50})
			return len(found.Actions), err
		}
	}
	committed := func() int {
		for _, q := range []querier{client, d.admin} {
			exec(t, q, "select pg_stat_force_next_flush()")
			exec(t, q, "select 1")
		}
		return value[int](t, d.admin, entriesOf("pg_stat_get_tuples_returned"))
	}
	for _, known := range []bool{false, true} {
		if known {
			exec(t, d.admin, "analyze core.outbox; analyze core.operator_actions")
		}
		for name, ask := range map[string]func(context.Context) (int, error){
			"failed":         find(operator.Failed),
			"not delivered":  find(operator.Failed, operator.Due, operator.Scheduled, operator.InFlight),
			"delivered":      find(operator.Delivered),
			"due":            find(operator.Due, operator.Scheduled),
			"actions":        actions(operator.ActionFilter{}),
			"common actions": actions(operator.ActionFilter{Actions: []string{"discard"}}),
			"actions on an event": actions(operator.ActionFilter{
				Events: []uuid.UUID{uuid.MustParse("00000000-0000-0000-0000-00000000270f")},
			}),
			"counts": func(ctx context.Context) (int, error) {
				counted, err := a.Count(ctx, operator.Filter{},
					operator.Count{By: []operator.Dimension{operator.ByStatus, operator.ByType, operator.ByError}, Limit: 50})
				return len(counted.Groups), err
			},
		} {
			before := committed()
			if found, err := ask(deadline(t)); err != nil || found == 0 {
				t.Fatalf("%s: %d, %v", name, found, err)
			}
			if n := committed() - before; n > most {
				t.Errorf("%s, statistics %t: %d entries were read", name, known, n)
			}
		}
	}
}

// What turns a way to read tables off makes plans look dear, and a dear plan is compiled by JIT for each execution:
// half a second for a millisecond's work.
func TestPlansThatLookDearAreNotCompiled(t *testing.T) {
	t.Parallel()
	if dear := values[string](t, setup(t).admin, `select p.oid::regprocedure::text from pg_proc p
		where p.pronamespace = 'core'::regnamespace and p.proconfig::text ~ 'enable_\w+=off'
			and p.proconfig::text !~ 'jit=off'`); len(dear) > 0 {
		t.Errorf("without jit = off: %v", dear)
	}
}
