package sql_test

import (
	"fmt"
	"strings"
	"testing"
)

// create begins an operation on the first n failed events, and returns its id.
func (d *database) create(t *testing.T, name string, n int, more string) string {
	t.Helper()
	return value[string](t, d.session(t, "operator"), fmt.Sprintf(`
		select core.operation_create(p_name => '%s', p_created_by => 'anna', p_event_ids => array_agg(o.id order by o.id),
			p_occurred_ats => array_agg(o.occurred_at order by o.id), p_as_of => clock_timestamp(), p_filter => '{}',
			p_plan => 'plan', p_generation => %s%s)::text
		from (select * from core.outbox where status = 'failed' order by id limit %d) o`, name,
		map[string]string{"replay": "3", "discard": "null"}[name], more, n))
}

const step = "select next_in is not null from core.operation_step()"

const noStep = "select count(*) from core.operation_step()"

const progress = "select state, acted, delivered, failed, skipped, coalesce(why, '-') from core.operations"

// settle makes what was replayed delivered or failed.
func (d *database) settle(t *testing.T, status string, limit int) {
	t.Helper()
	exec(t, d.admin, fmt.Sprintf(`update core.outbox set status = '%s', delivered_at = case '%[1]s' when 'delivered'
		then clock_timestamp() end, claimed_at = clock_timestamp()
		where id in (select id from core.outbox where status = 'pending' order by id limit %d)`, status, limit))
}

// Workers carry an operation on, which an operator's plan froze, and have no other right to replay.
func TestOperation(t *testing.T) {
	t.Parallel()
	d := setupOperator(t, 5, map[int]string{4: "claimed_at = clock_timestamp() + interval '1 minute'"})
	d.create(t, "replay", 4, ", p_batch => 2")
	d.run(t,
		line{"worker", "select core.outbox_replay('{5}', 3)", "42501 ~ outbox_replay"},
		line{"worker", step, "t"}, line{"", progress, "running 2 0 0 0 -"},
		line{"", "select count(*) from core.outbox where status = 'pending'", "2"})
	d.settle(t, "delivered", 1)
	d.settle(t, "failed", 1)
	exec(t, d.admin, "update core.operations set acted_at = null") // the rate lets two more go
	// the fourth has failed after the plan was made
	d.run(t, line{"worker", step, "t"}, line{"", progress, "running 3 1 1 1 -"})
	d.settle(t, "delivered", 1)
	d.run(t, line{"worker", step, "f"}, line{"", progress, "done 3 2 1 1 -"}, line{"worker", noStep, "0"},
		line{"", "select n, outcome, note from core.operation_rows order by n",
			"1 delivered -; 2 failed -; 3 delivered -; 4 skipped failed again"},
		line{"", "select status, generation from core.outbox where id = '{5}'", "failed 1"})
	d.wantActions(t, `operation_create anna 0 3 {"name": "replay", "plan": "plan", "events": 4, "operation": "`+
		value[string](t, d.admin, "select id::text from core.operations")+`"}`, `replay anna 2 3 {"asked": 2}`,
		`replay anna 1 3 {"asked": 2}`)
}

// A canary pauses the operation when its events have settled, unless it may go on. Too many failures pause it, too.
func TestOperationPauses(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct{ more, settles, then string }{
		"a canary":              {"p_canary => 2", "delivered", "paused 2 2 0 0 canary: 2 delivered, 0 failed again"},
		"a canary that goes on": {"p_canary => 2, p_goes_on => true", "delivered", "running 4 2 0 0 -"},
		"a canary that fails": {"p_canary => 2, p_goes_on => true", "failed",
			"paused 2 0 2 0 canary: 0 delivered, 2 failed again"},
		"too many failures": {"p_batch => 2, p_max_failed => 0.5, p_canary => 2", "failed",
			"paused 2 0 2 0 2 of 2 events have failed again"},
		"not too many failures":       {"p_batch => 2", "failed", "running 4 0 2 0 -"},
		"a rate of one in 20 minutes": {"p_rate => 0.001", "delivered", "running 1 1 0 0 -"},
	} {
		d := setupOperator(t, 4, nil)
		d.create(t, "replay", 4, ", "+test.more)
		d.run(t, line{"worker", step, "t"})
		d.settle(t, test.settles, 4)
		if !strings.Contains(test.more, "rate") {
			exec(t, d.admin, "update core.operations set acted_at = null")
		}
		d.run(t, line{"worker", "select count(*) from core.operation_step()", "1"}, line{"", progress, test.then})
		if t.Failed() {
			t.Fatal(name)
		}
	}
	// resumed, it counts failures from there, goes on with a canary that has not settled, and may begin another
	d := setupOperator(t, 4, nil)
	id := d.create(t, "replay", 4, ", p_canary => 2, p_max_failed => 0")
	d.run(t, line{"worker", step, "t"})
	d.settle(t, "failed", 2)
	d.run(t, line{"worker", step, "f"}, line{"", progress, "paused 2 0 2 0 2 of 2 events have failed again"},
		line{"operator", fmt.Sprintf("select core.operation_set('%s', 'running', 'bert')", id), "paused"})
	exec(t, d.admin, "update core.operations set acted_at = null")
	d.run(t, line{"worker", step, "t"}, line{"", progress, "running 4 0 2 0 -"})
	d.settle(t, "delivered", 2)
	d.run(t, line{"worker", step, "f"}, line{"", progress, "done 4 2 2 0 -"})
	d = setupOperator(t, 4, nil)
	id = d.create(t, "replay", 4, ", p_canary => 1")
	set := func(state, more string) line {
		return line{"operator", fmt.Sprintf("select core.operation_set('%s', '%s', 'bert'%s) is null", id, state, more), "f"}
	}
	d.run(t, line{"worker", step, "t"}, set("paused", ""), set("running", ""), line{"worker", step, "t"},
		line{"", progress, "running 1 0 0 0 -"})
	d.settle(t, "delivered", 1)
	d.run(t, line{"worker", step, "f"}, line{"", progress, "paused 1 1 0 0 canary: 1 delivered, 0 failed again"},
		set("running", ", p_canary => 2"))
	exec(t, d.admin, "update core.operations set acted_at = null")
	d.run(t, line{"worker", step, "t"}, line{"", progress, "running 3 1 0 0 -"})
	d.settle(t, "failed", 2)
	d.run(t, line{"worker", step, "f"}, line{"", progress, "paused 3 1 2 0 canary: 1 delivered, 2 failed again"},
		line{"operator", fmt.Sprintf("select core.operation_set('%s', 'running', p_rate => 0)", id), "SP030 rate"})
}

// What does not settle hides nothing behind it, and skipped events are no canary.
func TestOperationSeesWhatFails(t *testing.T) {
	t.Parallel()
	d := setupOperator(t, 1100, nil)
	d.create(t, "replay", 1100, ", p_max_failed => 0.1, p_rate => 1e6, p_batch => 1000")
	d.run(t, line{"worker", step, "t"}, line{"worker", step, "t"}, line{"", progress, "running 1100 0 0 0 -"})
	exec(t, d.admin, "update core.outbox set status = 'failed', claimed_at = clock_timestamp() where id > $1", key(1050))
	d.run(t, line{"worker", step, "f"},
		line{"", progress, "paused 1100 0 50 0 50 of 50 events have failed again"})

	d = setupOperator(t, 4, nil)
	d.create(t, "replay", 4, ", p_canary => 1, p_goes_on => true")
	exec(t, d.admin, "update core.outbox set claimed_at = clock_timestamp() where id = $1", key(1))
	d.run(t, line{"worker", step, "t"}, line{"worker", step, "t"}, line{"", progress, "running 1 0 0 1 -"})
}

// A locked event has its turn later. One that cannot be written is skipped, and keeps no other; if none can be, the
// operation pauses.
func TestOperationAndSingleEvents(t *testing.T) {
	t.Parallel()
	d := setupOperator(t, 7, nil)
	reject := func(which string) {
		exec(t, d.admin, `drop trigger if exists reject on core.outbox; drop function if exists public.reject();
			create function public.reject() returns trigger language plpgsql as $$
			begin raise exception 'audit rejects'; end $$;
			create trigger reject before update on core.outbox for each row when (`+which+`)
			execute function public.reject()`)
	}
	reject("old.id = '" + key(2).String() + "'")
	locked := begin(t, d.admin)
	exec(t, locked, "select from core.outbox where id = $1 for update", key(3))
	id := d.create(t, "replay", 4, ", p_rate => 1e6")
	d.run(t, line{"worker", step, "t"}, line{"", progress, "running 2 0 0 1 -"},
		line{"worker", "select next_in from core.operation_step()", "1"},
		line{"", "select note from core.operation_rows where outcome = 'skipped'", "P0001: audit rejects"})
	must(t, locked.Rollback(deadline(t)))
	d.run(t, line{"worker", step, "t"}, line{"", progress, "running 3 0 0 1 -"})

	reject("true")
	d.create(t, "discard", 3, "")
	exec(t, d.admin, fmt.Sprintf("update core.operations set stepped_at = now() where id = '%s'", id))
	d.run(t, line{"worker", step, "f"}, line{"", progress + " order by id",
		"running 3 0 0 1 -; paused 0 0 0 3 P0001: audit rejects"})
}

// An operation that is paused takes no turn from one that runs. A canary of a discard goes on, too.
func TestOperationsTakeTurns(t *testing.T) {
	t.Parallel()
	d := setupOperator(t, 6, nil)
	paused := d.create(t, "replay", 2, "")
	d.run(t, line{"worker", step, "t"},
		line{"operator", fmt.Sprintf("select core.operation_set('%s', 'paused')", paused), "running"})
	d.create(t, "discard", 4, ", p_canary => 1, p_goes_on => true, p_batch => 1, p_rate => 1e6")
	d.run(t, line{"worker", step, "t"}, line{"worker", step, "t"}, line{"worker", step, "t"}, line{"worker", step, "f"},
		line{"worker", noStep, "0"}, line{"", progress + " order by id", "paused 2 0 0 0 -; done 4 0 0 0 -"})
	exec(t, d.admin, "update core.operations set state = 'paused', canary = 1, goes_on = false where name = 'discard'")
	d.run(t, line{"operator", `select core.operation_set(id, 'running', p_canary => 1, p_goes_on => true)
		from core.operations where name = 'discard'`, "paused"},
		line{"", "select canary, goes_on from core.operations where name = 'discard'", "5 t"})
}

// Operations are deleted when their events are gone, a part at a time.
func TestOperationsAreDeleted(t *testing.T) {
	t.Parallel()
	d := setupOperator(t, 3, nil)
	d.create(t, "discard", 3, "")
	sweep := line{"", "select rows from core.retention_delete_outbox(null, 100)", "0"}
	d.run(t, line{"worker", step, "f"}, sweep, line{"", "select count(*) from core.operation_rows", "3"})
	exec(t, d.admin, "update core.operations set state_at = now() - interval '53 days'")
	d.run(t, sweep, line{"", "select count(*) from core.operation_rows", "0"}, sweep,
		line{"", "select count(*) from core.operations", "0"})
}

// Two operators on one selection, and two runners of one operation, do not double anything.
func TestOperationsDoNotDouble(t *testing.T) {
	t.Parallel()
	d := setupOperator(t, 4, nil)
	first, second := d.create(t, "replay", 4, ""), d.create(t, "discard", 4, "")
	one := begin(t, d.login(t, "spectral_worker"))
	if !value[bool](t, one, fmt.Sprintf("select next_in is not null from core.operation_step('%s')", first)) {
		t.Error("the first runner does not go on")
	}
	d.run(t, line{"worker", fmt.Sprintf("select count(*) from core.operation_step('%s')", first), "0"})
	must(t, one.Commit(deadline(t)))
	d.run(t, line{"worker", fmt.Sprintf("select next_in is null from core.operation_step('%s')", second), "t"},
		line{"", "select name, state, acted, skipped from core.operations order by id",
			"replay running 4 0; discard done 0 4"},
		line{"", "select distinct note from core.operation_rows where outcome = 'skipped'", "pending"})
}

// Paused or aborted, an operation acts on no further event; what was replayed still counts. What it cannot do pauses
// it.
func TestOperationIsChanged(t *testing.T) {
	t.Parallel()
	d := setupOperator(t, 3, nil)
	id := d.create(t, "replay", 3, ", p_batch => 1")
	set := func(state string) string {
		return fmt.Sprintf("select core.operation_set('%s', '%s', 'bert')", id, state)
	}
	d.run(t, line{"worker", step, "t"}, line{"operator", set("paused"), "running"},
		line{"operator", set("paused"), "SP034 operation"},
		line{"worker", "select next_in from core.operation_step('" + id + "')", "-"},
		line{"", progress, "paused 1 0 0 0 -"})
	d.settle(t, "delivered", 1)
	d.run(t, line{"operator", set("aborted"), "paused"}, line{"worker", noStep, "0"})
	exec(t, d.admin, "update core.operations set stepped_at = now() - interval '11 seconds'")
	d.run(t, line{"worker", step, "f"},
		line{"", progress, "aborted 1 1 0 0 -"},
		line{"operator", set("running"), "SP032 operation"}, line{"worker", set("running"), "42501 ~ operation_set"},
		line{"operator", "select core.operation_set('{9}', 'paused')", "SP031 operation"},
		line{"operator", "select core.operation_set(null, 'gone')", "SP030 state"},
		line{"worker", noStep, "0"})
	exec(t, d.admin, "truncate core.operations, core.operation_rows")
	d.create(t, "replay", 2, "")
	exec(t, d.admin, "update core.deployments set status = 'retired', retired_at = now() where generation = 3")
	d.run(t, line{"worker", step, "f"},
		line{"", "select state, why ~ '^SP019: generation: 3 is retired' from core.operations", "paused t"})
}

func TestOperationRefuses(t *testing.T) {
	t.Parallel()
	d := setupOperator(t, 1, nil)
	call := func(arguments string) string {
		return "select core.operation_create(p_filter => '{}', p_plan => '', " + arguments + ")"
	}
	const given = "p_created_by => null, p_event_ids => '{{1}}', p_occurred_ats => '{2026-01-01}', p_as_of => now(), "
	var lines []line
	for arguments, want := range map[string]string{
		given + "p_name => 'x'":                                                     "SP030 name",
		given + "p_name => 'replay'":                                                "SP030 generation",
		given + "p_name => 'discard', p_generation => 3":                            "SP030 generation",
		given + "p_name => 'replay', p_generation => 2":                             "SP019 generation",
		given + "p_name => 'discard', p_rate => 'nan'":                              "SP030 rate",
		given + "p_name => 'discard', p_rate => 0":                                  "SP030 rate",
		given + "p_name => 'discard', p_canary => 0":                                "SP030 canary",
		given + "p_name => 'discard', p_max_failed => 1.5":                          "SP030 max_failed",
		given + "p_name => 'discard', p_batch => 1001":                              "SP030 batch",
		given + "p_name => 'discard', p_reason => ' '":                              "SP030 reason",
		strings.Replace(given, "null", "' '", 1) + "p_name => 'discard'":            "SP030 created_by",
		strings.Replace(given, "now()", "'2999-01-01'", 1) + "p_name => 'discard'":  "SP030 as_of",
		strings.Replace(given, "{2026-01-01}", "{null}", 1) + "p_name => 'discard'": "SP030 occurred_ats",
		strings.Replace(given, "{{1}}", "{}", 1) + "p_name => 'discard'":            "SP030 event_ids",
	} {
		lines = append(lines, line{"operator", call(arguments), want})
	}
	d.refused(t, lines...)
}
