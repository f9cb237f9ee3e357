package sql_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"spectral/internal/core/events/infrastructure/postgres/operator"
	"spectral/tests/pgtest"
)

// entriesOf sums what a function that counts says of the tables that grow and of their indexes.
func entriesOf(function string) string {
	return fmt.Sprintf(`select sum(%s(c.oid))::int from pg_class c where c.oid in (select t
		from unnest('{core.outbox,core.event_handled,core.operator_actions}'::regclass[]) t
		union all select indexrelid from pg_index
			where indrelid = any ('{core.outbox,core.event_handled,core.operator_actions}'::regclass[]))`, function)
}

// Plans that a session made when the tables were empty must serve it when they no longer are: of 10,000 rows, a call
// that is about 100 reads each of those a few times.
func TestCallsReadWhatTheyAreAbout(t *testing.T) {
	t.Parallel()
	const most = 2500
	d := setup(t)
	exec(t, d.admin, `analyze core.outbox; analyze core.event_handled; analyze core.operator_actions; alter table
		core.outbox disable trigger outbox_notify;
		select core.generation_announce(3), core.generation_drain(1)`)
	client, err := pgxpool.New(deadline(t), pgtest.Login(t, d.at, operator.Role)+"&pool_max_conns=1")
	must(t, err)
	t.Cleanup(client.Close)
	ids := func(from int) string {
		return fmt.Sprintf("array(select ('00000000-0000-7000-8000-' || lpad(to_hex(i), 12, '0'))::uuid from "+
			"generate_series(%d, %d) i)", from, from+99)
	}
	const times = "array_fill('2026-01-01'::timestamptz, array[100])"
	pending, failed := ids(9701), ids(9801)
	leases := fmt.Sprintf("%s, %s, %[1]s", ids(9901), times) // the token is the id
	calls := []string{
		"core.outbox_poll(1, '{{card}}', '{-infinity}')",
		"core.outbox_watermark(1, '{card}', clock_timestamp() - interval '1 h')",
		"core.outbox_claim(1, '{card}', 100, '-infinity', gen_random_uuid(), false)", "core.outbox_deliver(" + pending +
			", " + times + ")",
		"core.outbox_retry('{9701}', '2026-01-01', now(), 0, '', '{}', true)",
		"core.outbox_fail('{9701}', '2026-01-01', now(), '', '{}')",
		"core.outbox_lease(1, '{card}', 100, p_handlers => '{a.b,c.d}')", "core.lease_expires_in()", "core.outbox_reap()",
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
	}
	session := d.session(t, "superuser")
	exec(t, session, "set plan_cache_mode = force_generic_plan")
	read := func(call string) int {
		tx := begin(t, session)
		defer finish(t, tx)
		count := entriesOf("pg_stat_get_xact_tuples_returned")
		before := value[int](t, tx, count)
		exec(t, tx, filled("select * from "+call))
		return value[int](t, tx, count) - before
	}
	for _, call := range calls {
		read(call)
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
				where status = 'delivered'`)
	exec(t, d.admin, "vacuum core.outbox")
	exec(t, d.admin, "vacuum core.event_handled")
	for _, call := range calls {
		if n := read(call); n > most {
			t.Errorf("%s reads %d entries", call, n)
		}
	}

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
