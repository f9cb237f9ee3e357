package sql_test

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"spectral/tests/pgtest"
)

// acted are the actions that were recorded, with by whom, the generation and the details.
const acted = "select concat_ws(' ', action, acted_by, generation, details) from core.operator_actions order by " +
	"acted_at, id"

// publishInto is SQL that publishes a card into a generation, and answers with the generation.
func publishInto(generation any) string {
	return fmt.Sprintf(`select core.outbox_publish('{card}', 'worlds', '{"card_id": "c", "version": 1, "title": "t"}',
		p_generation => %v)`, generation)
}

func statusOf(generation int, want string) line {
	return line{"", fmt.Sprintf("select status from core.generation_status(%d)", generation), want}
}

func TestAnOperatorRegistersAGeneration(t *testing.T) {
	t.Parallel()
	d := setup(t)
	d.run(t,
		line{"worker", "set role spectral_worker", ""},
		line{"operator", "select core.generation_register(7, 'ann')", "live"},
		line{"operator", "select core.generation_register(7, 'ann')", "live"},
		statusOf(7, "live"), line{"operator", "select core.generation_drain(7, 'bob')", "draining"},
		// a worker that starts lets a draining one drain
		line{"worker", "select core.generation_announce(7)", "draining"}, statusOf(7, "draining"),
		line{"operator", "select core.generation_register(7, 'ann')", "live"},
		line{"", "select draining_at from core.deployments where generation = 7", "-"},
		line{"operator", "select core.generation_register(8, ' ')", "SP030 acted_by"},
		line{"", acted, `generation_register ann 7 {}; generation_drain bob 7 {}; ` +
			`generation_register ann 7 {"was": "draining"}`},
	)
	d.same(t, "operator", "SP019 generation", "select core.generation_register(2, 'ann')",
		"select core.generation_register(0, 'ann')", "select core.generation_register(null, 'ann')")
	for _, call := range []string{"generation_register(8, 'ann')", "generation_drain(7)", "generation_retire(7)",
		"outbox_adopt(1, 7)", "outbox_adoptable(1, 7)", "generation_status()"} {
		d.run(t, line{"worker", "select core." + call, denied})
	}
	// the workers' form, which records no action, and what is internal
	for _, call := range []string{"generation_announce(8)", "generation_open(7, true)", "generation_left(7)",
		"adoption_check(1, 7, true)", "transactions_below(null)"} {
		d.run(t, line{"operator", "select core." + call, denied})
	}
}

func TestDrain(t *testing.T) {
	t.Parallel()
	d := setup(t)
	published := func(want string) line {
		return line{"", "select generation from core.outbox order by created_at desc limit 1", want}
	}
	d.run(t,
		line{"operator", "select core.generation_drain(1, 'ann')",
			"SP041 generation ~ publishing from SQL that names no generation is refused"},
		line{"operator", "select core.generation_register(3, 'ann')", "live"}, line{"worlds", publishInto("null"), ""},
		published("3"),
		line{"operator", "select core.generation_drain(3, 'ann')", "draining"},
		line{"operator", "select core.generation_drain(3, 'ann')", "draining"},
		// those who name it go on
		line{"worlds", publishInto("null"), ""}, published("1"), line{"worlds", publishInto(3), ""}, published("3"),
		line{"operator", "select core.generation_drain(1)", "SP041 generation"},
		line{"operator", "select core.generation_drain(1, 'ann', p_force => true)", "draining"},
		line{"worlds", publishInto("null"), "SP019 generation"},
		line{"", acted, `generation_register ann 3 {}; generation_drain ann 3 {}; generation_drain ann 1 {"forced": true}`},
		// hints name what an operator may call
		line{"worlds", publishInto("null"), "SP019 generation ~ workers generation register 3"},
		line{"worlds", publishInto(99), "SP019 generation ~ core.generation_register(99, null)"},
		line{"worlds", publishInto(2), "SP019 generation ~ publish into a live one"},
		line{"operator", "select core.event_type_pause('{card}', 99)",
			"SP019 generation ~ workers generation register 3"},
	)
	d.same(t, "operator", "SP019 generation", "select core.generation_drain(2)", "select core.generation_drain(99)",
		"select core.generation_drain(null)")
}

// Events may name a generation that is not registered: the workers that finish them must not make it live.
func TestDrainOfWhatIsNotRegistered(t *testing.T) {
	t.Parallel()
	d := setup(t)
	d.rows(t, 1, "generation = 9, channel = 'outbox_gen_9'")
	d.run(t, line{"operator", "select core.generation_drain(9, 'ann')", "draining"},
		line{"operator", "select core.generation_drain(9, 'ann')", "draining"},
		line{"worker", "select core.generation_announce(9)", "draining"}, statusOf(9, "draining"),
		line{"worlds", publishInto("null"), ""},
		line{"", "select generation, count(*) from core.outbox group by 1 order by 1", "1 1; 9 1"},
		line{"", acted, `generation_drain ann 9 {"was": "not registered"}`})
}

// Of two live generations that are drained at once, one stays.
func TestTwoDrainsAtOnce(t *testing.T) {
	t.Parallel()
	d := setup(t)
	d.run(t, line{"", "select core.generation_announce(3)", ""},
		line{"operator", "begin; select core.generation_drain(3)", "draining"})
	second := d.later(t, "operator 2", "select core.generation_drain(1)")
	d.run(t, line{"operator", "commit", ""})
	if have := second(); have != "SP041 generation" {
		t.Errorf("the second is answered with %q", have)
	}
}

const inFlight = "status = 'in_flight', claim_token = gen_random_uuid(), claimed_at = now()"

func TestGenerationStatus(t *testing.T) {
	t.Parallel()
	d := setup(t)
	d.rows(t, 12, "")
	// 1: two due, one in flight, two failed, one of them discarded; 5: known by its events alone; 6: settled only
	for n, set := range map[int]string{
		3: inFlight, 4: "status = 'failed'", 5: "status = 'failed', deleted_at = now()",
		6: "generation = 5, available_at = now() + interval '6 h'",
		7: "generation = 5, available_at = now() + interval '7 h'",
		8: "generation = 5, available_at = now() + interval '8 h'",
		9: "generation = 6, status = 'delivered'", 10: "generation = 7, " + inFlight,
		11: "generation = 8, status = 'failed'", 12: "status = 'delivered'",
	} {
		d.alter(t, n, set)
	}
	d.run(t,
		line{"", "select core.generation_announce(3)", ""},
		line{"worker", "set role spectral_worker; select core.worker_register(gen_random_uuid(), 1, 'here', " +
			"'{\"{card}\": [\"a.b\"]}')", ""},
		line{"worker 2", "set role spectral_worker; select core.worker_register(gen_random_uuid(), 1, 'gone', " +
			"'{\"{card}\": [\"a.b\"]}')", ""},
		line{"worker 2", "select pg_advisory_unlock_all()", ""},
		line{"operator", "begin", ""},
	)
	const columns = "select generation, status, due, scheduled, in_flight, failed, workers, publishing_default from " +
		"core.generation_status"
	known := []string{"1 live 2 0 1 1 1 f", "2 retired 0 0 0 0 0 f", "3 live 0 0 0 0 0 t", "5 unknown 0 3 0 0 0 f",
		"7 unknown 0 0 1 0 0 f", "8 unknown 0 0 0 1 0 f"}
	d.run(t, line{"operator", columns + "()", strings.Join(known, "; ")})
	for _, k := range known {
		d.run(t, line{"operator", columns + "(" + k[:1] + ")", k})
	}
	d.run(t,
		line{"operator", "select count(*) from core.generation_status(6)", "0"}, // settled events make no generation known
		// the locks of workers that it tried are released
		line{"operator", "select count(*) from pg_locks where pid = pg_backend_pid() and locktype = 'advisory'", "0"},
		line{"operator", `select s.next_scheduled = min(o.available_at), s.last_scheduled = max(o.available_at), s.oldest_due
			from core.generation_status(5) s, core.outbox o where o.generation = 5 group by s.next_scheduled,
				s.last_scheduled, s.oldest_due`, "t t -"},
		line{"operator", "select s.oldest_due = o.available_at, s.next_scheduled, s.draining_at, s.closed_at, s.retired_at " +
			"from core.generation_status(1) s, core.outbox o where o.id = '{1}'", "t - - - -"},
	)
	for generation, want := range map[int]string{1: cardType + " 2 0 1 1", 3: "", 5: cardType + " 0 3 0 0", 7: cardType +
		" 0 0 1 0", 8: ""} {
		// another session than the worker's: one is not blocked by its own locks
		d.run(t, line{"worker 3",
			fmt.Sprintf("select string_agg(concat_ws(' ', event_type, due, scheduled, in_flight, workers), '') || '' from "+
				"core.generation_backlog(%d)", generation), cmp.Or(want, "-")})
	}
	d.run(t, line{"", "delete from core.outbox; delete from core.deployments; select count(*) from " +
		"core.generation_status()", "0"})
}

const retire = "select core.generation_retire(3, 'ann')"

// retires calls until the answer begins so: transactions of the server's own are waited for as well.
func (d *database) retires(t *testing.T, want string) string {
	t.Helper()
	return d.retiring(t, want, func(answer string) bool { return strings.HasPrefix(answer, want) }, "waiting", "closing")
}

// retiring calls until the answer is as wanted. Until then it must begin like one of before.
func (d *database) retiring(t *testing.T, want string, is func(string) bool, before ...string) (answer string) {
	t.Helper()
	ended := pgtest.Eventually(testTimeout, func() bool {
		answer, _ = d.ask(t, "operator", retire)
		return is(answer) || !slices.ContainsFunc(before, func(b string) bool { return strings.HasPrefix(answer, b) })
	})
	if !ended || !is(answer) {
		t.Fatalf("retiring answers %q, want %q", answer, want)
	}
	return answer
}

// waitsFor calls until a session is what is waited for.
func (d *database) waitsFor(t *testing.T, as string) {
	t.Helper()
	pid := fmt.Sprintf("pid %d of ", d.session(t, as).PgConn().PID())
	d.retiring(t, pid, func(answer string) bool { return strings.Contains(answer, pid) }, "waiting: for ")
}

// draining is setup with a generation 3 that drains. Its tests are not parallel: retiring waits for all transactions of
// the server, those of other tests included.
func draining(t *testing.T) *database {
	t.Helper()
	d := setup(t)
	exec(t, d.admin, "select core.generation_announce(3), core.generation_drain(3, 'ann')")
	exec(t, d.admin, `delete from core.operator_actions;
		update core.event_types set consumed_in = '{"1": true, "3": true}'`)
	return d
}

func TestRetire(t *testing.T) {
	d := draining(t)
	d.run(t, line{"operator", "select core.generation_retire(1)", "SP040 generation"},
		line{"operator", "select core.generation_retire(99)", "SP019 generation"},
		line{"operator", "select core.generation_retire(null)", "SP019 generation"})
	for _, level := range []string{"repeatable read", "serializable"} {
		d.run(t, line{"operator", "begin isolation level " + level, ""}, line{"operator", retire, "SP043"},
			line{"operator", "rollback", ""})
	}
	// what is left is named, and changes nothing
	for set, left := range map[string]string{
		"status = 'pending'": "1 due, 0 scheduled, 0 in flight",
		"status = 'pending', available_at = '2150-01-01T00:00:00Z'": "0 due, 1 scheduled until 2150-01-01T00:00:00Z, 0 " +
			"in flight",
		inFlight: "0 due, 0 scheduled, 1 in flight",
	} {
		d.rows(t, 1, "generation = 3, "+set)
		d.run(t, line{"operator", retire, "not empty: " + left}, statusOf(3, "draining"))
	}
	d.run(t, line{"worlds", publishInto(3), ""}, line{"", "select count(*) from core.operator_actions", "0"})
	d.rows(t, 2, "generation = 3, status = 'failed'") // its workers are not needed for those
	d.alter(t, 2, "status = 'delivered'")
	d.run(t,
		// no other transaction sees it closed before the commit
		line{"operator", "begin", ""}, line{"operator", retire, "closing*"}, line{"operator", retire, "closing*"},
		line{"operator", "commit", ""},
		statusOf(3, "closing"), line{"worlds", publishInto(3), "SP019 generation"},
		line{"", "select core.generation_open(3)", "SP019 generation"},
		line{"operator", "select core.outbox_adopt(1, 3)", "SP019 generation"},
		// live again, it begins again
		line{"operator", "select core.generation_register(3, 'ann')", "live"}, line{"worlds", publishInto(3), ""},
		line{"", "update core.outbox set status = 'delivered' where status = 'pending'", ""},
		line{"operator", "select core.generation_drain(3, 'ann')", "draining"}, statusOf(3, "draining"),
		// a retired generation has no pauses: nothing could resume them
		line{"operator", "select core.event_type_pause('{card}', 3), core.event_type_pause('" + classType +
			"', 3), core.event_type_pause('{card}', 1)", ""},
		// nor breakers
		line{"", "select core.breaker_open(g, 'platform.a', '{card}', 'E: no', 'w') from unnest('{1,3}'::bigint[]) g", ""},
		line{"operator", retire, "closing*"})
	d.retires(t, "retired")
	d.retires(t, "retired")
	d.run(t, statusOf(3, "retired"),
		line{"", "select distinct consumed_in from core.event_types", `{"1": true}`},
		line{"", "select retired_at is not null from core.deployments where generation = 3", "t"},
		line{"worlds", publishInto(3), "SP019 generation"},
		line{"operator", "select core.generation_register(3, 'ann')", "SP019 generation"},
		line{"", "select generation, event_type from core.paused_types", "1 " + cardType},
		line{"", "select generation from core.breakers", "1"},
		line{"", strings.Replace(acted, "order", "where action like 'generation%' order", 1),
			`generation_close ann 3 {}; generation_register ann 3 {"was": "draining"}; ` +
				`generation_drain ann 3 {}; generation_close ann 3 {}; generation_retire ann 3 ` +
				fmt.Sprintf(`{"paused_types": [%q, %q]}`, classType, cardType)})
}

// Publishing reads as much of core.deployments with 10,000 retired generations as with none.
func TestPublishingReadsNoRetiredGeneration(t *testing.T) {
	d := setup(t)
	exec(t, d.admin, `insert into core.deployments (generation, status, retired_at)
		select g, 'retired', now() from generate_series(1001, 11000) g`)
	tx := begin(t, d.admin)
	defer finish(t, tx)
	exec(t, tx, filled(publishInto("null")))
	const read = `select sum(pg_stat_get_xact_tuples_returned(c))::int from (select 'core.deployments'::regclass::oid
		union all select indexrelid from pg_index where indrelid = 'core.deployments'::regclass) as t (c)`
	if n := value[int](t, tx, read); n > 10 {
		t.Errorf("one event reads %d entries", n)
	}
}

// A mark of another cluster, which a restored dump has, is not waited for.
func TestRetireOnARestoredDump(t *testing.T) {
	d := draining(t)
	d.retires(t, "closing")
	exec(t, d.admin, "update core.deployments set closed_bound = '1000000000000', closed_xid = '999999999999' where "+
		"generation = 3")
	d.retires(t, "retired")
}

// Retiring strands no event that is being published, however far its transaction is.
func TestRetireRacesPublishers(t *testing.T) {
	for _, c := range []struct {
		name string
		// before and after the generation is closed; the transaction then commits
		before, after []string
		// what the publisher is refused with after the closing
		refused string
		closing string // what closing is answered with
	}{
		{name: "published, not committed", before: []string{"begin", publishInto(3)}},
		{name: "prepared before", before: []string{"prepare p as " + publishInto(3), "begin"}, after: []string{"execute p"},
			refused: "SP019 generation"},
		{name: "an id but nothing published", before: []string{"begin", "select pg_current_xact_id()"},
			after: []string{publishInto(3)}, refused: "SP019 generation"},
		{name: "a snapshot of before, repeatable read",
			before: []string{"begin isolation level repeatable read", "select 1 from core.event_types"},
			after:  []string{publishInto(3)}, refused: "40001"},
		{name: "many, repeatable read, numbered from 0",
			before: []string{"begin isolation level repeatable read", "select 1 from core.event_types"},
			after: []string{"select core.outbox_publish_rows(null, null, '{{card}}', '{worlds}', array['{}'::jsonb], '{ 1 }', " +
				"null, null, null, null, null, '[0:0]={ 3 }', null, null)"}, refused: "40001"},
		{name: "published, repeatable read", before: []string{"begin isolation level repeatable read", publishInto(3)},
			closing: "waiting: for a transaction that replays*"},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := draining(t)
			d.same(t, "worlds", "", c.before...)
			d.run(t, line{"operator", retire, cmp.Or(c.closing, "closing*")})
			d.same(t, "worlds", c.refused, c.after...)
			if c.refused != "" {
				d.run(t, line{"worlds", "rollback", ""})
				d.retires(t, "retired")
				return
			}
			if c.closing == "" {
				d.waitsFor(t, "worlds")
			}
			d.run(t, line{"worlds", "commit", ""})
			if answer := d.retires(t, "not empty: 1 due"); c.closing == "" &&
				!strings.HasSuffix(answer, "it takes events again") {
				t.Errorf("retiring answers %q", answer)
			}
			// its workers may publish more while they finish
			d.run(t, statusOf(3, "draining"), line{"worlds", publishInto(3), ""},
				line{"", "update core.outbox set status = 'delivered'", ""})
			d.retires(t, "retired")
		})
	}
}

// A publisher that has checked the generation, and not inserted its row yet, is waited for.
func TestRetireBetweenCheckAndInsert(t *testing.T) {
	d := draining(t)
	exec(t, d.admin, `create function public.wait() returns trigger language plpgsql as
		$$ begin perform pg_advisory_xact_lock_shared(7); return new; end $$`)
	exec(t, d.admin, `create trigger wait before insert on core.outbox for each row execute function public.wait()`)
	d.run(t, line{"superuser", "select pg_advisory_lock(7)", ""})
	published := d.later(t, "worlds", publishInto(3))
	d.run(t, line{"operator", retire, "closing*"})
	d.waitsFor(t, "worlds")
	d.run(t, line{"superuser", "select pg_advisory_unlock(7)", "t"})
	if answer := published(); strings.HasPrefix(answer, "SP") {
		t.Errorf("publishing answers %s", answer)
	}
	d.retires(t, "not empty: 1 due")
}

// waitsBefore has a function wait for advisory lock 7 before the line that begins so.
func (d *database) waitsBefore(t *testing.T, function, place string) {
	t.Helper()
	source := value[string](t, d.admin, "select pg_get_functiondef('"+function+"'::regproc)")
	patched := strings.Replace(source, place, "  perform pg_advisory_xact_lock_shared(7);\n"+place, 1)
	if patched == source {
		t.Fatalf("%s has no such place", function)
	}
	exec(t, d.admin, patched)
}

// A call that has read which generation is live, and finds another one when it inserts, is to be repeated.
func TestAnotherLiveGenerationIsAConflict(t *testing.T) {
	t.Parallel()
	d := setup(t)
	d.waitsBefore(t, "core.outbox_publish_rows", "  with inserted as (")
	d.run(t, line{"superuser", "select pg_advisory_lock(7)", ""})
	published := d.later(t, "worlds", "select core.outbox_publish_many('"+elements(2, null)+"')")
	exec(t, d.admin, "select core.generation_announce(3)")
	exec(t, d.admin, "update core.deployments set status = 'retired', retired_at = now() where generation = 1")
	d.run(t, line{"superuser", "select pg_advisory_unlock(7)", "t"})
	if answer := published(); answer != "40001" {
		t.Errorf("publishing answers %s", answer)
	}
}

// A publisher whose id is above that of the closing transaction, and above every id that has ended by then.
func TestRetireAPublisherWithAHigherID(t *testing.T) {
	d := draining(t)
	d.run(t, line{"worlds", "begin", ""}, line{"operator 2", "begin", ""}, line{"operator 2", retire, "closing*"},
		line{"worlds", publishInto(3), ""}, line{"operator 2", "commit", ""})
	d.waitsFor(t, "worlds")
	d.run(t, line{"worlds", "commit", ""})
	d.retires(t, "not empty: 1 due")
}

// An operator's transaction that has had its id for longer than a publisher cannot make the mark: the publisher's is
// above it.
func TestRetireWithAnOlderID(t *testing.T) {
	d := draining(t)
	const begin = "begin; select pg_current_xact_id()"
	d.run(t, line{"operator 2", begin, ""}, line{"worlds", "begin; " + publishInto(3), ""},
		line{"operator", retire, "closing*"},
		line{"operator 2", retire, "waiting: commit, and call again"}, line{"operator 2", "commit", ""})
	d.waitsFor(t, "worlds")
	// a mark that is made already serves every caller
	d.run(t, line{"operator", begin, ""}, line{"operator", retire, "waiting: for *"}, line{"operator", "commit", ""},
		line{"worlds", "commit", ""})
	d.retires(t, "not empty: 1 due")
	d.run(t, statusOf(3, "draining"))
}

// An event that appears opens a generation again at once, whatever else is waited for: its handlers may want to
// publish.
func TestRetireBesideAnUnrelatedTransaction(t *testing.T) {
	d := draining(t)
	d.run(t, line{"superuser", "begin; select pg_current_xact_id()", ""}, line{"worlds", "begin; " + publishInto(3), ""},
		line{"operator", retire, "closing*"})
	d.waitsFor(t, "worlds")
	d.waitsFor(t, "superuser")
	d.run(t, line{"worlds", "commit", ""}, line{"operator", retire, "not empty: 1 due*"},
		line{"worlds", publishInto(3), ""},
		line{"", "update core.outbox set status = 'delivered'", ""}, line{"operator", retire, "closing*"})
	d.waitsFor(t, "superuser")
	d.run(t, line{"superuser", "commit", ""})
	d.retires(t, "retired")
}

// A transaction that moves events into a generation keeps it open until it ends.
func TestRetireWaitsForAdopting(t *testing.T) {
	d := draining(t)
	d.rows(t, 1, "")
	d.run(t, line{"operator 2", "begin; select core.outbox_adopt(1, 3)", "1"},
		line{"operator", retire, "waiting: for a transaction that replays or adopts*"}, line{"operator 2", "commit", ""})
	d.retires(t, "not empty: 1 due")
}

// Dry runs work where nothing may be written, take no transaction id, for which retiring would wait, and refuse what
// the real call refuses.
func TestDryRunsWriteNothing(t *testing.T) {
	t.Parallel()
	d := setup(t)
	d.rows(t, 2, "")
	d.alter(t, 2, "status = 'failed'")
	for _, call := range []string{"core.outbox_adoptable(2, 1)", "core.outbox_replay_preview('{2}', 1)",
		"core.outbox_replay_preview_many('{{2}}', 1)", "core.generation_status()", "core.generation_backlog(1)"} {
		d.run(t, line{"operator", "begin read only; select * from " + call, ""},
			line{"operator", "commit; begin; select * from " + call, ""},
			line{"operator", "select pg_current_xact_id_if_assigned()", "-"}, line{"operator", "commit", ""})
	}
	d.run(t, line{"operator", "begin read only; select core.outbox_adoptable(1, 2)", "SP019 generation"},
		line{"operator", "rollback", ""})
}

func TestAdopt(t *testing.T) {
	t.Parallel()
	d := setup(t)
	d.rows(t, 12, "attempts = 2, crashes = 1, handler_failures = '{\"platform.a\": {\"failures\": 2}}', last_error = "+
		"'E: platform.a: e'")
	// 1, 2 and 5 are due; 3 is of a class; 4 and 11 are scheduled; 12 is locked; the others stay
	for n, set := range map[int]string{
		3: "channel = 'outbox_gen_1_slow', event_type = 'worlds.thing.slow'", 4: "available_at = now() + interval '1 hour'",
		6: inFlight, 7: "status = 'failed'",
		8: "status = 'delivered'", 9: "deleted_at = now()", 10: "generation = 12, channel = 'outbox_gen_12'",
		11: "channel = 'outbox_default', available_at = now() + interval '2 hours'",
	} {
		d.alter(t, n, set)
	}
	d.run(t, line{"", "select core.generation_announce(3), core.generation_announce(12)", ""},
		line{"superuser", "begin; select id from core.outbox where id = '{12}' for update", ""},
		line{"worker", `set role spectral_worker; select core.worker_register(gen_random_uuid(), 3, 'here',
			'{"{card}": ["a.b"]}')`, ""},
		// only the pause where it goes matters
		line{"operator", "select core.event_type_pause('{card}', 3), core.event_type_pause('" + classType + "', 1)", ""})
	before := map[int]map[string]any{}
	for n := 1; n <= 12; n++ {
		before[n] = d.row(t, n)
	}
	const dry = "select event_type, due, scheduled, in_flight, workers, paused from core.outbox_adoptable"
	d.run(t, line{"operator", dry + "(1, 3)", classType + " 1 0 0 0 f; " + cardType + " 4 2 1 1 t"},
		line{"operator", dry + "(1, 3, '{worlds.thing.slow,worlds.nothing}')", classType + " 1 0 0 0 f"},
		line{"", "delete from core.paused_types; delete from core.operator_actions", ""})
	at, b := value[time.Time](t, d.admin, "select clock_timestamp()"),
		d.listen(t, "outbox_gen_3", "outbox_gen_3_slow", "outbox_gen_1", "outbox_gen_12")
	d.run(t,
		line{"operator", "select core.outbox_adopt(1, 3, 1000, 'ann', '{worlds.thing.slow}')", "1"},
		line{"operator", "select core.outbox_adopt(1, 3, 2, 'ann')", "2"},
		line{"operator", "select core.outbox_adopt(1, 3, p_adopted_by => 'ann')", "3"},
		line{"operator", "select core.outbox_adopt(1, 3)", "0"},
		line{"", "select cardinality(event_ids), acted_by, details from core.operator_actions order by acted_at, id",
			`1 ann {"from": 1, "event_types": ["worlds.thing.slow"]}; 2 ann {"from": 1}; 3 ann {"from": 1}`})
	due := map[string]string{"generation": "= 3", "channel": "= 'outbox_gen_3'", "available_at": ">= b.at"}
	slow := map[string]string{"generation": "= 3", "channel": "= 'outbox_gen_3_slow'", "available_at": ">= b.at"}
	later := map[string]string{"generation": "= 3", "channel": "= 'outbox_gen_3'"}
	for n, want := range map[int]map[string]string{1: due, 2: due, 3: slow, 4: later, 5: due, 6: {}, 7: {}, 8: {}, 9: {},
		10: {}, 11: later, 12: {}} {
		d.wantChanges(t, n, before[n], at, want)
	}
	// one for each call and channel
	if counts := b.received(t, d); counts["outbox_gen_3"] != 2 || counts["outbox_gen_3_slow"] != 1 || len(counts) != 2 {
		t.Errorf("listeners were woken %v", counts)
	}
	d.run(t, line{"superuser", "rollback", ""}, line{"operator", "select core.outbox_adopt(1, 3)", "1"})
}

// Whatever order the rows lie in, those of a type become due in the order they were due before; with a time, later ones
// stay.
func TestAdoptKeepsTheOrder(t *testing.T) {
	t.Parallel()
	d := setup(t)
	d.rows(t, 20, "available_at = now() - (payload ->> 'n')::int * interval '1 min'")
	// without the index, which would give that order by itself
	exec(t, d.admin, `select core.generation_announce(3); drop index core.outbox_due;
		update core.outbox set event_type = 'worlds.thing.slow' where (payload ->> 'n')::int > 10;
		update core.outbox set created_at = now() + interval '1 second' where payload ->> 'n' in ('1', '11')`)
	before, moved := value[time.Time](t, d.admin, "select now()"), 0
	for _, call := range []string{"core.outbox_adopt(1, 3, 3, null, '{worlds.thing.slow}', $1)",
		"core.outbox_adopt(1, 3, 4, null, null, $1)"} {
		for n := -1; n != 0; moved += n {
			n = value[int](t, d.session(t, "operator"), "select "+call, before)
		}
	}
	if moved != 18 {
		t.Errorf("%d of 18 events were moved", moved)
	}
	d.run(t, line{"", "select event_type, array_agg(payload ->> 'n' order by available_at) from core.outbox where " +
		"generation = 3 group by 1 order by 1",
		"worlds.thing.slow {20,19,18,17,16,15,14,13,12}; {card} {10,9,8,7,6,5,4,3,2}"},
		line{"operator", "select core.outbox_adopt(1, 3)", "2"})
}

func TestAdoptRefusals(t *testing.T) {
	t.Parallel()
	d := setup(t)
	d.rows(t, 1, "generation = 5")
	exec(t, d.admin, "select core.generation_announce(3)")
	for _, call := range []string{"select core.outbox_adopt(%s)", "select core.outbox_adoptable(%s)"} {
		for arguments, want := range map[string]string{
			"1, 1": "SP042 to", "1, 2": "SP019 generation", "1, 99": "SP019 generation", "1, null": "SP019 generation",
			"99, 1": "SP019 from", "null, 1": "SP019 from",
		} {
			d.run(t, line{"operator", fmt.Sprintf(call, arguments), want})
		}
	}
	d.same(t, "operator", "SP030 limit", "select core.outbox_adopt(1, 3, 0)", "select core.outbox_adopt(1, 3, 10001)",
		"select core.outbox_adopt(1, 3, null)")
	d.run(t, line{"operator", "select core.outbox_adopt(5, 3, p_adopted_by => '')", "SP030 acted_by"},
		// from a retired generation, and from one that is not known
		line{"operator", "select core.outbox_adopt(2, 3)", "0"}, line{"operator", "select core.outbox_adopt(5, 3)", "1"})
}

// Of a type that is handled in another context only, an event for one context has no handler: the dry run says so as
// the preview of a replay does.
func TestAdoptableByTarget(t *testing.T) {
	t.Parallel()
	d := setup(t)
	d.rows(t, 6, "target = case when o.payload ->> 'n' < '3' then null when o.payload ->> 'n' < '5' then 'platform' "+
		"else 'worlds' end")
	d.alter(t, 6, inFlight)
	const runs = "select count(*) from core.outbox_replay_preview('{%d}', 3) where would_run"
	d.run(t, line{"", "select core.generation_announce(3)", ""},
		line{"worker", `set role spectral_worker; select core.worker_register(gen_random_uuid(), 3, 'here',
			'{"{card}": ["platform.a", "platform.b"]}')`, ""},
		line{"operator", "select coalesce(target, 'any'), due, scheduled, in_flight, workers from core.outbox_adoptable(1, " +
			"3)", "any 2 0 0 1; platform 2 0 0 1; worlds 1 0 1 0"},
		line{"", "update core.outbox set status = 'failed', claim_token = null, claimed_at = now()", ""},
		line{"operator", fmt.Sprintf(runs, 1), "2"}, line{"operator", fmt.Sprintf(runs, 3), "2"},
		line{"operator", fmt.Sprintf(runs, 5), "0"})
}

// What workers of a generation are still for.
func TestStandingOfAGeneration(t *testing.T) {
	t.Parallel()
	d := setup(t)
	d.rows(t, 2, "status = case o.payload ->> 'n' when '1' then 'pending' else 'failed' end")
	for _, step := range []struct{ sql, want string }{
		{"select 1", "live"},
		{"update core.deployments set status = 'draining', draining_at = now() where generation = 1", "draining"},
		{"update core.outbox set available_at = now() + interval '1 day' where status = 'pending'", "draining"},
		{"update core.outbox set " + inFlight + " where status = 'pending'", "draining"},
		{"update core.deployments set closed_at = now() where generation = 1", "closing"},
		{"update core.outbox set status = 'delivered', claim_token = null where status = 'in_flight'", "drained"},
		{"update core.deployments set status = 'retired', retired_at = now() where generation = 1", "retired"},
		{"delete from core.deployments where generation = 1", "unknown"},
	} {
		d.run(t, line{"", step.sql, ""}, line{"worker", "select core.generation_state(1)", step.want})
	}
}

// What a dead worker held is not moved before it is reaped, which adopting does, if no worker has.
func TestAdoptReapsWhatADeadWorkerHeld(t *testing.T) {
	t.Parallel()
	d := setup(t)
	d.rows(t, 4, "")
	exec(t, d.admin, "select core.generation_announce(3)")
	for as, n := range map[string]int{"worker": 2, "worker 2": 3} { // the second lives on, and has let go of 3
		d.run(t, line{as, fmt.Sprintf(`set role spectral_worker; create temp table w as select gen_random_uuid() as id;
			select core.worker_register(id, 1, '%s', '{}') from w;
			select core.claim_journal_write(id, '{card}', 0, '{{%d}}') from w`, as, n), ""})
	}
	d.leave(t, "worker")
	d.run(t, line{"operator", "select core.outbox_adopt(1, 3)", "3"},
		line{"", "select generation, crashes from core.outbox where id = '{2}'", "1 0"},
		line{"", "update core.workers set gone_at = gone_at - interval '3 seconds' where name = 'worker'", ""},
		line{"operator", "select core.outbox_adopt(1, 3)", "1"},
		line{"", "select payload ->> 'n', generation, crashes from core.outbox order by 1", "1 3 0; 2 3 1; 3 3 0; 4 3 0"})
}
