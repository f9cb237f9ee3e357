package sql_test

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"spectral/tests/pgtest"
)

// expired makes rows of rows such whose leases ran out.
const expired = `status = 'in_flight', attempts = 1, claim_token = gen_random_uuid(),
	claimed_at = clock_timestamp() - interval '1 hour',
	claimed_by = '` + worker1 + `', lease_handler = 'worlds.a'`

// setupReap is setup on a server that was started before all times, which leases that ran out long ago take.
func setupReap(t *testing.T) *database {
	t.Helper()
	d := setup(t)
	d.restarted(t, false)
	return d
}

// restarted says what the functions take the server for.
func (d *database) restarted(t *testing.T, yes bool) {
	t.Helper()
	exec(t, d.admin, fmt.Sprint("create or replace function core.server_restarted(p_since timestamptz) returns boolean "+
		"language sql stable return ", yes))
}

// died leaves a worker that has been without a session for an hour and holds rows.
func (d *database) died(t *testing.T, worker string, rows ...int) {
	t.Helper()
	ids := make([]uuid.UUID, len(rows))
	for i, n := range rows {
		ids[i] = key(n)
	}
	exec(t, d.admin, `insert into core.workers (worker_id, session_id, generation, name, handlers, gone_at)
		values ($1, $1, 1, 'killed', '{}', clock_timestamp() - interval '1 hour') on conflict do nothing`, worker)
	exec(t, d.admin, "insert into core.claim_journal (worker_id, event_type, runner, ids) values ($1, $2, (select "+
		"count(*) from core.claim_journal), $3)",
		worker, cardType, ids)
}

type reaped struct {
	EventID           uuid.UUID
	EventType         string
	Generation        int64
	Attempts, Crashes int
	Failed, Reaped    bool
	Reason            string
	Source            string
	Target            *string
}

func reap(t testing.TB, q querier, limit int, after *reaped) []reaped {
	t.Helper()
	arguments := []any{limit, nil}
	if after != nil {
		arguments[1] = after.EventID
	}
	rows, err := q.Query(deadline(t), "select * from core.outbox_reap($1, $2)", arguments...)
	must(t, err)
	page, err := pgx.CollectRows(rows, pgx.RowToStructByPos[reaped])
	must(t, err)
	return page
}

// reapAll reaps page by page until one is not full, and returns how many there were.
func reapAll(t testing.TB, q querier, limit int) (all []reaped, pages int) {
	t.Helper()
	var after *reaped
	for {
		page := reap(t, q, limit, after)
		all = append(all, page...)
		pages++
		if len(page) < limit {
			return all, pages
		}
		after = &page[limit-1]
	}
}

// places says which rows lines are about, in order.
func places(lines []reaped) (all []int) {
	for _, l := range lines {
		all = append(all, numberOf(l.EventID))
	}
	return all
}

func TestReap(t *testing.T) {
	t.Parallel()
	d := setupReap(t)
	worker := d.login(t, "spectral_worker")
	d.rows(t, 9, expired)
	exec(t, d.admin, `update core.outbox o set claimed_at = '2020-01-02 03:04:05.678+00', attempts = 3,
		failure_history = '[{"replayed_by": "me"}]',
		last_error = 'earlier', available_at = '2020-01-01 00:00:00+00'`)
	d.alter(t, 2, "generation = 2, claimed_by = $1, lease_handler = null, lease_seconds = 0.25, event_type = "+
		"'platform.a', crashes = 4", worker2+" name")
	d.alter(t, 3, "claimed_at = clock_timestamp(), lease_seconds = 60") // held
	d.alter(t, 4, "deleted_at = now()")
	d.alter(t, 5, "status = 'delivered', claim_token = null")
	d.alter(t, 6, "status = 'failed', claim_token = null")
	d.alter(t, 7, "status = 'pending', claim_token = null, claimed_by = null, claimed_at = null")
	// given back
	d.alter(t, 8, "status = 'pending', claim_token = null, available_at = clock_timestamp() + interval '1 hour'")
	d.alter(t, 9, "first_failed_at = '2020-01-01 00:00:00+00'")
	const worker3 = "33333333-3333-4333-8333-333333333333"
	d.died(t, worker3, 3, 4, 5, 6, 7, 8)
	before := map[int]map[string]any{}
	for n := range 9 {
		before[n+1] = d.row(t, n+1)
	}
	at := value[time.Time](t, d.admin, "select clock_timestamp()")
	all := reap(t, worker, 50, nil)
	const (
		ranOut = "LeaseExpired: %s: the lease of %s s ran out: worker %s did not renew it after 2020-01-02T03:04:05.678Z: " +
			"killed, frozen or disconnected; %s"
		died = "WorkerDied: outbox: worker killed ended, froze or lost its connection while it ran this event: killed, " +
			"out of memory, exit; crash 1 of 5"
		others = "it ran others as well: each runs alone from now on"
	)
	shared := fmt.Sprintf(ranOut, "worlds.a", "300", worker1, others)
	want := []reaped{
		{key(1), cardType, 1, 3, 1, false, true, shared, "worlds", nil},
		{key(2), "platform.a", 2, 3, 5, true, true, fmt.Sprintf(ranOut, "outbox", "0.25", worker2+" name", "crash 5 of 5"),
			"worlds", nil},
		{key(7), cardType, 1, 4, 1, false, true, died, "worlds", nil},
		{key(9), cardType, 1, 3, 1, false, true, shared, "worlds", nil},
	}
	if !slices.Equal(all, want) {
		t.Fatalf("the lines are\n%+v, want\n%+v", all, want)
	}
	for _, l := range all {
		n, handler, holder := numberOf(l.EventID), `"worlds.a"`, worker1
		changes := map[string]string{
			"status": "= 'pending'", "claim_token": "is null", "claimed_by": "is null", "lease_handler": "is null",
			"crashes":      fmt.Sprintf("= %d", l.Crashes),
			"available_at": "between b.at and clock_timestamp()", "first_failed_at": "between b.at and clock_timestamp()",
			"last_error": "= '" + l.Reason + "'",
		}
		switch n {
		case 2: // charged: due later, if it were not failed
			handler, holder = "null", worker2+" name"
			changes["status"], changes["claimed_at"] = "= 'failed'", "between b.at and clock_timestamp()"
			changes["handler_failures"] = "#>> '{outbox,group}' = 'LeaseExpired'"
			changes["available_at"] = "> clock_timestamp()"
			delete(changes, "lease_handler") // it had none
		case 7:
			handler, holder = `"worlds.a"`, worker3+" killed"
			changes["attempts"], changes["available_at"] = "= 4",
				"between b.at + interval '1 second' and clock_timestamp() + interval '1 second'"
			delete(changes, "status")
			delete(changes, "claim_token")
			delete(changes, "claimed_by")
		case 9:
			delete(changes, "first_failed_at") // it is when it failed first
		}
		changes["failure_history"] = fmt.Sprintf(`-> 0 = '{"replayed_by": "me"}' and jsonb_array_length(o.failure_history) = 2
			and (o.failure_history -> 1) - 'reaped_at'::text - 'claimed_at'::text =
				'{"reason": "%s", "attempts": 3, "handler": %s, "claimed_by": "%s"}'
			and (o.failure_history -> 1 ->> 'reaped_at')::timestamptz between b.at and clock_timestamp()`, l.Reason, handler,
			holder)
		d.wantChanges(t, n, before[n], at, changes)
	}
	for _, n := range []int{3, 4, 5, 6, 8} {
		d.wantChanges(t, n, before[n], at, nil)
	}
	if have := reap(t, worker, 50, nil); len(have) > 0 {
		t.Errorf("rows %v are reaped again", places(have))
	}
	if n := value[int](t, d.admin,
		"select (select count(*) from core.workers) + (select count(*) from core.claim_journal)"); n != 0 {
		t.Errorf("%d rows are left of a dead worker", n)
	}
}

// A crash is charged to the row with crashes that the worker ran, or otherwise to each row that it held.
func TestWhatADeathCountsFor(t *testing.T) {
	t.Parallel()
	d := setupReap(t)
	for name, c := range map[string]struct {
		// Rows are the worker's number, how it holds the row, and the row's crashes. It holds it by its journal, an expired
		// lease, a lease that lasts (held), or the journal while the row is locked. Want is the crashes that result.
		rows, want string
		then       string // after a second reaping, with nothing locked and all leases run out; "": as before
	}{
		"the only one":                     {rows: "1journal0", want: "1"},
		"the only lease":                   {rows: "1expired0", want: "1"},
		"all without crashes":              {rows: "1journal0 1journal0 1expired0", want: "1 1 1"},
		"the one with crashes":             {rows: "1journal0 1journal1 1expired0", want: "0 2 0"},
		"the lease with crashes":           {rows: "1journal0 1expired3 1expired0", want: "0 4 0"},
		"the latest with crashes":          {rows: "1journal1 1expired1", want: "2 1"},
		"another worker does not matter":   {rows: "1journal0 2journal3", want: "1 4"},
		"the one with crashes later":       {rows: "1expired0 1held1", want: "0 1", then: "0 2"},
		"the one with crashes before":      {rows: "1journal1 1held0", want: "2 0"},
		"a locked row is left":             {rows: "1locked0 1journal0", want: "0 1", then: "1 1"},
		"the fifth fails it":               {rows: "1journal4 1journal0", want: "5 0"},
		"the fifth fails a lease":          {rows: "1expired4", want: "5"},
		"the server was restarted":         {rows: "1journal4 2expired4", want: "4 4"},
		"the worker has its session again": {rows: "1journal4 1expired4", want: "4 4"},
	} {
		t.Run(name, func(t *testing.T) {
			exec(t, d.admin, "delete from core.workers; delete from core.claim_journal")
			rows, locked := strings.Fields(c.rows), []uuid.UUID{}
			d.rows(t, len(rows), "")
			for i, r := range rows {
				worker, how, n := strings.Repeat(r[:1], 8)+worker1[8:], r[1:len(r)-1], i+1
				d.alter(t, n, "crashes = "+r[len(r)-1:])
				switch how {
				case "locked":
					locked = append(locked, key(n))
					fallthrough
				case "journal":
					d.died(t, worker, n)
				case "held", "expired":
					d.died(t, worker)
					d.alter(t, n, expired)
					d.alter(t, n, "claimed_by = $1, claimed_at = claimed_at + $2::integer * interval '1 hour'", worker+" killed",
						strings.Count(how, "held"))
				}
			}
			if strings.HasSuffix(name, "restarted") {
				d.restarted(t, true)
				defer d.restarted(t, false)
			}
			if strings.HasSuffix(name, "again") { // in another session than the one it lost
				exec(t, pgtest.Conn(t, d.at), "select core.worker_register($1, 1, 'killed', '{}')", worker1)
			}
			lock := begin(t, pgtest.Conn(t, d.at))
			exec(t, lock, "select from core.outbox where id = any ($1) for update", locked)
			for _, want := range []string{c.want, cmp.Or(c.then, c.want)} {
				reap(t, d.admin, 50, nil)
				d.run(t, line{"", "select string_agg(crashes::text, ' ' order by id) from core.outbox", want})
				_ = lock.Rollback(deadline(t))
				exec(t, d.admin, "update core.outbox set claimed_at = claimed_at - interval '2 hours' where status = 'in_flight'")
			}
			d.run(t, line{"", "select count(*) from core.outbox where status <> case when crashes >= 5 then 'failed' " +
				"else 'pending' end", "0"})
		})
	}
}

// A claim takes no row that a dead worker held before it is reaped, and others at once.
func TestClaimsPassWhatADeadWorkerHeld(t *testing.T) {
	t.Parallel()
	d := setup(t)
	d.rows(t, 3, "")
	d.died(t, worker1, 2)
	const claim = "select string_agg(right(event_id::text, 1), ',') from core.outbox_claim(1, '{card}', 10, " +
		"'-infinity', gen_random_uuid(), "
	d.run(t, line{"", claim + "false)", "1,3"}, line{"worker", "select count(*) from core.outbox_reap()", "1"},
		line{"", "update core.outbox set available_at = now() - interval '1 minute'", ""}, line{"", claim + "false)", "1,3"},
		line{"", claim + "true)", "2"})
}

// What cannot be written, of an expired lease or of a dead worker's journal, keeps nothing beside or behind it waiting.
// It is failed or quarantined.
func TestReapPassesWhatItCannotWrite(t *testing.T) {
	t.Parallel()
	d := setupReap(t)
	exec(t, d.admin, `create function public.keep() returns trigger language plpgsql as $$ begin return null; end $$;
		create function public.refuse() returns trigger language plpgsql as $$ begin raise exception 'not row %',
			new.payload ->> 'n'; end $$`)
	const stuck, behind, limit = 12, 3, 5
	for name, c := range map[string]struct{ prepare, reason, left string }{
		"locked": {"", "", "11 in flight, 0 failed, 0 quarantined"},
		"refused by a constraint": {"alter table core.outbox add constraint stuck check (crashes = 0 or (payload ->> " +
			"'n')::integer > 12) not valid",
			`23514: new row for relation "outbox" violates check constraint "stuck"`,
			"0 in flight, 12 failed, 0 quarantined"},
		"refused by a trigger": {"create trigger stuck before update on core.outbox for each row when ((new.payload ->> " +
			"'n')::integer <= 12) execute function public.refuse()",
			"quarantined: P0001: not row #", "11 in flight, 0 failed, 12 quarantined"},
		"kept as it is by a trigger": {"create trigger stuck before update on core.outbox for each row when ((new.payload " +
			"->> 'n')::integer <= 12) execute function public.keep()",
			"quarantined: 09000: a trigger or rule keeps the row as it is", "11 in flight, 0 failed, 12 quarantined"},
	} {
		t.Run(name, func(t *testing.T) {
			exec(t, d.admin, "delete from core.workers; delete from core.claim_journal; delete from core.quarantined_events")
			d.rows(t, stuck+behind, expired)
			d.alter(t, 1, "status = 'pending', claim_token = null, attempts = 0")
			d.alter(t, stuck+1, "status = 'pending', claim_token = null, attempts = 0")
			d.died(t, worker2, 1)
			d.died(t, worker2, stuck+1)
			lines := stuck + behind
			if c.prepare == "" {
				lines = behind
				exec(t, begin(t, d.session(t, "superuser")), "select from core.outbox where id <= $1 for update", key(stuck))
			} else {
				exec(t, d.admin, c.prepare)
				defer exec(t, d.admin,
					"alter table core.outbox drop constraint if exists stuck; drop trigger if exists stuck on core.outbox")
			}
			all, pages := reapAll(t, d.session(t, "worker"), limit)
			if want := lines/limit + 1; len(all) != lines || pages != want {
				t.Fatalf("%d lines in %d pages, want %d in %d", len(all), pages, lines, want)
			}
			for _, l := range all {
				n := numberOf(l.EventID)
				if reason := strings.ReplaceAll(c.reason, "#", fmt.Sprint(n)); l.Reaped != (n > stuck) || !l.Reaped &&
					l.Reason != reason {
					t.Errorf("row %d: %+v", n, l)
				}
			}
			d.run(t, line{"", "select format('%s reaped, %s in flight, %s failed, %s quarantined', count(*) filter (where " +
				"status = 'pending' and crashes = 1), count(*) filter (where status = 'in_flight' and crashes = 0 and " +
				"claim_token is not null), count(*) filter (where status = 'failed'), (select count(*) from " +
				"core.quarantined_events)) from core.outbox", fmt.Sprintf("%d reaped, %s", behind, c.left)},
				line{"worker", "select count(*) from core.outbox_reap()", "0"}, // nor is it looked at again
				line{"superuser", "rollback", ""},
				line{"", "update core.outbox set available_at = now() - interval '1 minute' where crashes = 1", ""})
			// the journaled row is not claimed before it is reaped, and the others are
			const claims = "select count(*) from core.outbox_claim(1, '{card}', 10, '-infinity', gen_random_uuid(), "
			d.run(t, line{"", claims + "false)", "0"}, line{"", claims + "true)", fmt.Sprint(behind)})
		})
	}
}

// paused reaps rows 1 to n in session "worker 2", which stops at row 1, with those behind the first few not looked at
// yet. Resume lets it go on and returns its answer.
func (d *database) paused(t *testing.T, n int) (resume func() string) {
	t.Helper()
	d.rows(t, n, expired)
	exec(t, d.admin, `create or replace function public.pause() returns trigger language plpgsql as $$ begin perform
		pg_advisory_xact_lock(77); return new; end $$;
		create or replace trigger pause before update on core.outbox for each row when (old.status = 'in_flight'
			and new.status = 'pending' and new.payload ->> 'n' = '1')
		execute function public.pause(); select pg_advisory_lock(77)`)
	answer := d.later(t, "worker 2", "select count(*) from core.outbox_reap(1000)")
	return func() string {
		exec(t, d.admin, "select pg_advisory_unlock_all()")
		return answer()
	}
}

// What its holder renews or settles after the reaper began to look is the holder's.
func TestReapLeavesWhatMovedOn(t *testing.T) {
	t.Parallel()
	d := setupReap(t)
	const deliver = "select count(*) from core.outbox, core.outbox_deliver_leased(array[id], array[occurred_at], " +
		"array[claim_token]) where payload ->> 'n' = "
	resume := d.paused(t, 100)
	// as if renewed in time
	exec(t, d.admin, "update core.outbox set claimed_at = clock_timestamp() where id in ($1, $2)", key(96), key(97))
	d.alter(t, 98, "status = 'pending', claim_token = null")
	d.alter(t, 99, "claim_token = gen_random_uuid(), attempts = 2") // leased again, and expired as well
	d.run(t, line{"", deliver + "'97'", "1"},
		line{"superuser", "begin; update core.outbox set claimed_at = clock_timestamp() where id = '" + key(100).String() +
			"'", ""}, line{"superuser", deliver + "'100'", "1"})
	if have := resume(); have != "96" {
		t.Errorf("%s rows are reaped, want 1 to 95 and 99", have)
	}
	d.run(t, line{"superuser", "commit", ""}, line{"worker", "select count(*) from core.outbox_reap()", "0"},
		line{"", "select string_agg(concat_ws(' ', payload ->> 'n', status, crashes), ', ' order by id) from core.outbox " +
			"where (payload ->> 'n')::int > 94",
			"95 pending 1, 96 in_flight 0, 97 delivered 0, 98 pending 0, 99 pending 1, 100 delivered 0"})
}

// One reaper leads at a time. One whose session ends in the middle has changed nothing.
func TestOneReaperLeads(t *testing.T) {
	t.Parallel()
	d := setupReap(t)
	const reap = "select count(*) from core.outbox_reap()"
	resume := d.paused(t, 20)
	d.run(t, line{"worker", reap, "0"},
		line{"", fmt.Sprintf("select pg_terminate_backend(%d, 60000)", d.session(t, "worker 2").PgConn().PID()), "t"})
	if have := resume(); have != "57P01" {
		t.Fatalf("a reaper whose session was ended answers %s", have)
	}
	d.run(t, line{"worker", reap, "20"})
	// the lock is the transaction's
	d.rows(t, 2, expired)
	d.run(t, line{"worker 3", "begin; select count(*) from core.outbox_reap(1)", "1"}, line{"worker", reap, "0"},
		line{"worker 3", "rollback", ""}, line{"worker", reap, "2"})
}

// A row whose settling is not certain yet is passed over; one whose settling is undone comes back.
func TestReapPassesWhatIsBeingSettled(t *testing.T) {
	t.Parallel()
	d := setupReap(t)
	const reap = "select coalesce(string_agg(right(event_id::text, 1), ','), 'none') from core.outbox_reap()"
	for end, want := range map[string]string{"commit": "none", "rollback": "1"} {
		d.rows(t, 2, expired)
		// it was in time
		d.run(t, line{"superuser", "begin; update core.outbox set claimed_at = clock_timestamp() where id = '{1}'", ""},
			line{"superuser", "select count(*) from core.outbox, core.outbox_deliver_leased(array[id], array[occurred_at], " +
				"array[claim_token]) where id = '{1}'", "1"},
			line{"worker", reap, "2"}, line{"superuser", end, ""}, line{"worker", reap, want})
	}
}

// Whatever a row holds, it is reaped when its lease has run out.
func TestReapTakesWhateverARowHolds(t *testing.T) {
	t.Parallel()
	d := setupReap(t)
	for _, c := range []struct{ name, set, want string }{
		{"no time", "claimed_at = null",
			"o.last_error like '% did not renew it after : killed%' and o.failure_history -> 0 -> 'claimed_at' = 'null'"},
		{"a time long ago", "claimed_at = '-infinity'", "o.last_error like '% did not renew it after : killed%'"},
		{"no worker", "claimed_by = null",
			"o.last_error like '%worker unknown did%' and o.failure_history -> 0 -> 'claimed_by' = 'null'"},
		{"nothing at all", "claimed_at = null, claimed_by = null, lease_handler = null",
			"o.last_error like 'LeaseExpired: outbox: %'"},
		{"a long name of a handler", "lease_handler = repeat('ä', 20000)", "octet_length(o.last_error) > 1000"},
		{"a handler that is a pattern", "lease_handler = '%s %1$I {a,b}'",
			`o.last_error like 'LeaseExpired: \%s \%1$I {a,b}: the lease%'`},
		{"as many attempts as there can be", "attempts = 1000000000", "o.attempts = 1000000000"},
		{"a long name of a worker", "claimed_by = (select string_agg(md5(i::text), '') from generate_series(1, 100) i)",
			"o.last_error like 'LeaseExpired: %'"},
		{"100 entries of history",
			`failure_history = (select jsonb_agg(jsonb_build_object('replayed_by', i)) from generate_series(1, 100) i)`,
			"jsonb_array_length(o.failure_history) = 100 and o.failure_history -> 0 = '{\"omitted\": 2}' and " +
				"o.failure_history -> 99 ? 'reaped_at'"},
		{"a huge history", `failure_history = (select jsonb_agg(jsonb_build_object('replayed_at', 'x', 'last_error',
			repeat('e', 8000))) from generate_series(1, 50) i)`,
			"octet_length(o.failure_history::text) <= 262144 and o.failure_history -> -1 ? 'reaped_at' and " +
				"o.failure_history -> 0 ? 'omitted'"},
	} {
		t.Run(c.name, func(t *testing.T) {
			d.rows(t, 2, expired)
			d.alter(t, 1, c.set)
			d.alter(t, 2, "claimed_by = $1", worker2)
			for _, l := range reap(t, d.admin, 50, nil) {
				if !l.Reaped {
					t.Errorf("row %d: %+v", numberOf(l.EventID), l)
				}
			}
			if !d.holds(t, 1, "o.status = 'pending' and o.crashes = 1 and "+c.want) {
				t.Errorf("not %s: %.2000s", c.want, fmt.Sprint(d.row(t, 1)))
			}
			if !d.holds(t, 2, "o.status = 'pending'") {
				t.Error("the row behind it is not reaped")
			}
		})
	}
}

func TestLeaseExpiresIn(t *testing.T) {
	t.Parallel()
	d := setupReap(t)
	const held = "status = 'in_flight', claim_token = gen_random_uuid(), claimed_at = clock_timestamp(), " +
		"lease_seconds = 100 * (o.payload ->> 'n')::integer"
	for _, c := range []struct {
		rows       int
		set, then  string // of all, and of the last
		from, upto string // seconds
	}{
		{0, "", "", "-", ""}, {2, "", "", "-", ""}, {1, held, "deleted_at = now()", "-", ""}, {1, held, "", "40", "100"},
		{3, held, "lease_seconds = 70.5", "10", "70.5"},
		{3, held, "lease_seconds = 70, generation = 2, event_type = 'worlds.other'", "10", "70"},
		{3, held, "lease_seconds = 0.001, deleted_at = now()", "40", "100"},
		{3, held, "status = 'delivered', claim_token = null, lease_seconds = 0.001", "40", "100"},
		{3, held, "claimed_at = claimed_at - interval '1 hour'", "0", "0"},
		{3, held, "claimed_at = null", "0", "0"}, {3, held, "claimed_at = '-infinity'", "0", "0"},
		{3, held, "claimed_at = '4713-01-01 00:00:00+00 BC'", "0", "0"},
		{3, held, "claimed_at = 'infinity'", "40", "100"}, {1, held, "claimed_at = 'infinity'", "86400", "86500"},
		{1, held, "claimed_at = '294276-12-31 23:59:59.999999+00'", "86400", "86500"},
	} {
		d.rows(t, c.rows, c.set)
		if c.then != "" {
			d.alter(t, c.rows, c.then)
		}
		if c.from == "-" {
			d.run(t, line{"worker", "select core.lease_expires_in()", "-"})
			continue
		}
		d.run(t, line{"worker", "select s between " + c.from + " and " + c.upto + ", '" +
			strings.ReplaceAll(c.then, "'", "") + "' from core.lease_expires_in() s", "t*"})
	}
	d.rows(t, 1, held)
	d.run(t, line{"", "insert into core.quarantined_events (id, occurred_at, event_type, generation, reason) select id, " +
		"occurred_at, event_type, generation, 'P0001: no' from core.outbox", ""},
		line{"worker", "select core.lease_expires_in()", "-"})
}

// An idle worker asks every five seconds and reaps nothing; with an answer of 0 it would reap without end.
func TestTheProbeSaysWhenADeadWorkerIsDue(t *testing.T) {
	t.Parallel()
	d := setupReap(t)
	probe := func() *float64 { return value[*float64](t, d.admin, "select core.workers_probe($1, 2)", worker2) }
	if due := probe(); due != nil {
		t.Errorf("without a dead worker something is due in %f s", *due)
	}
	d.died(t, worker2)
	if due := probe(); due != nil {
		t.Errorf("the worker that asks is taken for dead: due in %f s", *due)
	}
	d.died(t, worker1)
	if due := probe(); due == nil || *due != 0 {
		t.Errorf("a worker is dead for an hour, and is due in %v s", due)
	}
	exec(t, d.admin, "update core.workers set gone_at = clock_timestamp() + interval '1 hour'")
	if due := probe(); due == nil || *due < 1000 {
		t.Errorf("a worker that dies in an hour is due in %v s", due)
	}
}

// A server that was started since a lease was renewed explains that it ran out, and a journal from before is void.
func TestNothingIsChargedAfterARestart(t *testing.T) {
	t.Parallel()
	d := setup(t)
	d.rows(t, 3, expired)
	d.alter(t, 1, "claimed_at = pg_postmaster_start_time() - interval '1 s', lease_seconds = 0.001")
	d.alter(t, 2, "claimed_at = pg_postmaster_start_time() + interval '1 ms', lease_seconds = 0.001, claimed_by = $1",
		worker2)
	d.alter(t, 3, "status = 'pending', claim_token = null")
	d.died(t, worker1, 3)
	d.run(t, line{"", "update core.claim_journal set claimed_at = pg_postmaster_start_time() - interval '1 ms'", ""},
		line{"worker", "select event_id, crashes, reason like '%Z: disconnected; not counted: the server was started " +
			"since' from core.outbox_reap()", "{1} 0 t; {2} 1 f"},
		line{"", "select count(*) from core.outbox where status = 'pending' and crashes = 0", "2"})
}
