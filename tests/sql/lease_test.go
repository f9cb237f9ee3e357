package sql_test

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// key is the id of the n-th row that rows inserts.
func key(n int) uuid.UUID {
	return uuid.MustParse(fmt.Sprintf("00000000-0000-7000-8000-%012x", n))
}

func numberOf(id uuid.UUID) (n int) {
	for _, b := range id[10:] {
		n = n<<8 | int(b)
	}
	return n
}

// rows leaves core.outbox with n events, due one after the other; set is what an update makes of them.
func (d *database) rows(t testing.TB, n int, set string, arguments ...any) {
	t.Helper()
	exec(t, d.admin, "delete from core.outbox")
	exec(t, d.admin, `
		insert into core.outbox (id, event_type, event_version, source, content_class, channel, generation, payload,
			idempotency_key, available_at)
		select ('00000000-0000-7000-8000-' || lpad(to_hex(i), 12, '0'))::uuid, 'worlds.world_model_card.published', 1,
			'worlds', 'operational',
			'outbox_gen_1', 1, jsonb_build_object('n', i), 'k' || i, clock_timestamp() - interval '1 minute' + i * interval
				'1 millisecond'
		from generate_series(1, $1::integer) i`, n)
	if set != "" {
		exec(t, d.admin, "update core.outbox o set "+set, arguments...)
	}
}

func (d *database) alter(t testing.TB, n int, set string, arguments ...any) {
	t.Helper()
	exec(t, d.admin, fmt.Sprintf("update core.outbox o set %s where o.id = '%s'", set, key(n)), arguments...)
}

func (d *database) row(t testing.TB, n int) map[string]any {
	t.Helper()
	var row map[string]any
	if err := json.Unmarshal(value[[]byte](t, d.admin, "select to_jsonb(o) from core.outbox o where o.id = $1", key(n)),
		&row); err != nil {
		t.Fatal(err)
	}
	return row
}

// holds says whether a condition on the n-th of them, o, is true.
func (d *database) holds(t testing.TB, n int, condition string) bool {
	t.Helper()
	return value[bool](t, d.admin, "select coalesce(("+condition+"), false) from core.outbox o where o.id = $1", key(n))
}

// wantChanges compares the n-th of them with what it was before: exactly the given columns have
// changed, and are what is said of them, with b.at for a time before the change.
func (d *database) wantChanges(t testing.TB, n int, before map[string]any, at time.Time, want map[string]string) {
	t.Helper()
	changed := d.row(t, n)
	maps.DeleteFunc(changed, func(column string, v any) bool { return reflect.DeepEqual(before[column], v) })
	if have, want := slices.Sorted(maps.Keys(changed)), slices.Sorted(maps.Keys(want)); !slices.Equal(have, want) {
		t.Errorf("row %d: columns %v changed, want %v", n, have, want)
	}
	for column, condition := range want {
		if !value[bool](t, d.admin,
			"select coalesce(o."+column+" "+condition+", false) from core.outbox o, (select $2::timestamptz as at) b where "+
				"o.id = $1", key(n), at) {
			t.Errorf("row %d: %s is %v, want %s", n, column, changed[column], condition)
		}
	}
}

// versions is all of core.outbox, and where each row's version lies: the same if nothing was written.
func (d *database) versions(t testing.TB) []string {
	t.Helper()
	return values[string](t, d.admin,
		"select o.ctid || ' ' || to_jsonb(o) from core.outbox o order by o.id, o.occurred_at")
}

// lease is what the tests look at of a row of core.outbox_lease.
type lease struct {
	EventID           uuid.UUID
	OccurredAt        time.Time
	ClaimToken        uuid.UUID
	Attempts, Crashes int
	Handled           []string
}

// leaseRows leases rows of the card; more are further arguments by name.
func leaseRows(t testing.TB, q querier, more ...string) []lease {
	t.Helper()
	sql := "select event_id, occurred_at, claim_token, attempts, crashes, handled from core.outbox_lease(" +
		strings.Join(append([]string{"1, 'worlds.world_model_card.published'"}, more...), ", ") + ")"
	rows, err := q.Query(deadline(t), sql)
	if err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	all, err := pgx.CollectRows(rows, pgx.RowToStructByPos[lease])
	if err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return all
}

// numbers says which rows were leased, in order.
func numbers(leases []lease) (all []int) {
	for _, l := range leases {
		all = append(all, numberOf(l.EventID))
	}
	return all
}

// named is leases as the functions take them: $1 ids, $2 times, $3 tokens.
func named(leases []lease) []any {
	var (
		ids, tokens []uuid.UUID
		times       []time.Time
	)
	for _, l := range leases {
		ids, times, tokens = append(ids, l.EventID), append(times, l.OccurredAt), append(tokens, l.ClaimToken)
	}
	return []any{ids, times, tokens}
}

const (
	worker1 = "11111111-1111-4111-8111-111111111111"
	worker2 = "22222222-2222-4222-8222-222222222222"
)

func TestLease(t *testing.T) {
	t.Parallel()
	d := setup(t)
	d.rows(t, 3, `attempts = 4, crashes = 1, target = 'platform', workspace_id = gen_random_uuid(),
		trace_context = '00-1', handler_failures = '{"worlds.a": {"failures": 4}}'`)
	exec(t, d.admin, `insert into core.event_handled (handler_name, idempotency_key, event_id, event_type, content_class)
		values ('worlds.a', 'k1', gen_random_uuid(), 'a.b', 'operational'), ('worlds.b', 'k2', gen_random_uuid(), 'a.b',
			'operational'),
			('worlds.c', 'k3', gen_random_uuid(), 'a.b', 'operational')`)
	exec(t, d.admin, filled(`create temp table leased as
		select * from core.outbox_lease(1, '{card}', 2, 12.5, '`+worker1+`', '{worlds.a,worlds.b}')`))
	exec(t, d.admin, filled("insert into leased select * from core.outbox_lease(1, '{card}', 2, p_handlers => "+
		"'{worlds.b}')"))
	const columns = `event_type, %[1]s.event_version, %[1]s.occurred_at, %[1]s.source, %[1]s.target, %[1]s.content_class,
		%[1]s.workspace_id, %[1]s.payload, %[1]s.idempotency_key, %[1]s.trace_context, %[1]s.attempts,
		%[1]s.handler_failures, %[1]s.crashes, %[1]s.claim_token`
	d.run(t, line{"", fmt.Sprintf(`select claimed_by, lease_seconds, lease_handler, l.handled,
		(o.`+columns+`) is not distinct from (l.`+strings.ReplaceAll(columns, "[1]", "[2]")+`)
			and o.status = 'in_flight' and o.attempts = 5 and o.crashes = 1
			and o.claimed_at between o.available_at and clock_timestamp() and o.delivered_at is null
			and o.last_error is null and o.first_failed_at is null
		from core.outbox o join leased l on l.event_id = o.id order by o.id`, "o", "l"),
		worker1 + " 12.5 - {worlds.a} t; " + worker1 + " 12.5 - {worlds.b} t; - 300 worlds.b {} t"})
	// a token is of one row and one lease
	d.rows(t, 3, "")
	seen := map[uuid.UUID]bool{}
	for range 3 {
		leases := leaseRows(t, d.admin, "p_limit => 3", "p_handlers => null")
		for _, l := range leases {
			if seen[l.ClaimToken] || l.Attempts != 1 || len(l.Handled) != 0 {
				t.Errorf("%+v", l)
			}
			seen[l.ClaimToken] = true
		}
		exec(t, d.admin, "select core.outbox_release($1, $2, $3)", named(leases)...)
	}
	if len(seen) != 9 {
		t.Errorf("%d tokens, want 9", len(seen))
	}
}

func TestLeaseTakes(t *testing.T) {
	t.Parallel()
	d := setup(t)
	worker := d.login(t, "spectral_worker")
	const n = "(o.payload ->> 'n')::integer"
	for _, c := range []struct {
		name, set string
		arguments []string
		want      []int
	}{
		{"the oldest", "", nil, []int{1}},
		{"no more than asked", "", []string{"p_limit => 2"}, []int{1, 2}},
		{"no more than there are", "", []string{"p_limit => 10000"}, []int{1, 2, 3, 4}},
		{"in the order in which they are due", "available_at = o.available_at - " + n + " * interval '1 second'",
			[]string{"p_limit => 3"}, []int{4, 3, 2}},
		{"nothing above no floor", "", []string{"p_limit => 9", "p_watermark => null"}, nil},
		{"what is due", "available_at = clock_timestamp() + " + n + " * interval '1 hour' - interval '150 minutes'",
			[]string{"p_limit => 9"}, []int{1, 2}},
		{"its generation", "generation = 1 + " + n + " % 2", []string{"p_limit => 9"}, []int{2, 4}},
		{"its type", "event_type = 'worlds.other' || " + n + " % 2, event_version = 2", []string{"p_limit => 9"}, nil},
		{"what is not deleted", "deleted_at = case when " + n + " > 1 then now() end", []string{"p_limit => 9"}, []int{1}},
		{"what is not delivered", "status = case when " + n + " < 3 then 'delivered' else 'pending' end",
			[]string{"p_limit => 9"}, []int{3, 4}},
		{"what has not failed", "status = case when " + n + " < 3 then 'failed' else 'pending' end",
			[]string{"p_limit => 9"}, []int{3, 4}},
		{"what is not in flight", "status = case when " + n +
			" < 3 then 'in_flight' else 'pending' end, claim_token = case when " + n + " < 3 then gen_random_uuid() end",
			[]string{"p_limit => 9"}, []int{3, 4}},
		{"nothing below the floor", "available_at = make_timestamptz(2020, 1, " + n + ", 0, 0, 0, 'UTC')",
			[]string{"p_limit => 9", "p_watermark => '2020-01-03 00:00:00+00'"}, []int{3, 4}},
		{"what has no crashes", "crashes = " + n + " / 2", []string{"p_limit => 9", "p_crashed => false"}, []int{1}},
		{"what has crashes", "crashes = " + n + " / 2", []string{"p_limit => 9", "p_crashed => true"}, []int{2, 3, 4}},
		{"no more of those than asked", "crashes = " + n, []string{"p_limit => 2", "p_crashed => true"}, []int{1, 2}},
		{"those below the floor, too", "crashes = " + n,
			[]string{"p_limit => 9", "p_crashed => true", "p_watermark => 'infinity'"}, []int{1, 2, 3, 4}},
		{"those that are due", "crashes = 1, available_at = clock_timestamp() + " + n +
			" * interval '1 hour' - interval '150 minutes'", []string{"p_limit => 9", "p_crashed => true"}, []int{1, 2}},
		{"both", "crashes = " + n + " / 2", []string{"p_limit => 9", "p_crashed => null"}, []int{1, 2, 3, 4}},
	} {
		t.Run(c.name, func(t *testing.T) {
			d.rows(t, 4, c.set)
			if have := numbers(leaseRows(t, worker, c.arguments...)); !slices.Equal(have, c.want) {
				t.Errorf("rows %v are leased, want %v", have, c.want)
			}
			if have := value[int](t, d.admin, "select count(*) from core.outbox where attempts = 1"); have != len(c.want) {
				t.Errorf("%d rows are marked, want %d", have, len(c.want))
			}
		})
	}
	const lease = "select string_agg(right(event_id::text, 1) || ' ' || attempts, ', ') from " +
		"core.outbox_lease(1, '{card}', "
	d.rows(t, 4, "")
	d.run(t, line{"superuser", "begin; select from core.outbox where id in ('{1}', '{3}') for update", ""},
		line{"worker", "begin; " + lease + "9)", "2 1, 4 1"}, line{"worker", "rollback", ""},
		line{"superuser", "rollback", ""},
		line{"superuser", "begin; " + lease + "2)", "1 1, 2 1"}, line{"worker", lease + "9)", "3 1, 4 1"},
		line{"superuser", "rollback", ""}, line{"worker", lease + "9)", "1 1, 2 1"})
}

func TestLimitsAreRefused(t *testing.T) {
	t.Parallel()
	d := setup(t)
	d.rows(t, 1, "")
	before := d.versions(t)
	for _, argument := range []string{
		"p_limit => 0", "p_limit => 10001", "p_limit => null", "p_lease => 0", "p_lease => 86400.001", "p_lease => null",
		"p_lease => 'NaN'", "p_lease => 'Infinity'", "p_worker => repeat('w', 2001)",
		"p_handlers => array['worlds.a', repeat('h', 257)]",
	} {
		d.run(t, line{"worker", "select core.outbox_lease(1, '{card}', " + argument + ")", "22023"})
	}
	d.same(t, "worker", "22023", "select core.outbox_reap(0)", "select core.outbox_reap(1001)",
		"select core.outbox_reap(null)", "select core.outbox_claim(1, '{card}', 0, '-infinity', gen_random_uuid(), false)")
	if after := d.versions(t); !slices.Equal(after, before) {
		t.Error("a refused call leased something")
	}
	for _, argument := range []string{"p_limit => 10000", "p_lease => 86400", "p_lease => 0.000001",
		"p_worker => repeat('w', 2000)", "p_handlers => array['worlds.a', repeat('h', 256)]"} {
		d.rows(t, 1, "")
		d.run(t, line{"worker", "select count(*) from core.outbox_lease(1, '{card}', " + argument + ")", "1"})
	}
	d.run(t, line{"worker", "select count(*) from core.outbox_reap(1000)", "0"})
}

// What a call returns is in memory at once, whatever compression makes of it in the table.
func TestLeaseTakesNoMoreThan16MiBAndARow(t *testing.T) {
	t.Parallel()
	d := setup(t)
	d.rows(t, 5, "payload = jsonb_build_object('a', repeat('a', 5 * 1024 * 1024))")
	for _, want := range [][]int{{1, 2, 3, 4}, {5}} {
		if have := numbers(leaseRows(t, d.admin, "p_limit => 10")); !slices.Equal(have, want) {
			t.Errorf("rows %v are leased, want %v", have, want)
		}
	}
}

// The functions that a holder of a lease calls: of $1 an id, $2 a time and $3 a token. Held and lost is what they
// answer, # the token. Changes are columns, and what they are after a call at b.at.
var holders = []struct {
	name, sql  string
	held, lost string
	notifies   int
	changes    map[string]string
}{
	{"heartbeat", "select string_agg(token || ' ' || held, ', ') from core.outbox_heartbeat(array[$1::uuid], " +
		"array[$2::timestamptz], array[$3::uuid], '{worlds.b}')", "# true", "# false", 0,
		map[string]string{"claimed_at": "between b.at and clock_timestamp()", "lease_handler": "= 'worlds.b'"}},
	{"deliver", "select coalesce(string_agg(t::text, ', '), 'none') from core.outbox_deliver_leased(array[$1::uuid], " +
		"array[$2::timestamptz], array[$3::uuid]) t", "#", "none", 0,
		unleased("status", "= 'delivered'", "delivered_at", "between b.at and clock_timestamp()")},
	{"retry", `select core.outbox_retry_leased($1, $2, 30, 'E: worlds.a: no', '{"worlds.a": {"failures": 1}}', true,
		$3)::text`, "true", "false", 1,
		unleased("status", "= 'pending'", "available_at",
			"between b.at + interval '30 s' and clock_timestamp() + interval '30 s'", "first_failed_at",
			"between b.at and clock_timestamp()", "last_error", "= 'E: worlds.a: no'", "handler_failures",
			`= '{"worlds.a": {"failures": 1}}'`)},
	{"fail", `select core.outbox_fail_leased($1, $2, 'E: worlds.a: no', '{"worlds.a": {"failures": 1}}', true, $3)::text`,
		"true", "false", 0,
		unleased("status", "= 'failed'", "claimed_at", "between b.at and clock_timestamp()", "first_failed_at",
			"between b.at and clock_timestamp()", "last_error", "= 'E: worlds.a: no'", "handler_failures",
			`= '{"worlds.a": {"failures": 1}}'`)},
	{"release", "select coalesce(string_agg(t::text, ', '), 'none') from core.outbox_release(array[$1::uuid], " +
		"array[$2::timestamptz], array[$3::uuid]) t", "#", "none", 1,
		unleased("status", "= 'pending'", "attempts", "= 6", "available_at", "between b.at and clock_timestamp()")},
}

// unleased is what changes where a lease ends: pairs of a column and its new value, and the columns of the lease.
func unleased(pairs ...string) map[string]string {
	changes := map[string]string{"claim_token": "is null", "claimed_by": "is null", "lease_handler": "is null"}
	for i := 0; i < len(pairs); i += 2 {
		changes[pairs[i]] = pairs[i+1]
	}
	return changes
}

// leased makes rows of rows such that are leased now.
const leased = "status = 'in_flight', attempts = 1, claim_token = gen_random_uuid(), claimed_at = clock_timestamp(), " +
	"claimed_by = '" + worker1 + "'"

const runOut = "claimed_at = clock_timestamp() - make_interval(secs => o.lease_seconds)"

// A worker that has lost its lease changes nothing, and is told so.
func TestALostLeaseChangesNothing(t *testing.T) {
	t.Parallel()
	d := setup(t)
	d.restarted(t, true) // a lease that ran out is no crash then, and is due at once
	worker := d.login(t, "spectral_worker")
	b := d.listen(t, "outbox_gen_1")
	const (
		expire    = "update core.outbox o set " + runOut
		of        = "(array[o.id], array[o.occurred_at], array[o.claim_token]) from core.outbox o"
		duplicate = `insert into core.outbox (id, occurred_at, event_type, event_version, source, content_class,
			generation, payload, idempotency_key, status,
				claim_token, claimed_at)
			select o.id, o.occurred_at + interval '1 s', o.event_type, 1, o.source, o.content_class, 1, '{}', 'duplicate',
				'in_flight', gen_random_uuid(), o.claimed_at
			from core.outbox o`
	)
	for _, c := range []struct {
		name    string
		happens string       // to the row
		err     func(*lease) // or what its holder takes for its lease
		status  string       // that the row has then, if it is not in flight
	}{
		{name: "another token", err: func(l *lease) { l.ClaimToken = uuid.New() }},
		{name: "another id", err: func(l *lease) { l.EventID = key(2) }},
		{name: "another time", err: func(l *lease) { l.OccurredAt = l.OccurredAt.Add(time.Microsecond) }},
		{name: "another row of the same id", happens: duplicate, status: "in_flight in_flight",
			err: func(l *lease) { l.OccurredAt = l.OccurredAt.Add(time.Second) }},
		{name: "reaped and leased again",
			happens: expire + "; select core.outbox_reap(); select core.outbox_lease(1, '{card}')"},
		{name: "run out, and not reaped", happens: expire},
		{name: "begun at no known time", happens: "update core.outbox set claimed_at = null"},
		{name: "released", happens: "select core.outbox_release" + of, status: "pending"},
		{name: "delivered", happens: "select core.outbox_deliver_leased" + of, status: "delivered"},
		{name: "deleted", happens: "update core.outbox set deleted_at = now()"},
	} {
		for _, h := range holders {
			t.Run(c.name+"/"+h.name, func(t *testing.T) {
				d.rows(t, 1, "")
				l := leaseRows(t, worker, "p_worker => '"+worker1+"'", "p_handlers => '{worlds.a}'")[0]
				for sql := range strings.SplitSeq(c.happens, "; ") {
					d.run(t, line{"", sql, ""})
				}
				d.run(t, line{"", "select string_agg(status, ' ') from core.outbox", cmp.Or(c.status, "in_flight")})
				if c.err != nil {
					c.err(&l)
				}
				b.received(t, d)
				before := d.versions(t)
				if have, want := value[string](t, worker, h.sql, l.EventID, l.OccurredAt, l.ClaimToken),
					strings.ReplaceAll(h.lost, "#", l.ClaimToken.String()); have != want {
					t.Errorf("it says %q, want %q", have, want)
				}
				if after := d.versions(t); !slices.Equal(after, before) {
					t.Errorf("it changed\n%s to\n%s", before, after)
				}
				if have := b.received(t, d); len(have) > 0 {
					t.Errorf("it notifies %v", have)
				}
			})
		}
	}
}

// The holder of a lease changes what the function says, and nothing else.
func TestAHeldLeaseChangesItsRow(t *testing.T) {
	t.Parallel()
	d := setup(t)
	worker := d.login(t, "spectral_worker")
	b := d.listen(t, "outbox_gen_1_slow")
	for _, h := range holders {
		t.Run(h.name, func(t *testing.T) {
			d.rows(t, 2, `channel = 'outbox_gen_1_slow', attempts = 6, crashes = 2, failure_history = '[{"replayed_by": "me"}]'`)
			l := leaseRows(t, worker, "p_limit => 2", "p_worker => '"+worker1+"'", "p_handlers => '{worlds.a}'")[0]
			b.received(t, d)
			at := value[time.Time](t, d.admin, "select clock_timestamp()")
			before, other := d.row(t, 1), d.row(t, 2)
			if have, want := value[string](t, worker, h.sql, l.EventID, l.OccurredAt, l.ClaimToken),
				strings.ReplaceAll(h.held, "#", l.ClaimToken.String()); have != want {
				t.Errorf("it says %q, want %q", have, want)
			}
			d.wantChanges(t, 1, before, at, h.changes)
			if !reflect.DeepEqual(other, d.row(t, 2)) {
				t.Error("another row changed")
			}
			if have := b.received(t, d)["outbox_gen_1_slow"]; have != h.notifies {
				t.Errorf("it notifies %d times, want %d", have, h.notifies)
			}
		})
	}
}

// An attempt is counted by the lease, and taken back where nothing ran.
func TestAttemptsOfLeases(t *testing.T) {
	t.Parallel()
	d := setup(t)
	const release = "select count(*) = 1 from core.outbox_release(array[$1::uuid], array[$2::timestamptz], " +
		"array[$3::uuid])"
	type change struct {
		sql          string
		before, want int // while it is leased, and after
	}
	all := []change{{release, 3, 2}, {release, 1, 0}, {release, 0, 0}}
	for _, call := range []string{"retry_leased($1, $2, 0, ", "fail_leased($1, $2, "} {
		for _, c := range []change{{"true", 3, 3}, {"false", 3, 2}, {"false", 1, 0}, {"false", 0, 0}, {"null", 3, 2}} {
			all = append(all, change{"select core.outbox_" + call + "'E', '{}', " + c.sql + ", $3)", c.before, c.want})
		}
	}
	for _, c := range all {
		d.rows(t, 1, "first_failed_at = '2020-01-01 00:00:00+00', last_error = 'earlier'")
		l := leaseRows(t, d.admin)[0]
		d.alter(t, 1, "attempts = $1", c.before)
		if !value[bool](t, d.admin, c.sql, l.EventID, l.OccurredAt, l.ClaimToken) {
			t.Fatalf("%s: the lease is lost", c.sql)
		}
		if have := value[int](t, d.admin, "select attempts from core.outbox"); have != c.want {
			t.Errorf("%s: %d attempts become %d, want %d", c.sql, c.before, have, c.want)
		}
		if !d.holds(t, 1, "o.first_failed_at = '2020-01-01 00:00:00+00'") {
			t.Errorf("%s: when it failed first is forgotten", c.sql)
		}
		if c.sql == release && !d.holds(t, 1, "o.last_error = 'earlier'") {
			t.Error("a release forgets the last error")
		}
	}
}

func TestRetryOfALeaseRefuses(t *testing.T) {
	t.Parallel()
	d := setup(t)
	d.rows(t, 1, "")
	l := leaseRows(t, d.admin)[0]
	before := d.versions(t)
	retry := func(delay string, bytes int) error {
		_, err := d.admin.Exec(deadline(t), fmt.Sprintf("select core.outbox_retry_leased($1, $2, %s, repeat('a', %d), '{}', "+
			"true, $3)", delay, bytes), l.EventID, l.OccurredAt, l.ClaimToken)
		return err
	}
	for _, delay := range []string{"null", "-0.001", "86400.001", "'NaN'", "'Infinity'"} {
		if have := sqlstate(t, retry(delay, 1)); have != "22023" {
			t.Errorf("a delay of %s: SQLSTATE %q", delay, have)
		}
	}
	if after := d.versions(t); !slices.Equal(after, before) {
		t.Error("a refused call changed something")
	}
	cut := "o.status = 'pending' and octet_length(o.last_error) = 2048"
	if err := retry("86400", 8193); err != nil || !d.holds(t, 1, cut) {
		t.Errorf("a retry in a day, with a long error: %v", err)
	}
}

// Many leases at once: what holds for one holds for each.
func TestManyLeasesAtOnce(t *testing.T) {
	t.Parallel()
	d := setup(t)
	for _, function := range []string{"deliver_leased", "release"} {
		d.rows(t, 5, "")
		leases := leaseRows(t, d.admin, "p_limit => 5")
		d.alter(t, 2, runOut)
		d.alter(t, 4, "claim_token = gen_random_uuid()")
		leases = append(leases, leases[0]) // a name that comes twice
		slices.Reverse(leases)
		tokens := values[uuid.UUID](t, d.admin, "select core.outbox_"+function+"($1, $2, $3)", named(leases)...)
		var have []int
		for _, token := range tokens {
			have = append(have, numbers(leases[slices.IndexFunc(leases,
				func(l lease) bool { return l.ClaimToken == token }):])[0])
		}
		slices.Sort(have)
		if want := []int{1, 3, 5}; !slices.Equal(have, want) {
			t.Errorf("%s: tokens of rows %v, want %v", function, have, want)
		}
		status := values[string](t, d.admin, "select status from core.outbox order by id")
		if status[1] != "in_flight" || status[3] != "in_flight" || status[0] == "in_flight" || status[2] != status[0] ||
			status[4] != status[0] {
			t.Errorf("%s: rows are %v", function, status)
		}
		if have := values[uuid.UUID](t, d.admin, "select core.outbox_"+function+"('{}', '{}', '{}')"); len(have) > 0 {
			t.Errorf("%s of nothing: %v", function, have)
		}
	}
}

func TestHeartbeat(t *testing.T) {
	t.Parallel()
	d := setup(t)
	// each row has its id for a token; all are claimed 30 s ago, by leases of 60 s
	const lease = "status = 'in_flight', claim_token = id, occurred_at = '2026-01-01', lease_seconds = 60, " +
		"lease_handler = 'worlds.a', claimed_at = clock_timestamp() - interval '30 s'"
	beat := func(want string, handlers string, rows ...int) line {
		ids := make([]string, len(rows))
		for i, n := range rows {
			ids[i] = key(n).String()
		}
		named := "'{" + strings.Join(ids, ",") + "}'"
		return line{"worker",
			fmt.Sprintf("select string_agg(right(token::text, 1) || ' ' || held, ', ' order by token) from "+
				"core.outbox_heartbeat(%s, array_fill('2026-01-01'::timestamptz, array[%d]), %s, '%s')",
				named, len(rows), named, handlers), want}
	}
	d.rows(t, 7, lease)
	d.alter(t, 2, runOut)
	d.alter(t, 3, "claim_token = gen_random_uuid()")
	d.alter(t, 4, "status = 'pending', claim_token = null")
	before := d.versions(t)
	const renewed = "select string_agg(concat_ws(' ', right(id::text, 1), lease_handler), ', ' order by id) from " +
		"core.outbox where claimed_at > clock_timestamp() - interval '29 s'"
	d.run(t, line{"worker", "set lock_timeout = '10s'", ""}, // a wait is an error
		line{"superuser", "begin; select from core.outbox where right(id::text, 1) in ('2', '3', '5', '6') for update", ""},
		// held, lost in three ways, locked, lost and locked; the last has no name in the array
		beat("1 true, 2 false, 3 false, 4 false, 7 true", "{worlds.b,worlds.b,worlds.b,worlds.b,worlds.b,worlds.b}", 1, 2, 3,
			4, 5, 6, 7),
		line{"", renewed, "1 worlds.b, 7 worlds.a"}, line{"superuser", "rollback", ""})
	for n, row := range d.versions(t) {
		if row != before[n] && n != 0 && n != 6 {
			t.Errorf("row %d is now %s", n+1, row)
		}
	}
	d.run(t,
		// one that another session settles is locked until that is certain, and lost then
		line{"superuser", "begin; select count(*) from core.outbox_deliver_leased('{{5}}', '{2026-01-01}', '{{5}}')", "1"},
		beat("6 true", "{}", 5, 6), line{"superuser", "commit", ""},
		beat("5 false, 6 true", "{worlds.b,worlds.c}", 5, 6), line{"", renewed, "1 worlds.b, 6 worlds.c, 7 worlds.a"},
		// a row is renewed once, and has one answer, however often it is named
		beat("1 true, 7 true", "{}", 1, 7, 1),
		// what is renewed is locked until the transaction ends, and as it was if that is undone
		line{"worker", "begin", ""}, beat("1 true", "{worlds.c}", 1),
		line{"", "select count(*) from (select from core.outbox where id = '{1}' for update skip locked) f", "0"},
		line{"worker", "rollback", ""}, line{"", "select lease_handler from core.outbox where id = '{1}'", "worlds.b"})
}

// A row that comes back must not lie below a claim watermark that has risen in between: its transaction takes its id
// before it reads the clock for available_at, so that a mark made after that time is above the id, and does not count
// before the row is visible (docs/decisions/0007).
func TestWhatComesBackTakesItsIDBeforeTheTime(t *testing.T) {
	t.Parallel()
	d := setupOperator(t, 0, nil)
	exec(t, d.admin, `
		create schema early;
		grant usage on schema early to spectral_owner;
		create function early.clock_timestamp() returns timestamptz language plpgsql volatile as $$
		begin
			if pg_catalog.pg_current_xact_id_if_assigned() is null then
				raise exception 'the time is read before the id is taken' using errcode = 'EARLY';
			end if;
			return pg_catalog.clock_timestamp();
		end $$;
		do $$
		declare v_function regprocedure;
		begin
			for v_function in select p.oid from pg_proc p where p.pronamespace = 'core'::regnamespace
				and p.proname in ('outbox_retry_leased', 'outbox_release',
				'outbox_reap', 'outbox_fail_leased', 'outbox_replay_many', 'outbox_retry_now_many', 'outbox_adopt')
			loop
				execute format('alter function %s set search_path = early, pg_catalog, core, pg_temp', v_function);
			end loop;
		end $$`)
	const of = " from (select id, occurred_at, claim_token from core.outbox where id = '{1}') as l(i, o, t)"
	for _, c := range []struct{ set, sql, code string }{
		{leased, "select core.outbox_retry_leased(i, o, 0, 'E', '{}', true, t)" + of, ""},
		{leased, "select core.outbox_release(array[i], array[o], array[t])" + of, ""},
		{expired, "select core.outbox_reap()", ""},
		{failedRow, "select core.outbox_replay_many('{{1}}', 1)", ""},
		{"available_at = clock_timestamp() + interval '1 h'", "select core.outbox_retry_now_many('{{1}}')", ""},
		{"", "select core.outbox_adopt(1, 3)", ""},
		// one whose time no watermark depends on, to see that such a clock is noticed
		{leased, "select core.outbox_fail_leased(i, o, 'E', '{}', true, t)" + of, "EARLY"},
	} {
		d.rows(t, 1, c.set)
		if have, says := d.ask(t, "", c.sql); c.code == "" && says != "" || c.code != "" && have != c.code {
			t.Errorf("%s: %s %s", c.sql, have, says)
		}
		if c.code == "" && !d.holds(t, 1,
			"o.status = 'pending' and o.available_at between clock_timestamp() - interval '50 s' and clock_timestamp()") {
			t.Errorf("%s: the row is not back: %v", c.sql, d.row(t, 1))
		}
	}
}
