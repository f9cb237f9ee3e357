package sql_test

import (
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"spectral/internal/app"
	"spectral/internal/core/retention"
)

// swept is the rows of a sweep by "subject.action", without the zeros.
type swept map[string]int

// sweepPage calls core.retention_sweep once; arguments are those after p_step.
func sweepPage(t testing.TB, q querier, function string, arguments ...any) (n int, next []string, led bool) {
	t.Helper()
	sql := "select rows::integer, next from core.retention_sweep('" + function + "'"
	for i := range arguments {
		sql += fmt.Sprintf(", $%d", i+1)
	}
	switch err := q.QueryRow(deadline(t), sql+")", arguments...).Scan(&n, &next); {
	case errors.Is(err, pgx.ErrNoRows):
		return 0, nil, false
	case err != nil:
		t.Fatalf("%s: %v", function, err)
	}
	return n, next, true
}

// sweepAll runs all steps, page by page.
func sweepAll(t testing.TB, q querier, limit int) swept {
	t.Helper()
	all := swept{}
	for _, step := range app.RetentionSteps() {
		for after, first := []string(nil), true; first || after != nil; first = false {
			n, next, led := sweepPage(t, q, step.Function, after, limit)
			if !led || n > limit || next != nil && slices.Equal(next, after) {
				t.Fatalf("%s after %v: %d rows, then %v, leads: %t", step.Function, after, n, next, led)
			}
			if after = next; n > 0 {
				all[step.Subject+"."+step.Action] += n
			}
		}
	}
	return all
}

func (d *database) wantSwept(t testing.TB, q querier, limit int, want swept) {
	t.Helper()
	if have := sweepAll(t, q, limit); !maps.Equal(have, want) {
		t.Errorf("swept %v, want %v", have, want)
	}
}

var daysAgo = regexp.MustCompile(`(-?\d+(?:\.\d+)?)d\b`)

// ago writes 45d in SQL as the time so many days ago.
func ago(sql string) string {
	return daysAgo.ReplaceAllString(sql, "(clock_timestamp() - interval '$1 days')")
}

// store leaves core.outbox with the n-th event, under its default key or its own.
func (d *database) store(t testing.TB, n int, own, set string) {
	t.Helper()
	exec(t, d.admin, `
		insert into core.outbox (id, event_type, event_version, source, content_class, channel, generation, payload,
			idempotency_key)
		values ($1::uuid, 'worlds.world_model_card.published', 1, 'worlds', 'operational', 'outbox_gen_1', 1, '{}',
			coalesce(nullif($2, ''), $1::uuid::text))`,
		key(n), own)
	d.alter(t, n, ago(set))
}

func (d *database) fate(t testing.TB, table, condition string) string {
	t.Helper()
	return value[string](t, d.admin,
		"select coalesce((select case when t.deleted_at is null then 'kept' else 'tombstoned' end from "+table+" t "+
			"where "+condition+"), 'deleted')")
}

func TestRetentionPolicies(t *testing.T) {
	t.Parallel()
	const want = "event_handled 60+7, operator_action 365+7, outbox_row 45+7"
	if have := value[string](t, setup(t).admin,
		`select string_agg(subject || ' ' || active_ttl_days || '+' || tombstoned_grace_days, ', ' order by subject)
		from core.retention_policies where content_class = '*' and disposal = 'HARD_DELETE'`); have != want {
		t.Errorf("a new database keeps %s days, want %s", have, want)
	}
}

func TestPoliciesThatTheDatabaseRefuses(t *testing.T) {
	t.Parallel()
	d := setup(t)
	set := func(what string) string { return "update core.retention_policies set " + what }
	for _, role := range []string{"spectral_owner", "postgres"} {
		exec(t, d.admin, "set role "+role)
		for sql, code := range map[string]string{
			set("active_ttl_days = 52 where subject = 'event_handled'"):             "SP050",
			set("active_ttl_days = 53 where subject = 'outbox_row'"):                "SP050",
			set("tombstoned_grace_days = 15 where subject = 'outbox_row'"):          "SP050",
			set("subject = 'operator_action' where subject = 'event_handled'"):      "23505",
			"delete from core.retention_policies where subject = 'event_handled'":   "SP050",
			"truncate core.retention_policies":                                      "SP050",
			set("active_ttl_days = 0 where subject = 'outbox_row'"):                 "23514",
			set("active_ttl_days = null"):                                           "23502",
			set("tombstoned_grace_days = 0"):                                        "23514",
			set("content_class = 'workspace'"):                                      "23514",
			"insert into core.retention_policies values ('moon', '*', 1, 1)":        "23514",
			"insert into core.retention_policies values ('outbox_row', '*', 60, 1)": "23505",
		} {
			_, err := d.admin.Exec(deadline(t), sql)
			if have := sqlstate(t, err); have != code {
				t.Errorf("%s as %s: SQLSTATE %q, want %s (%v)", sql, role, have, code, err)
			}
		}
	}
	// together they may change, in either order
	exec(t, d.admin, set("active_ttl_days = 90 where subject = 'outbox_row'")+"; "+set("active_ttl_days = 98 where "+
		"subject = 'event_handled'"))
	exec(t, d.admin, set("active_ttl_days = 20 where subject = 'event_handled'")+"; "+set("active_ttl_days = 10 where "+
		"subject = 'outbox_row'"))
}

// Of two transactions whose changes are sound one by one, and not together, one fails at every isolation level.
func TestPoliciesChangedAtTheSameTime(t *testing.T) {
	t.Parallel()
	d := setup(t)
	for _, isolation := range []pgx.TxIsoLevel{pgx.ReadCommitted, pgx.RepeatableRead, pgx.Serializable} {
		exec(t, d.admin, "update core.retention_policies set active_ttl_days = case subject when 'outbox_row' then 45 else "+
			"60 end")
		commits := make(chan error, 2)
		for _, set := range []string{"52 where subject = 'outbox_row'", "54 where subject = 'event_handled'"} {
			tx, err := d.login(t, "spectral_owner").BeginTx(deadline(t), pgx.TxOptions{IsoLevel: isolation})
			must(t, err)
			exec(t, tx, "update core.retention_policies set active_ttl_days = "+set)
			ctx := deadline(t)
			go func() { commits <- tx.Commit(ctx) }()
		}
		if errors.Join(<-commits, <-commits) == nil {
			t.Errorf("%s: both transactions committed", isolation)
		}
		if fault := value[*string](t, d.admin, "select core.retention_policies_check()"); fault != nil {
			t.Errorf("%s: stored are policies with a fault: %s", isolation, *fault)
		}
	}
}

const (
	delivered = "status = 'delivered', delivered_at = clock_timestamp(), claim_token = null"
	failed    = "status = 'failed', claimed_at = clock_timestamp(), first_failed_at = clock_timestamp()"
)

func TestSweepOfEvents(t *testing.T) {
	t.Parallel()
	d := setup(t)
	cases := []struct{ name, row, want string }{
		{"delivered 44 days ago", "status = 'delivered', occurred_at = 44d, delivered_at = 44d", "kept"},
		{"delivered 45 days ago", "status = 'delivered', occurred_at = 45d, delivered_at = 45d", "tombstoned"},
		{"delivered long after it occurred", "status = 'delivered', occurred_at = 99d, delivered_at = 44d", "kept"},
		{"occurred after it was delivered", "status = 'delivered', occurred_at = 44d, delivered_at = 46d", "kept"},
		{"failed 44 days ago", "status = 'failed', occurred_at = 99d, claimed_at = 44d", "kept"},
		{"failed 45 days ago", "status = 'failed', occurred_at = 99d, claimed_at = 45d", "tombstoned"},
		{"failed at an unknown time", "status = 'failed', occurred_at = 45d, claimed_at = null", "tombstoned"},
		{"undiscarded 6 days ago", "status = 'failed', occurred_at = 99d, claimed_at = 99d, undiscarded_at = 6d", "kept"},
		{"undiscarded 7 days ago", "status = 'failed', occurred_at = 99d, claimed_at = 99d, undiscarded_at = 7d",
			"tombstoned"},
		{"undiscarded, replayed and delivered",
			"status = 'delivered', occurred_at = 99d, delivered_at = 45d, undiscarded_at = 46d", "tombstoned"},
		{"pending for ever", "status = 'pending', occurred_at = 999d", "kept"},
		{"in flight for ever",
			"status = 'in_flight', claim_token = gen_random_uuid(), claimed_at = 999d, occurred_at = 999d", "kept"},
		{"a tombstone of 6 days", "status = 'delivered', occurred_at = 99d, delivered_at = 99d, deleted_at = 6d",
			"tombstoned"},
		{"a tombstone of 7 days", "status = 'delivered', occurred_at = 99d, delivered_at = 99d, deleted_at = 7d", "deleted"},
		{"discarded 7 days ago, soon after it failed",
			"status = 'failed', occurred_at = 8d, claimed_at = 8d, deleted_at = 7d, discarded_at = 7d", "deleted"},
		{"pending with a tombstone", "status = 'pending', occurred_at = 99d, deleted_at = 99d", "tombstoned"},
		{"in flight with a tombstone",
			"status = 'in_flight', claim_token = gen_random_uuid(), claimed_at = 99d, deleted_at = 99d", "tombstoned"},
	}
	for n, c := range cases {
		d.store(t, n+1, "", c.row)
	}
	exec(t, d.admin, "insert into core.quarantined_events (id, occurred_at, event_type, generation, reason) select id, "+
		"occurred_at, event_type, generation, status from core.outbox")
	sweepAll(t, d.admin, 3)
	d.run(t, line{"", "select string_agg(reason, ', ' order by reason) from core.quarantined_events",
		"in_flight, pending"}) // the others were settled by hand
	for n, c := range cases {
		if have := d.fate(t, "core.outbox", fmt.Sprintf("t.id = '%s'", key(n+1))); have != c.want {
			t.Errorf("%s: %s, want %s", c.name, have, c.want)
		}
	}
}

// A handled key stays while the event that was handled is stored, or an undelivered event carries it.
func TestSweepOfHandledKeys(t *testing.T) {
	t.Parallel()
	d := setup(t)
	const pending, failedNow, deliveredNow = "status = 'pending'", "status = 'failed', claimed_at = 1d",
		"status = 'delivered', delivered_at = 1d"
	cases := []struct{ name, row, event, again, want string }{
		{"59 days", "handled_at = 59d", "", "", "kept"},
		{"60 days", "handled_at = 60d", "", "", "tombstoned"},
		{"a tombstone of 6 days", "handled_at = 99d, deleted_at = 6d", "", "", "tombstoned"},
		{"a tombstone of 7 days", "handled_at = 99d, deleted_at = 7d", "", "", "deleted"},
		{"the event is pending", "handled_at = 99d", pending, "", "kept"},
		{"the event is failed", "handled_at = 99d", failedNow, "", "kept"},
		{"the event is delivered", "handled_at = 99d", deliveredNow, "", "kept"},
		{"the event is a tombstone", "handled_at = 99d", "status = 'failed', claimed_at = 99d, deleted_at = 1d", "", "kept"},
		{"a tombstone whose event is there", "handled_at = 99d, deleted_at = 9d", pending, "", "kept"},
		{"another event carries the key, pending", "handled_at = 99d", "", pending, "kept"},
		{"another event carries the key, failed", "handled_at = 99d", "", failedNow, "kept"},
		{"another event carries the key of a tombstone", "handled_at = 99d, deleted_at = 9d", "", pending, "kept"},
		{"another event carries the key, delivered", "handled_at = 99d", "", deliveredNow, "tombstoned"},
	}
	for n, c := range cases {
		own := fmt.Sprintf("worlds:-:%d", n)
		if c.event != "" {
			d.store(t, 2*n+1, own, c.event)
		}
		if c.again != "" {
			d.store(t, 2*n+2, own, c.again)
		}
		exec(t, d.admin, "insert into core.event_handled (handler_name, idempotency_key, event_id, event_type, "+
			"content_class) values ('a.b', $1, $2, 'a.b', 'operational')", own, key(2*n+1))
		exec(t, d.admin, ago("update core.event_handled set "+c.row+" where idempotency_key = $1"), own)
	}
	sweepAll(t, d.admin, 2)
	for n, c := range cases {
		if have := d.fate(t, "core.event_handled", fmt.Sprintf("t.idempotency_key = 'worlds:-:%d'", n)); have != c.want {
			t.Errorf("%s: %s, want %s", c.name, have, c.want)
		}
	}
}

func TestSweepOfOtherTables(t *testing.T) {
	t.Parallel()
	d := setup(t)
	insert := func(sql string) { exec(t, d.admin, ago(sql)) }
	for _, times := range []string{"364d, null", "365d, null", "372d, 6d", "372d, 7d"} {
		insert("insert into core.operator_actions (action, acted_by, acted_at, deleted_at) values ('replay', 'me', " +
			times + ")")
	}
	for _, table := range []string{"platform.override_pattern_decisions", "worlds.rule_health_decisions"} {
		insert("insert into " + table +
			" (decision_id, workspace_id, counted_at) select gen_random_uuid(), w, at from (values (null::uuid, 66d), (null, " +
			"67d), (gen_random_uuid(), 67d), (null, 99d)) v(w, at)")
	}
	insert("insert into platform.conversations (conversation_id, created_at) values ('" + key(1).String() + "', 99d)")
	for _, task := range []string{"'succeeded', '{}', 1d", "'cancelled', null, 1d", "'cancelled', null, 0d",
		"'succeeded', '{}', -1d", "'queued', null, 1d"} {
		insert(`insert into platform.agent_tasks (agent_task_id, conversation_id, executor, input, created_at, updated_at,
			status, result, retain_until)
			values (gen_random_uuid(), '` + key(1).String() + "', 'e', '{}', 99d, 99d, " + task + ")")
	}
	worker := d.login(t, "spectral_worker")
	exec(t, worker, "set role spectral_worker")
	d.wantSwept(t, worker, 1, swept{
		"operator_action.tombstoned": 1, "operator_action.deleted": 1, "agent_task.deleted": 3,
		"override_pattern_decision.deleted": 3, "rule_health_decision.deleted": 3,
	})
	exec(t, d.admin, "delete from core.retention_policies where subject = 'operator_action'; update "+
		"core.operator_actions set deleted_at = "+ago("999d"))
	d.wantSwept(t, worker, 10, swept{})
}

// due leaves n delivered events and n handled keys, all of them to be tombstoned.
func (d *database) due(t testing.TB, n int) {
	t.Helper()
	exec(t, d.admin, "delete from core.event_handled")
	d.rows(t, n, ago("status = 'delivered', delivered_at = 70d, occurred_at = 70d"))
	exec(t, d.admin, `insert into core.event_handled (handler_name, idempotency_key, event_id, event_type,
		content_class, handled_at)
		select 'worlds.a', 'h' || idempotency_key, gen_random_uuid(), event_type, content_class, delivered_at
			from core.outbox`)
}

// Rows that stay do not keep a sweep from the rows behind them, whatever the size of its pages.
func TestSweepsPassRowsThatStay(t *testing.T) {
	t.Parallel()
	d := setup(t)
	for _, limit := range []int{1, 7, 50, 1000} {
		d.due(t, 50)
		exec(t, d.admin, "update core.outbox set status = 'pending', delivered_at = null where (payload ->> 'n')::int <= 20")
		d.wantSwept(t, d.admin, limit, swept{"outbox_row.tombstoned": 30, "event_handled.tombstoned": 50})
		exec(t, d.admin, ago("update core.outbox set deleted_at = 8d; update core.event_handled set deleted_at = 8d"))
		d.wantSwept(t, d.admin, limit, swept{"outbox_row.deleted": 30, "event_handled.deleted": 50})
	}
}

func TestSweepRefusals(t *testing.T) {
	t.Parallel()
	d := setup(t)
	d.due(t, 5)
	before := d.versions(t)
	exec(t, d.admin, `create schema evil; create function evil.retention_delete_outbox(text[], integer)
			returns table (rows bigint, next text[]) language sql
			as 'delete from core.outbox returning 1::bigint, null::text[]';
		grant usage on schema evil to public; alter function evil.retention_delete_outbox owner to spectral_worlds`)
	const sweep = "select core.retention_sweep('core.retention_delete_outbox', null, "
	d.same(t, "", "SP051*", sweep+"0)", sweep+"10001)", sweep+"null)", "select core.retention_sweep(null)",
		"select core.retention_sweep('core.retention_delete_moon')", "select core.retention_sweep('core.outbox_discard')",
		"select core.retention_sweep('evil.retention_delete_outbox')",
		"select core.retention_sweep('core.retention_delete_outbox($1,$2), core.retention_x')",
		"select core.retention_status(null)", "select core.retention_status(-5)", "select core.retention_status(36501)",
		"select core.retention_begin(null)", "select core.retention_begin(0)", "select core.retention_begin('NaN')",
		"select core.retention_begin(86401)")
	const tombstone = "select core.retention_sweep('core.retention_tombstone_outbox')"
	for _, isolation := range []string{"repeatable read", "serializable"} {
		d.run(t, line{"", "begin isolation level " + isolation, ""}, line{"", tombstone, "SP053*"}, line{"", "rollback", ""})
	}
	// policies that a superuser has stored past the trigger
	d.run(t, line{"", "select core.retention_sweep('core.retention_delete_outbox', p_swept_by => ' ')", "SP030*"},
		line{"", "begin; set local session_replication_role = replica; update core.retention_policies set " +
			"active_ttl_days = 50 where subject = 'event_handled'; commit", ""},
		line{"", tombstone, "SP050*"}, line{"", "select policy_fault like '%50 days%' from core.retention_status()", "t"},
		line{"", "update core.retention_policies set active_ttl_days = 60 where subject = 'event_handled'", ""})
	if after := d.versions(t); !slices.Equal(before, after) {
		t.Errorf("a refused sweep has changed\n%v to\n%v", before, after)
	}
	// db/privileges.txt has who may sweep; by their roles they do
	d.run(t, line{"retention", "set role spectral_retention; select core.retention_begin(60)", "0"},
		line{"operator", "select core.retention_begin(60)", denied},
		line{"worker", "select core.retention_delete_outbox(null, 1)", denied},
		line{"retention", "delete from core.outbox", denied})
}

func TestSweepsByHandAreRecordedOncePerRun(t *testing.T) {
	t.Parallel()
	d := setup(t)
	worker, operator := d.login(t, "spectral_worker"), d.login(t, "spectral_operator")
	exec(t, worker, "set role spectral_worker")
	exec(t, operator, "set role spectral_operator")
	run := uuid.New()
	sweepPage(t, worker, "core.retention_delete_outbox", nil, 10, uuid.New(), "worker 1")
	for _, step := range retention.Steps() {
		sweepPage(t, operator, step.Function, nil, 10, run, "me")
	}
	if !values[bool](t, d.admin,
		"select swept_at is not null from core.retention_policies where subject = 'outbox_row'")[0] {
		t.Error("an operator's sweep does not count as one")
	}
	if have := values[string](t, d.admin,
		"select action || ' ' || acted_by || ' ' || (details ->> 'run_id') from core.operator_actions"); !slices.Equal(have,
		[]string{"sweep me " + run.String()}) {
		t.Errorf("recorded is %v", have)
	}
}

// One transaction sweeps at a time, and one of many workers begins each sweep.
func TestOneSweepsAtATime(t *testing.T) {
	t.Parallel()
	d := setup(t)
	d.due(t, 40)
	const sweep = "select rows from core.retention_sweep('core.retention_tombstone_outbox', null, 10)"
	d.run(t, line{"retention", "begin; " + sweep, "10"}, line{"", "select count(*) from (" + sweep + ") s", "0"},
		line{"retention", "rollback", ""})
	d.wantSwept(t, d.admin, 10, swept{"outbox_row.tombstoned": 40, "event_handled.tombstoned": 40})

	exec(t, d.admin, "update core.retention_policies set swept_at = null") // an operator's sweep counts as well
	next := func() float64 { t.Helper(); return value[float64](t, d.admin, "select core.retention_begin(3600)") }
	if first, second := next(), next(); first != 0 || second < 3500 || second > 3600 {
		t.Errorf("the first sweep is due in %g s, the one after it in %g s", first, second)
	}
	for _, at := range []string{"61 minutes", "-1 minute"} { // the clock was set back
		exec(t, d.admin, "update core.retention_policies set swept_at = clock_timestamp() - interval '"+at+"'")
		if left := next(); left != 0 {
			t.Errorf("%s after a sweep the next is due in %g s", at, left)
		}
	}
}

// A sweep leaves rows that are locked, and no transaction waits for it except for the rows it has changed.
func TestSweepsWaitForNoLock(t *testing.T) {
	t.Parallel()
	d := setup(t)
	d.due(t, 5)
	d.alter(t, 3, "status = 'failed', claimed_at = delivered_at")
	d.alter(t, 4, ago("deleted_at = 8d"))
	holder := begin(t, d.login(t, "spectral_owner"))
	exec(t, holder, "select from core.outbox where id in ($1, $2) for update", key(3), key(4))
	exec(t, holder, "select from core.event_handled where idempotency_key = 'hk2' for update")
	d.wantSwept(t, d.admin, 100, swept{"outbox_row.tombstoned": 3, "event_handled.tombstoned": 4})
	exec(t, holder, "update core.outbox set status = 'pending', claimed_at = null where id = $1", key(3))
	must(t, holder.Commit(deadline(t)))
	d.wantSwept(t, d.admin, 100, swept{"outbox_row.deleted": 1, "event_handled.tombstoned": 1})

	d.rows(t, 30, "")
	exec(t, d.admin, ago("update core.outbox set status = 'delivered', delivered_at = 50d, occurred_at = 50d where id "+
		"<= $1"), key(20))
	d.run(t, line{"retention", "begin; select rows from core.retention_sweep('core.retention_tombstone_outbox')", "20"},
		line{"worker", "set lock_timeout = '100ms'; with claimed as (select * from core.outbox_claim(1, '{card}', 10, " +
			"'-infinity', gen_random_uuid(), false)) select core.outbox_deliver(array_agg(event_id), " +
			"array_agg(occurred_at)) from claimed", "10"},
		line{"worlds", "set lock_timeout = '100ms'; " + publishInto(1), ""})
}

// A row that is replayed between a sweep's read and its lock stays.
func TestSweepsReadARowAgainOnceTheyLockIt(t *testing.T) {
	t.Parallel()
	d := setup(t)
	d.due(t, 2)
	d.alter(t, 1, ago("status = 'failed', delivered_at = null, claimed_at = 70d"))
	exec(t, d.admin, `alter function core.outbox_expired rename to expired_row;
		create function core.outbox_expired(text, timestamptz, timestamptz, timestamptz, timestamptz, timestamptz,
			timestamptz, timestamptz) returns boolean language plpgsql as $$ begin
				perform pg_advisory_xact_lock_shared(7);
				return core.expired_row($1, $2, $3, $4, $5, $6, $7, $8);
			end $$;
		grant execute on function core.outbox_expired to public; alter function core.retention_sweep set lock_timeout = 0;
		select pg_advisory_lock(7)`)
	swept := d.later(t, "superuser", "select rows from core.retention_sweep('core.retention_tombstone_outbox')")
	d.run(t, line{"operator", "select core.outbox_replay('{1}', 1)", "1"}, line{"", "select pg_advisory_unlock(7)", "t"})
	if have := swept(); have != "1" {
		t.Errorf("swept %s rows, want 1", have)
	}
	d.run(t, line{"", "select id from core.outbox where deleted_at is null", "{1}"})
}

// Rows of two partitions have the same ctid: a sweep takes none for another.
func TestSweepsOfAPartitionedOutbox(t *testing.T) {
	t.Parallel()
	d := setup(t)
	exec(t, d.admin, ago(`
		set role spectral_owner;
		alter table core.outbox rename to outbox_whole;
		create table core.outbox (like core.outbox_whole including all) partition by range (occurred_at);
		create table core.outbox_old partition of core.outbox for values from (minvalue) to ((now() - interval '60 days'));
		create table core.outbox_new partition of core.outbox for values from ((now() - interval '60 days')) to (maxvalue);
		reset role`))
	const n = 30
	d.rows(t, 2*n, "")
	// each pending event, and each that was delivered lately, has the ctid of one that is due
	exec(t, d.admin, `
		create temporary table before as select * from core.outbox;
		truncate core.outbox;
		insert into core.outbox select (b).* from (select jsonb_populate_record(null::core.outbox,
			to_jsonb(b) || jsonb_build_object(
			'status', s.status, 'occurred_at', s.at, 'delivered_at', case when s.status = 'delivered' then s.at end)) as b
		from before b, lateral (select case when (b.payload ->> 'n')::int % 4 = 0 then 'pending' else 'delivered' end as
			status,
			now() - case when (b.payload ->> 'n')::int % 2 = 0 then interval '1 day' else interval '70 days' end as at) s
				order by b.id) x`)
	d.wantSwept(t, d.admin, 20, swept{"outbox_row.tombstoned": n})
	exec(t, d.admin, ago("update core.outbox set deleted_at = 8d where deleted_at is not null"))
	d.wantSwept(t, d.admin, 20, swept{"outbox_row.deleted": n})
	if have := values[int](t, d.admin,
		"select count(*)::int from core.outbox where deleted_at is null group by status"); !slices.Equal(have,
		[]int{n / 2, n / 2}) {
		t.Errorf("left are %v events, want as many delivered lately and pending", have)
	}
}

func TestFailedEventsAboutToExpire(t *testing.T) {
	t.Parallel()
	d := setup(t)
	for n, row := range []string{
		"claimed_at = 37d", "claimed_at = 38d", "claimed_at = 39d", "claimed_at = 41d, deleted_at = 0d",
		"claimed_at = 41d, occurred_at = -1d", "claimed_at = 60d, undiscarded_at = 2d",
		"claimed_at = 60d, undiscarded_at = 1d",
	} {
		d.store(t, n+1, "", "status = 'failed', occurred_at = 99d")
		d.alter(t, n+1, ago(row))
	}
	for days, want := range map[int]int{0: 0, 5: 1, 6: 3, 7: 4, 8: 5, 30: 5} {
		if have := value[int](t, d.admin, "select failed_expiring from core.retention_status($1)", days); have != want {
			t.Errorf("%d failed events expire within %d days, want %d", have, days, want)
		}
	}
	left := time.Until(value[time.Time](t, d.admin, "select failed_expire_first_at from core.retention_status()"))
	if left < 4*24*time.Hour || left > 5*24*time.Hour {
		t.Errorf("the first expires in %s, want five days", left)
	}
}

// Rows that are due are counted in a table of up to 100,000 rows, and estimated in a larger one.
func TestRowsThatAreDue(t *testing.T) {
	t.Parallel()
	d := setup(t)
	d.due(t, 400)
	exec(t, d.admin, ago("update core.outbox set deleted_at = 8d where (payload ->> 'n')::int <= 100; analyze "+
		"core.outbox"))
	due := func() []string {
		return values[string](t, d.admin,
			"select to_tombstone || ' ' || to_delete || ' ' || estimated from core.retention_due()")
	}
	if have := due(); !slices.Equal(have, []string{"300 100 false", "400 0 false", "0 0 false"}) {
		t.Errorf("due are %v", have)
	}
	exec(t, d.admin, "update pg_class set reltuples = 200000 where oid = 'core.outbox'::regclass")
	if have := due(); !strings.HasSuffix(have[0], " true") || have[1] != "400 0 false" {
		t.Errorf("due in a large table are %v", have)
	}
}
