package sql_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"spectral/internal/core/events"
	"spectral/internal/core/events/infrastructure/postgres/operator"
	"spectral/tests/pgtest"
)

// client is an operator's Admin on a database, which knows nothing but what spectral_operator may.
func (d *database) client(t testing.TB) *operator.Client {
	t.Helper()
	return operator.New(pgtest.Pool(t, pgtest.Login(t, d.at, operator.Role)))
}

// Pages have every event that fits, once, the latest first, whatever their size; counts have it in its group.
func TestFindMatchesWhatTheFilterSays(t *testing.T) {
	t.Parallel()
	d := setup(t)
	client, now := d.client(t), time.Now()
	mine := uuid.NullUUID{UUID: uuid.New(), Valid: true}
	// created so many hours ago
	d.rows(t, 7, "created_at = $1::timestamptz - (10 - (o.payload ->> 'n')::int) * interval '1 h', available_at = "+
		"$1::timestamptz - (10 - (o.payload ->> 'n')::int) * interval '1 h'", now)
	for n, set := range map[int]string{
		1: "status = 'failed', claimed_at = created_at, handler_failures = '{\"worlds.a\": {}}', last_error = " +
			"'IntegrityError: worlds.a: 100% _of_ it', workspace_id = '" + mine.UUID.String() + "'",
		2: "status = 'failed', claimed_at = created_at + interval '7 h', handler_failures = '{\"worlds.a\": {}, " +
			"\"platform.b\": {}}', target = 'worlds', last_error = E'TimeoutError: platform.b: slow\\nIntegrityError: x'",
		3: "status = 'failed', claimed_at = created_at, deleted_at = now(), discarded_at = now(), last_error = 'NoColon'",
		4: "source = 'platform', event_type = '" + platformType + "'",
		5: "available_at = now() + interval '1 h', generation = 3, channel = 'outbox_gen_3'",
		6: "status = 'delivered', delivered_at = created_at, workspace_id = '" + mine.UUID.String() + "'",
		7: inFlight + ", claimed_at = created_at, channel = 'outbox_gen_1_slow'",
	} {
		d.alter(t, n, strings.Replace(set, ", claimed_at = now(), claimed_at", ", claimed_at", 1))
	}
	for _, c := range []struct {
		filter operator.Filter
		want   []int
	}{
		{operator.Filter{}, []int{5, 2, 7, 6, 4, 1}}, // without the discarded one; the scheduled one is ahead
		{operator.Filter{Statuses: operator.Statuses()}, []int{5, 2, 7, 6, 4, 3, 1}},
		{operator.Filter{Statuses: []operator.Status{operator.Failed}}, []int{2, 1}},
		{operator.Filter{Statuses: []operator.Status{operator.Discarded}}, []int{3}},
		{operator.Filter{Statuses: []operator.Status{operator.Due, operator.Scheduled}}, []int{5, 4}},
		{operator.Filter{Statuses: []operator.Status{operator.Due}}, []int{4}},
		{operator.Filter{Statuses: []operator.Status{operator.InFlight, operator.Delivered}}, []int{7, 6}},
		{operator.Filter{EventTypes: []string{platformType}}, []int{4}}, {operator.Filter{EventTypes: []string{"a.b"}}, nil},
		{operator.Filter{Sources: []events.Scope{events.Platform}}, []int{4}},
		{operator.Filter{Targets: []events.Scope{events.Worlds}}, []int{2}},
		{operator.Filter{Targets: []events.Scope{""}}, []int{5, 7, 6, 4, 1}},
		{operator.Filter{Handlers: []string{"platform.b"}}, []int{2}},
		{operator.Filter{Handlers: []string{"worlds.a", "platform.b"}}, []int{2, 1}},
		{operator.Filter{Workspaces: []uuid.NullUUID{mine}}, []int{6, 1}},
		{operator.Filter{Workspaces: []uuid.NullUUID{{}}}, []int{5, 2, 7, 4}},
		{operator.Filter{Generations: []events.Generation{3}}, []int{5}},
		{operator.Filter{Channels: []string{"outbox_gen_3", "outbox_gen_1_slow"}}, []int{5, 7}},
		{operator.Filter{OlderThan: 330 * time.Minute}, []int{4, 1}},
		{operator.Filter{NewerThan: 210 * time.Minute}, []int{2, 7}},
		{operator.Filter{ErrorClasses: []string{"IntegrityError"}}, []int{1}},
		{operator.Filter{ErrorContains: "% _of"}, []int{1}},
		{operator.Filter{ErrorContains: "\nInt"}, []int{2}},
		{operator.Filter{Statuses: []operator.Status{operator.Failed}, Workspaces: []uuid.NullUUID{mine},
			Handlers: []string{"worlds.a"}}, []int{1}},
	} {
		for _, limit := range []int{2, 1000} {
			var have []int
			for page := (operator.Page{Limit: limit}); ; {
				found, err := client.Find(deadline(t), c.filter, page)
				if err != nil || len(have) > 7 {
					t.Fatalf("%+v: %v, %v", c.filter, have, err)
				}
				for _, e := range found.Events {
					have = append(have, numberOf(e.ID))
				}
				if page.After = found.Next; page.After == "" {
					break
				}
			}
			if !slices.Equal(have, c.want) {
				t.Errorf("%+v in pages of %d: %v, want %v", c.filter, limit, have, c.want)
			}
		}
		// a bulk command says the same in its own statement
		condition, arguments := c.filter.Where(2)
		if n := value[int](t, d.admin, "select count(*) from core.outbox o where $1 and "+condition,
			append([]any{true}, arguments...)...); n != len(c.want) {
			t.Errorf("%+v: %d events fit %s, want %d", c.filter, n, condition, len(c.want))
		}
	}
	for dimension, want := range map[operator.Dimension]map[string]int64{ // counts have the discarded ones, too
		operator.ByStatus: {"failed": 2, "discarded": 1, "due": 1, "scheduled": 1, "delivered": 1, "in_flight": 1},
		operator.ByType:   {cardType: 6, platformType: 1},
		operator.BySource: {"worlds": 6, "platform": 1}, operator.ByTarget: {"": 6, "worlds": 1},
		operator.ByHandler:   {"": 5, "worlds.a": 2, "platform.b": 1},
		operator.ByWorkspace: {"": 5, mine.UUID.String(): 2}, operator.ByGeneration: {"1": 6, "3": 1},
		operator.ByChannel: {"outbox_gen_1": 5, "outbox_gen_3": 1, "outbox_gen_1_slow": 1},
		operator.ByError:   {"": 4, "IntegrityError": 1, "TimeoutError": 1, "NoColon": 1},
	} {
		counted, err := client.Count(deadline(t), operator.Filter{},
			operator.Count{By: []operator.Dimension{dimension}, Limit: operator.MaxPageSize, Exactly: true})
		must(t, err)
		have := map[string]int64{}
		for _, g := range counted.Groups {
			if name := g.Values[dimension]; g.Count > 0 && name == nil {
				have[""] = g.Count
			} else if g.Count > 0 {
				have[*name] = g.Count
			}
		}
		if !maps.Equal(have, want) {
			t.Errorf("by %s: %v, want %v", dimension, have, want)
		}
	}
}

func TestCursorsAreOfTheirFilter(t *testing.T) {
	t.Parallel()
	d := setup(t)
	d.rows(t, 2, "status = 'failed', claimed_at = now()")
	client, filter := d.client(t), operator.Filter{Statuses: []operator.Status{operator.Failed}}
	found, err := client.Find(deadline(t), filter, operator.Page{Limit: 1})
	if err != nil || found.Next == "" {
		t.Fatalf("%+v, %v", found, err)
	}
	for after, filter := range map[string]operator.Filter{
		found.Next: {}, "nonsense": filter, found.Next[:len(found.Next)/2]: filter, "bnVsbA": filter,
	} {
		_, err := client.Find(deadline(t), filter, operator.Page{Limit: 1, After: after})
		if !errors.Is(err, operator.ErrCursor) {
			t.Errorf("%s with %+v: %v, want that the cursor is refused", after, filter, err)
		}
	}
}

// A search that takes too long ends, and says what to do.
func TestASearchIsBounded(t *testing.T) {
	t.Parallel()
	d := setup(t)
	client := d.client(t)
	holder := begin(t, pgtest.Conn(t, d.at))
	exec(t, holder, "lock table core.outbox in access exclusive mode")
	var broad *operator.TooBroadError
	if _, err := client.Find(deadline(t), operator.Filter{},
		operator.Page{Limit: 1, Timeout: 50 * time.Millisecond}); !errors.As(err, &broad) {
		t.Errorf("a page: %v", err)
	}
	count := operator.Count{By: []operator.Dimension{operator.ByType}, Limit: 1, Timeout: 50 * time.Millisecond}
	if _, err := client.Count(deadline(t), operator.Filter{}, count); !errors.As(err, &broad) ||
		broad.After != count.Timeout {
		t.Errorf("a count: %v", err)
	}
	cancelled, cancel := context.WithCancel(deadline(t))
	cancel()
	if _, err := client.Find(cancelled, operator.Filter{}, operator.Page{Limit: 1}); !errors.Is(err, context.Canceled) {
		t.Errorf("a page whose caller is gone: %v", err)
	}
}

// How many are delivered is not counted where they are many.
func TestManyDeliveredAreEstimated(t *testing.T) {
	t.Parallel()
	d := setup(t)
	exec(t, d.admin, `insert into core.outbox (event_type, event_version, source, content_class, generation, payload,
		idempotency_key, status)
		select 'a.b', 1, 'worlds', 'operational', 1, '{}', i::text, 'delivered' from generate_series(1, 300) i`)
	exec(t, d.admin, "analyze core.outbox")
	client := d.client(t)
	byStatus := operator.Count{By: []operator.Dimension{operator.ByStatus}, Limit: 10}
	delivered := func(filter operator.Filter) operator.Group {
		t.Helper()
		counted, err := client.Count(deadline(t), filter, byStatus)
		must(t, err)
		for _, g := range counted.Groups {
			if *g.Values[operator.ByStatus] == string(operator.Delivered) {
				return g
			}
		}
		t.Fatal("delivered events are no group")
		return operator.Group{}
	}
	if g := delivered(operator.Filter{}); g.Estimated || g.Count != 300 || g.Oldest == nil {
		t.Errorf("of 300 delivered events: %+v", g)
	}
	// as if it were five millions: the planner goes by rows for each page
	exec(t, d.admin, "update pg_class set reltuples = 5000000 where oid = 'core.outbox'::regclass")
	if g := delivered(operator.Filter{}); !g.Estimated || g.Count < 4_900_000 || g.Count > 5_100_000 {
		t.Errorf("of five million delivered events: %+v", g)
	}
	if g := delivered(operator.Filter{EventTypes: []string{platformType}}); g.Estimated || g.Count != 0 {
		t.Errorf("of a type that nothing is of: %+v", g)
	}
	// nor are they counted by anything else, unless that is asked for
	byType := operator.Count{By: []operator.Dimension{operator.ByType}, Limit: 10}
	counted, err := client.Count(deadline(t), operator.Filter{}, byType)
	if err != nil || len(counted.Groups) != 0 || !counted.DeliveredLeftOut {
		t.Errorf("by type: %+v, %v", counted, err)
	}
	counted, err = client.Count(deadline(t), operator.Filter{Statuses: []operator.Status{operator.Delivered}}, byType)
	if err != nil || len(counted.Groups) != 1 || counted.Groups[0].Count != 300 || counted.DeliveredLeftOut {
		t.Errorf("delivered by type: %+v, %v", counted, err)
	}
	byType.Most = 100 // one more stands for more
	counted, err = client.Count(deadline(t), operator.Filter{Statuses: []operator.Status{operator.Delivered}}, byType)
	if err != nil || len(counted.Groups) != 1 || counted.Groups[0].Count != 101 {
		t.Errorf("at most 100 by type: %+v, %v", counted, err)
	}
}

// A producer sees its own dead letters of the transaction's workspace, and nothing else of the outbox.
func TestProducersReadTheirOwnFailures(t *testing.T) {
	t.Parallel()
	d := setup(t)
	d.rows(t, 8, "status = 'failed', occurred_at = '2026-01-01', claimed_at = '2026-01-01'::timestamptz + (o.payload "+
		"->> 'n')::int * interval '1 min', workspace_id = '"+worker1+"'")
	for n, set := range map[int]string{
		1: `failure_history = '[{"reaped_at": "x"}, {"replayed_at": "x", "cycle": 1}]'`,
		2: "deleted_at = now(), discarded_at = now()", 4: "workspace_id = '" + worker2 + "'",
		5: "workspace_id = null", 6: "source = 'platform'", 7: "status = 'pending', claimed_at = null",
		8: "status = 'delivered', delivered_at = now(), claimed_at = null",
	} {
		d.alter(t, n, set)
	}
	in := func(workspace string) line {
		return line{"worlds", "set spectral.workspace_id = '" + workspace + "'", ""}
	}
	failures := func(arguments, want string) line {
		return line{"worlds",
			"select right(event_id::text, 1), prior_replays, discarded_at is not null from core.outbox_failures(" + arguments +
				")", want}
	}
	d.run(t,
		in(worker1), failures("'worlds'", "3 0 f; 2 0 t; 1 1 f"), failures("'worlds', 2", "3 0 f; 2 0 t"),
		failures("'worlds', 1", "3 0 f"),
		failures("'worlds', 2, '2026-01-01 00:02:00+00', '{2}', '2026-01-01'", "1 1 f"),
		failures("'worlds', 2, '2026-01-01 00:01:00+00', '{1}', '2026-01-01'", ""),
		in(worker2), failures("'worlds'", "4 0 f"), in(""), failures("'worlds'", "5 0 f"), in(key(99).String()),
		failures("'worlds'", ""),
		// by SET ROLE, as units of work do, it is the role that counts
		line{"worker", "set role spectral_platform; set spectral.workspace_id = '" + worker1 +
			"'; select event_id from core.outbox_failures('platform')", "{6}"},
		line{"worlds", "select from core.outbox", denied}, line{"operator", "select core.outbox_failures('worlds')", denied},
		line{"worker 2", "select core.outbox_failures('worlds')", denied},
	)
	for arguments, code := range map[string]string{
		"'worlds'": "SP017 source", "'core'": "SP017 source", "'moon'": "SP003 source", "null": "SP003 source",
		"'platform', 0": "SP030 limit", "'platform', 1001": "SP030 limit",
		"'platform', null": "SP030 limit", "'platform', 1, now()": "SP030 after", "'platform', 1, null, '{1}'": "SP030 after",
	} {
		d.run(t, line{"worker", "select core.outbox_failures(" + arguments + ")", strings.Fields(code)[0] + "*"})
	}
}

// What a page has in memory is bounded, and nothing is lost by that.
func TestFailuresWithLargePayloads(t *testing.T) {
	t.Parallel()
	d := setup(t)
	d.rows(t, 20, "payload = jsonb_build_object('a', repeat('x', 1000000)), status = 'failed', occurred_at = "+
		"'2026-01-01', claimed_at = '2026-01-01'::timestamptz + (o.payload ->> 'n')::int * interval '1 min'")
	const page = "select count(*), min(failed_at) = '2026-01-01 00:%s:00+00' from core.outbox_failures('worlds', 100%s)"
	d.run(t, line{"worlds", fmt.Sprintf(page, "04", ""), "17 t"},
		line{"worlds", fmt.Sprintf(page, "01", ", '2026-01-01 00:04:00+00', '{4}', '2026-01-01'"), "3 t"})
}

// What is known of an event is told handler by handler, also where an operator has written nonsense.
func TestShowTellsOfEachHandler(t *testing.T) {
	t.Parallel()
	d := setup(t)
	id, first, another := key(1), key(3), uuid.New()
	d.rows(t, 3, "")
	d.alter(t, 1, `status = 'failed', target = 'worlds', idempotency_key = 'k', attempts = 3, crashes = 1,
		last_error = 'E: worlds.parked: x', channel = 'outbox_gen_1_slow', payload = '{"n": 1.50}',
		handler_failures = '{"worlds.parked": {"failures": 6, "parked": true, "class": "E", "error": "x"},
			"worlds.failing": {"failures": 1, "free": 2, "class": "E", "error": "y"},
			"by hand": [1], "odd": {"failures": 1.5, "free": "x"}}',
		failure_history = '[{"cycle": 1, "replayed_at": "2026-01-01T00:00:00Z"},
			{"reaped_at": "2026-01-02T00:00:00Z"}, "odd"]'`)
	d.alter(t, 2, inFlight+", id = '"+id.String()+"', occurred_at = now() - interval '1 hour', claimed_by = 'w', "+
		"lease_handler = 'worlds.parked'")
	exec(t, d.admin, `update core.outbox set claimed_at = 'infinity' where id = $1 and status = 'failed'`, id)
	exec(t, d.admin, `insert into core.event_handled (handler_name, idempotency_key, event_id, event_type, content_class)
		select h, 'k', i, t, 'operational' from (values ('worlds.handled', $1::uuid, '`+cardType+`'),
			('worlds.by_another', $2, '`+cardType+`'), ('worlds.of_another_type', $2, 'a.b')) v(h, i, t)
		union all select 'worlds.other' || n, 'of another key', gen_random_uuid(), 'a.b', 'operational'
			from generate_series(1, 20) n`, id, first)
	exec(t, d.admin, `insert into core.operator_actions (action, acted_by, event_ids, generation) values ('replay',
		'ann', array[$1, $2]::uuid[], 1), ('pause', 'ann', '{}', 1)`,
		id, another)
	for _, w := range []struct{ generation, handlers string }{
		{"1", `["platform.other_context", "worlds.handled", "worlds.late", "worlds.parked"]`},
		{"1", `["platform.other_context", "worlds.handled", "worlds.late", "worlds.parked"]`},
		{"3", `["worlds.of_another_generation"]`},
	} {
		exec(t, d.login(t, "spectral_worker"),
			`select core.worker_register(gen_random_uuid(), $1, 'w', jsonb_build_object($2::text, $3::jsonb))`, w.generation,
			cardType, w.handlers)
	}
	all, err := d.client(t).Show(deadline(t), id)
	must(t, err)
	if len(all) != 2 || all[0].Status != operator.InFlight || all[1].Status != operator.Failed {
		t.Fatalf("%+v, want both events of that id, by occurred_at", all)
	}
	e := all[1]
	stages := map[string]string{}
	for _, h := range e.Handlers {
		stages[h.Handler] = fmt.Sprintf("%s %d %d %s", h.Stage, h.Failures, h.Free, h.Error)
		if h.HandledAs != nil {
			stages[h.Handler] += fmt.Sprint(h.HandledAs, h.OtherPayload)
		}
	}
	if want := map[string]string{
		"by hand": "failing 0 0 [1]", "odd": "failing 0 0 ", "platform.other_context": "not_target 0 0 ",
		"worlds.by_another": "handled 0 0 " + first.String() + " true",
		"worlds.failing":    "failing 1 2 y", "worlds.handled": "handled 0 0 ", "worlds.late": "not_run 0 0 ",
		"worlds.parked": "parked 6 0 x",
	}; !reflect.DeepEqual(stages, want) {
		t.Errorf("handlers:\n%v, want\n%v", stages, want)
	}
	if e.Workers != 2 || e.PriorReplays != 1 || len(e.History) != 3 || len(e.Actions) != 1 || e.Actions[0].Events != 2 ||
		e.Class != "slow" ||
		string(e.Payload) != `{"n": 1.50}` || e.FailedAt != nil || e.Crashes != 1 || e.Attempts != 3 ||
		*e.Target != events.Worlds {
		t.Errorf("%+v", e)
	}
	e = all[0]
	if e.Class != events.DefaultClass || e.LeaseExpiresAt == nil || *e.ClaimedBy != "w" ||
		*e.LeaseHandler != "worlds.parked" || len(e.Handlers) != 4 || e.Handlers[0].Stage != "to_run" {
		t.Errorf("%+v", e)
	}
	_, err = d.client(t).Show(deadline(t), another)
	_, refused := d.client(t).SelectNamed(deadline(t), []uuid.UUID{another}, operator.Discard("", ""))
	var missing, database *operator.RefusedError
	if !errors.As(err, &missing) || !errors.As(refused, &database) || *missing != *database {
		t.Errorf("an id that nothing has: %v, of which the database says: %v", err, refused)
	}
}

// acts writes n actions by hand, seven in each second, each on another event.
func (d *database) acts(t testing.TB, n int) {
	t.Helper()
	exec(t, d.admin, `insert into core.operator_actions (acted_at, action, acted_by, login, event_ids, generation)
		select now() - make_interval(secs => i / 7), case i % 2 when 0 then 'replay' else 'discard' end, 'ann', 'shared',
			array[lpad(to_hex(i), 32, '0')::uuid], 1 + i % 3
		from generate_series(1, $1) i`, n)
}

// Through all pages each action comes once, the latest first, also of those of one moment; and a cursor goes with its
// filter.
func TestPagesOfActions(t *testing.T) {
	t.Parallel()
	d := setup(t)
	d.acts(t, 60)
	client := d.client(t)
	filter := operator.ActionFilter{Actions: []string{"replay"}, By: []string{"shared"}}
	seen, last, after := make(map[uuid.UUID]bool), time.Time{}, ""
	for {
		found, err := client.Actions(deadline(t), filter, operator.Page{Limit: 4, After: after, EventIDs: true})
		if err != nil || len(found.Actions) == 0 {
			t.Fatalf("%d actions after %d: %v", len(found.Actions), len(seen), err)
		}
		for _, a := range found.Actions {
			if seen[a.ID] || a.Action != "replay" || len(a.EventIDs) != 1 || a.Events != 1 || !last.IsZero() &&
				a.ActedAt.After(last) {
				t.Errorf("behind %s: %+v", last, a)
			}
			seen[a.ID], last = true, a.ActedAt
		}
		if after = found.Next; after == "" {
			break
		}
		filter.Generations = []events.Generation{1}
		if _, err := client.Actions(deadline(t), filter, operator.Page{Limit: 4, After: after}); !errors.Is(err,
			operator.ErrCursor) {
			t.Errorf("a cursor of another filter: %v", err)
		}
		filter.Generations = nil
	}
	if len(seen) != 30 {
		t.Errorf("%d actions, want 30", len(seen))
	}
}

// The words that a command completes with are those that the functions write.
func TestActionNames(t *testing.T) {
	t.Parallel()
	written := values[string](t, setup(t).admin, `select distinct m[1] from pg_proc,
		regexp_matches(prosrc, 'operator_action\(''([a-z_]+)''', 'g') m where pronamespace = 'core'::regnamespace`)
	slices.Sort(written)
	if have := slices.Sorted(slices.Values(operator.ActionNames())); !slices.Equal(have, slices.Compact(written)) {
		t.Errorf("%q, but the functions write %q", have, written)
	}
}
