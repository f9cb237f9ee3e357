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
	"github.com/jackc/pgx/v5"

	"spectral/internal/core/events"
	"spectral/internal/core/events/infrastructure/postgres/admin"
	"spectral/tests/pgtest"
)

// office is an operator's Admin on a database, which knows nothing but what spectral_operator may.
func (d *database) office(t testing.TB) *admin.Admin {
	t.Helper()
	return admin.New(pgtest.Pool(t, pgtest.Login(t, d.at, admin.Role)))
}

// letter is a row of core.outbox as these tests write it by hand.
type letter struct {
	id                  uuid.UUID
	eventType           string
	source, target      string // no target: every context
	workspace           uuid.NullUUID
	generation          int64
	channel             string
	status              string
	handlers            []string // that have failed
	lastError           string
	created, claimed    time.Time
	available           time.Time
	deleted             bool
	occurred            time.Time
	handlerFailures     string
	history             string
	key                 string
	payload             string
	attempts, crashes   int
	claimedBy, leasedTo string
}

// write inserts rows, in one statement each, filling what is zero.
func (d *database) write(t testing.TB, letters ...letter) {
	t.Helper()
	batch := &pgx.Batch{}
	for _, l := range letters {
		or := func(value *string, otherwise string) {
			if *value == "" {
				*value = otherwise
			}
		}
		or(&l.eventType, cardType)
		or(&l.source, "worlds")
		or(&l.status, "failed")
		or(&l.channel, "outbox_gen_1")
		or(&l.payload, "{}")
		or(&l.history, "[]")
		or(&l.key, l.id.String())
		if l.handlerFailures == "" {
			entries := make([]string, len(l.handlers))
			for i, h := range l.handlers {
				entries[i] = fmt.Sprintf(`%q: {"failures": 6, "parked": true, "class": "E", "error": "e"}`, h)
			}
			l.handlerFailures = "{" + strings.Join(entries, ", ") + "}"
		}
		if l.generation == 0 {
			l.generation = 1
		}
		if l.created.IsZero() {
			l.created = time.Now()
		}
		for _, at := range []*time.Time{&l.occurred, &l.available, &l.claimed} {
			if at.IsZero() {
				*at = l.created
			}
		}
		if l.status != "failed" && l.status != "in_flight" {
			l.claimed = time.Time{}
		}
		batch.Queue(`insert into core.outbox (id, event_type, event_version, occurred_at, source, target, content_class, channel, generation,
			workspace_id, payload, idempotency_key, status, attempts, crashes, last_error, handler_failures, failure_history, created_at, available_at,
			claimed_at, delivered_at, deleted_at, discarded_at, claim_token, first_failed_at, claimed_by, lease_handler)
			select $1, $2, 1, $3, $4, nullif($5, ''), 'operational', $6, $7, $8, $9, $10, $11::text, $12, $13, nullif($14, ''), $15, $16, $17, $18,
			nullif($19::timestamptz, '0001-01-01 00:00:00+00'), case when $11 = 'delivered' then $17::timestamptz end, case when $20 then now() end, case when $20 and $11 = 'failed' then now() end,
			case when $11 = 'in_flight' then gen_random_uuid() end, case when $11 = 'failed' then $17::timestamptz end, nullif($21, ''), nullif($22, '')`,
			l.id, l.eventType, l.occurred, l.source, l.target, l.channel, l.generation, l.workspace, l.payload, l.key, l.status, l.attempts, l.crashes,
			l.lastError, l.handlerFailures, l.history, l.created, l.available, l.claimed, l.deleted, l.claimedBy, l.leasedTo)
	}
	exec(t, d.admin, "alter table core.outbox disable trigger outbox_notify")
	if err := d.admin.SendBatch(deadline(t), batch).Close(); err != nil {
		t.Fatal(err)
	}
}

// Pages have every event that fits, once, the latest first, whatever their size; counts have it in its group.
func TestFindMatchesWhatTheFilterSays(t *testing.T) {
	t.Parallel()
	d := setup(t)
	office, now := d.office(t), time.Now()
	mine := uuid.NullUUID{UUID: uuid.New(), Valid: true}
	hours := func(n int) time.Time { return now.Add(time.Duration(n) * time.Hour) }
	letters := []letter{ // by number, from 1
		{created: hours(-9), handlers: []string{"worlds.a"}, lastError: "IntegrityError: worlds.a: 100% _of_ it", workspace: mine},
		{created: hours(-8), claimed: hours(-1), handlers: []string{"worlds.a", "platform.b"}, lastError: "TimeoutError: platform.b: slow\nIntegrityError: x", target: "worlds"},
		{created: hours(-7), deleted: true, lastError: "NoColon"},
		{created: hours(-6), status: "pending", source: "platform", eventType: platformType},
		{created: hours(-5), status: "pending", available: hours(1), generation: 3, channel: "outbox_gen_3"},
		{created: hours(-4), status: "delivered", workspace: mine},
		{created: hours(-3), status: "in_flight", channel: "outbox_gen_1_slow"},
	}
	for i := range letters {
		letters[i].id = key(i + 1)
	}
	d.write(t, letters...)
	for _, c := range []struct {
		filter admin.Filter
		want   []int
	}{
		{admin.Filter{}, []int{5, 2, 7, 6, 4, 1}}, // without the discarded one; the scheduled one is ahead
		{admin.Filter{Statuses: admin.Statuses()}, []int{5, 2, 7, 6, 4, 3, 1}},
		{admin.Filter{Statuses: []admin.Status{admin.Failed}}, []int{2, 1}}, {admin.Filter{Statuses: []admin.Status{admin.Discarded}}, []int{3}},
		{admin.Filter{Statuses: []admin.Status{admin.Due, admin.Scheduled}}, []int{5, 4}}, {admin.Filter{Statuses: []admin.Status{admin.Due}}, []int{4}},
		{admin.Filter{Statuses: []admin.Status{admin.InFlight, admin.Delivered}}, []int{7, 6}},
		{admin.Filter{EventTypes: []string{platformType}}, []int{4}}, {admin.Filter{EventTypes: []string{"a.b"}}, nil},
		{admin.Filter{Sources: []events.Scope{events.Platform}}, []int{4}},
		{admin.Filter{Targets: []events.Scope{events.Worlds}}, []int{2}}, {admin.Filter{Targets: []events.Scope{""}}, []int{5, 7, 6, 4, 1}},
		{admin.Filter{Handlers: []string{"platform.b"}}, []int{2}}, {admin.Filter{Handlers: []string{"worlds.a", "platform.b"}}, []int{2, 1}},
		{admin.Filter{Workspaces: []uuid.NullUUID{mine}}, []int{6, 1}}, {admin.Filter{Workspaces: []uuid.NullUUID{{}}}, []int{5, 2, 7, 4}},
		{admin.Filter{Generations: []events.Generation{3}}, []int{5}}, {admin.Filter{Channels: []string{"outbox_gen_3", "outbox_gen_1_slow"}}, []int{5, 7}},
		{admin.Filter{OlderThan: 330 * time.Minute}, []int{4, 1}}, {admin.Filter{NewerThan: 210 * time.Minute}, []int{2, 7}},
		{admin.Filter{ErrorClasses: []string{"IntegrityError"}}, []int{1}}, {admin.Filter{ErrorContains: "% _of"}, []int{1}}, {admin.Filter{ErrorContains: "\nInt"}, []int{2}},
		{admin.Filter{Statuses: []admin.Status{admin.Failed}, Workspaces: []uuid.NullUUID{mine}, Handlers: []string{"worlds.a"}}, []int{1}},
	} {
		for _, limit := range []int{1, 2, 1000} {
			var have []int
			for page := (admin.Page{Limit: limit}); ; {
				found, err := office.Find(deadline(t), c.filter, page)
				if err != nil || len(have) > len(letters) {
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
		if n := value[int](t, d.admin, "select count(*) from core.outbox o where $1 and "+condition, append([]any{true}, arguments...)...); n != len(c.want) {
			t.Errorf("%+v: %d events fit %s, want %d", c.filter, n, condition, len(c.want))
		}
	}
	for dimension, want := range map[admin.Dimension]map[string]int64{ // counts have the discarded ones, too
		admin.ByStatus: {"failed": 2, "discarded": 1, "due": 1, "scheduled": 1, "delivered": 1, "in_flight": 1}, admin.ByType: {cardType: 6, platformType: 1},
		admin.BySource: {"worlds": 6, "platform": 1}, admin.ByTarget: {"": 6, "worlds": 1}, admin.ByHandler: {"": 5, "worlds.a": 2, "platform.b": 1},
		admin.ByWorkspace: {"": 5, mine.UUID.String(): 2}, admin.ByGeneration: {"1": 6, "3": 1}, admin.ByChannel: {"outbox_gen_1": 5, "outbox_gen_3": 1, "outbox_gen_1_slow": 1},
		admin.ByError: {"": 4, "IntegrityError": 1, "TimeoutError": 1, "NoColon": 1},
	} {
		counted, err := office.Count(deadline(t), admin.Filter{}, admin.Count{By: []admin.Dimension{dimension}, Limit: admin.MaxPageSize, Exactly: true})
		if err != nil {
			t.Fatal(err)
		}
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
	d.write(t, letter{id: key(1)}, letter{id: key(2)})
	office := d.office(t)
	filter := admin.Filter{Statuses: []admin.Status{admin.Failed}}
	found, err := office.Find(deadline(t), filter, admin.Page{Limit: 1})
	if err != nil || found.Next == "" {
		t.Fatalf("%+v, %v", found, err)
	}
	for name, c := range map[string]struct {
		filter admin.Filter
		after  string
	}{
		"another filter": {admin.Filter{}, found.Next},
		"no cursor":      {filter, "nonsense"},
		"half a cursor":  {filter, found.Next[:len(found.Next)/2]},
		"null":           {filter, "bnVsbA"},
	} {
		if _, err := office.Find(deadline(t), c.filter, admin.Page{Limit: 1, After: c.after}); !errors.Is(err, admin.ErrCursor) {
			t.Errorf("%s: %v, want that the cursor is refused", name, err)
		}
	}
}

// loginOf is the login of an address.
func loginOf(t testing.TB, at string) string {
	t.Helper()
	config, err := pgx.ParseConfig(at)
	if err != nil {
		t.Fatal(err)
	}
	return config.User
}

// A search that takes too long ends, and says what to do.
func TestASearchIsBounded(t *testing.T) {
	t.Parallel()
	d := setup(t)
	office := d.office(t)
	holder := begin(t, pgtest.Conn(t, d.at))
	exec(t, holder, "lock table core.outbox in access exclusive mode")
	var broad *admin.TooBroadError
	if _, err := office.Find(deadline(t), admin.Filter{}, admin.Page{Limit: 1, Timeout: 50 * time.Millisecond}); !errors.As(err, &broad) {
		t.Errorf("a page: %v", err)
	}
	count := admin.Count{By: []admin.Dimension{admin.ByType}, Limit: 1, Timeout: 50 * time.Millisecond}
	if _, err := office.Count(deadline(t), admin.Filter{}, count); !errors.As(err, &broad) || broad.After != count.Timeout {
		t.Errorf("a count: %v", err)
	}
	cancelled, cancel := context.WithCancel(deadline(t))
	cancel()
	if _, err := office.Find(cancelled, admin.Filter{}, admin.Page{Limit: 1}); !errors.Is(err, context.Canceled) {
		t.Errorf("a page that nobody waits for: %v", err)
	}
}

// river#746: how many are delivered is not counted where they are many.
func TestManyDeliveredAreEstimated(t *testing.T) {
	t.Parallel()
	d := setupNew(t)
	exec(t, d.admin, `insert into core.outbox (event_type, event_version, source, content_class, generation, payload, idempotency_key, status)
		select 'a.b', 1, 'worlds', 'operational', 1, '{}', i::text, 'delivered' from generate_series(1, 300) i`)
	exec(t, d.admin, "analyze core.outbox")
	office := d.office(t)
	byStatus := admin.Count{By: []admin.Dimension{admin.ByStatus}, Limit: 10}
	delivered := func(filter admin.Filter) admin.Group {
		t.Helper()
		counted, err := office.Count(deadline(t), filter, byStatus)
		if err != nil {
			t.Fatal(err)
		}
		for _, g := range counted.Groups {
			if *g.Values[admin.ByStatus] == string(admin.Delivered) {
				return g
			}
		}
		t.Fatal("delivered events are no group")
		return admin.Group{}
	}
	if g := delivered(admin.Filter{}); g.Estimated || g.Count != 300 || g.Oldest == nil {
		t.Errorf("of 300 delivered events: %+v", g)
	}
	// as if it were five millions: the planner goes by rows for each page
	exec(t, d.admin, "update pg_class set reltuples = 5000000 where oid = 'core.outbox'::regclass")
	if g := delivered(admin.Filter{}); !g.Estimated || g.Count < 4_900_000 || g.Count > 5_100_000 {
		t.Errorf("of five million delivered events: %+v", g)
	}
	if g := delivered(admin.Filter{EventTypes: []string{platformType}}); g.Estimated || g.Count != 0 {
		t.Errorf("of a type that nothing is of: %+v", g)
	}
	// nor are they counted by anything else, unless that is asked for
	byType := admin.Count{By: []admin.Dimension{admin.ByType}, Limit: 10}
	counted, err := office.Count(deadline(t), admin.Filter{}, byType)
	if err != nil || len(counted.Groups) != 0 || !counted.DeliveredLeftOut {
		t.Errorf("by type: %+v, %v", counted, err)
	}
	counted, err = office.Count(deadline(t), admin.Filter{Statuses: []admin.Status{admin.Delivered}}, byType)
	if err != nil || len(counted.Groups) != 1 || counted.Groups[0].Count != 300 || counted.DeliveredLeftOut {
		t.Errorf("delivered by type: %+v, %v", counted, err)
	}
}

// failures calls core.outbox_failures with the arguments as SQL.
func failures(t testing.TB, q querier, arguments string) ([]uuid.UUID, error) {
	t.Helper()
	rows, err := q.Query(deadline(t), "select event_id from core.outbox_failures("+arguments+")")
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowTo[uuid.UUID])
}

// A producer sees its own dead letters of the transaction's workspace, and nothing else of the outbox.
func TestProducersReadTheirOwnFailures(t *testing.T) {
	t.Parallel()
	d := setup(t)
	mine, other := uuid.NullUUID{UUID: uuid.New(), Valid: true}, uuid.NullUUID{UUID: uuid.New(), Valid: true}
	at := time.Now().Add(-time.Hour).Truncate(time.Microsecond)
	row := func(l letter, minute int) letter {
		l.id, l.created = uuid.Must(uuid.NewV7()), at
		l.claimed = at.Add(time.Duration(minute) * time.Minute)
		return l
	}
	of := []letter{
		row(letter{workspace: mine, lastError: "E: worlds.a: x", history: `[{"reaped_at": "x"}, {"replayed_at": "x", "cycle": 1}]`}, 1),
		row(letter{workspace: mine, deleted: true}, 2),
		row(letter{workspace: mine}, 3),
		row(letter{workspace: other}, 4),
		row(letter{}, 5),
		row(letter{workspace: mine, source: "platform"}, 6),
		row(letter{workspace: mine, status: "pending"}, 7),
		row(letter{workspace: mine, status: "delivered"}, 8),
	}
	d.write(t, of...)
	producer := d.login(t, "spectral_worlds")
	want := func(workspace, arguments string, letters ...int) {
		t.Helper()
		exec(t, producer, "select set_config('spectral.workspace_id', $1, false)", workspace)
		have, err := failures(t, producer, arguments)
		if err != nil {
			t.Errorf("(%s) in workspace %q: %v", arguments, workspace, err)
			return
		}
		var ids []uuid.UUID
		for _, i := range letters {
			ids = append(ids, of[i].id)
		}
		if !slices.Equal(have, ids) {
			t.Errorf("(%s) in workspace %q: %v, want %v", arguments, workspace, have, ids)
		}
	}
	want(mine.UUID.String(), "'worlds'", 2, 1, 0)
	want(other.UUID.String(), "'worlds'", 3)
	want("", "'worlds'", 4)
	want(uuid.NewString(), "'worlds'")
	want(mine.UUID.String(), "'worlds', 2", 2, 1)
	want(mine.UUID.String(), fmt.Sprintf("'worlds', 2, '%s', '%s', '%s'", of[1].claimed.Format(time.RFC3339Nano), of[1].id, at.Format(time.RFC3339Nano)), 0)
	want(mine.UUID.String(), fmt.Sprintf("'worlds', 2, '%s', '%s', '%s'", of[0].claimed.Format(time.RFC3339Nano), of[0].id, at.Format(time.RFC3339Nano)))
	want(mine.UUID.String(), "'worlds', 1", 2)
	replays := values[int](t, producer, "select prior_replays from core.outbox_failures('worlds')")
	discarded := values[bool](t, producer, "select discarded_at is not null from core.outbox_failures('worlds')")
	if !slices.Equal(replays, []int{0, 0, 1}) || !slices.Equal(discarded, []bool{false, true, false}) {
		t.Errorf("prior replays %v, discarded %v", replays, discarded)
	}

	// by SET ROLE, as units of work do, it is the role that counts
	worker := d.login(t, "spectral_worker")
	exec(t, worker, "set role spectral_platform")
	exec(t, worker, "select set_config('spectral.workspace_id', $1, false)", mine.UUID.String())
	if have, err := failures(t, worker, "'platform'"); err != nil || !slices.Equal(have, []uuid.UUID{of[5].id}) {
		t.Errorf("platform's own: %v, %v", have, err)
	}
	for arguments, code := range map[string]string{
		"'worlds'":             "SP017",
		"'core'":               "SP017",
		"'moon'":               "SP003",
		"null":                 "SP003",
		"'platform', 0":        "SP030",
		"'platform', 1001":     "SP030",
		"'platform', null":     "SP030",
		"'platform', 1, now()": "SP030",
		"'platform', 1, null, '" + other.UUID.String() + "'": "SP030",
	} {
		if _, err := failures(t, worker, arguments); sqlstate(t, err) != code {
			t.Errorf("(%s): %v, want %s", arguments, err, code)
		}
	}
	for name, conn := range map[string]*pgx.Conn{"an operator": d.login(t, admin.Role), "a worker": d.login(t, "spectral_worker")} {
		if _, err := failures(t, conn, "'worlds'"); sqlstate(t, err) != denied {
			t.Errorf("%s calls it: %v", name, err)
		}
	}
	if _, err := producer.Exec(deadline(t), "select from core.outbox"); sqlstate(t, err) != denied {
		t.Errorf("a producer reads the outbox: %v", err)
	}
}

// What a page has in memory is bounded, and nothing is lost by that.
func TestFailuresWithLargePayloads(t *testing.T) {
	t.Parallel()
	d := setup(t)
	exec(t, d.admin, "alter table core.outbox disable trigger outbox_notify")
	exec(t, d.admin, `insert into core.outbox (event_type, event_version, source, content_class, generation, payload, idempotency_key, status, claimed_at)
		select 'a.b', 1, 'worlds', 'operational', 1, jsonb_build_object('a', repeat('x', 1000000)), i::text, 'failed', now() + i * interval '1 second'
		from generate_series(1, 20) i`)
	producer := d.login(t, "spectral_worlds")
	var failedAt, occurredAt *string
	var id *uuid.UUID
	pages, total := []int{}, 0
	for total < 20 {
		var n int
		if err := producer.QueryRow(deadline(t), `select failed_at::text, event_id, occurred_at::text, count(*) over ()
			from core.outbox_failures('worlds', 100, $1, $2, $3) order by failed_at limit 1`, failedAt, id, occurredAt).
			Scan(&failedAt, &id, &occurredAt, &n); err != nil {
			t.Fatal(err)
		}
		pages, total = append(pages, n), total+n
	}
	if total != 20 || pages[0] != 17 {
		t.Errorf("pages of %v failures, want 17 MB at first and 20 in all", pages)
	}
}

// What is known of an event is told handler by handler, also where a hand has written nonsense.
func TestShowTellsOfEachHandler(t *testing.T) {
	t.Parallel()
	d := setup(t)
	worlds := "worlds"
	another := uuid.New()
	at := time.Now().Truncate(time.Microsecond)
	failed := letter{
		id: uuid.Must(uuid.NewV7()), target: worlds, status: "failed", created: at, key: "k", attempts: 3, crashes: 1, lastError: "E: worlds.parked: x",
		channel: "outbox_gen_1_slow", payload: `{"n": 1.50}`,
		handlerFailures: `{"worlds.parked": {"failures": 6, "parked": true, "class": "E", "error": "x"}, "worlds.failing": {"failures": 1, "free": 2, "class": "E", "error": "y"}, "by hand": [1], "odd": {"failures": 1.5, "free": "x"}}`,
		history:         `[{"cycle": 1, "replayed_at": "2026-01-01T00:00:00Z"}, {"reaped_at": "2026-01-02T00:00:00Z"}, "odd"]`,
	}
	twin := letter{id: failed.id, occurred: at.Add(-time.Hour), created: at, status: "in_flight", key: "twin", claimedBy: "w", leasedTo: "worlds.parked"}
	d.write(t, failed, twin)
	exec(t, d.admin, `update core.outbox set claimed_at = 'infinity' where id = $1 and status = 'failed'`, failed.id)
	exec(t, d.admin, `insert into core.event_handled (handler_name, idempotency_key, event_id, event_type, content_class)
		select h, 'k', i, 'a.b', 'operational' from (values ('worlds.handled', $1::uuid), ('worlds.by_another', $2)) v(h, i)
		union all select 'worlds.other' || n, 'of another key', gen_random_uuid(), 'a.b', 'operational' from generate_series(1, 20) n`, failed.id, another)
	exec(t, d.admin, `insert into core.operator_actions (action, acted_by, event_ids, generation) values ('replay', 'ann', array[$1, $2]::uuid[], 1), ('pause', 'ann', '{}', 1)`,
		failed.id, another)
	for _, w := range []struct{ generation, handlers string }{
		{"1", `["platform.other_context", "worlds.handled", "worlds.late", "worlds.parked"]`}, {"1", `["platform.other_context", "worlds.handled", "worlds.late", "worlds.parked"]`},
		{"3", `["worlds.of_another_generation"]`},
	} {
		exec(t, d.login(t, "spectral_worker"), `select core.worker_register(gen_random_uuid(), $1, 'w', jsonb_build_object($2::text, $3::jsonb))`, w.generation, cardType, w.handlers)
	}
	all, err := d.office(t).Show(deadline(t), failed.id)
	if err != nil {
		t.Fatal(err)
	}
	if len(all) != 2 || all[0].Status != admin.InFlight || all[1].Status != admin.Failed {
		t.Fatalf("%+v, want both events of that id, by occurred_at", all)
	}
	e := all[1]
	stages := map[string]string{}
	for _, h := range e.Handlers {
		stages[h.Handler] = fmt.Sprintf("%s %d %d %s", h.Stage, h.Failures, h.Free, h.Error)
		if h.HandledAs != nil {
			stages[h.Handler] += h.HandledAs.String()
		}
	}
	if want := map[string]string{
		"by hand": "failing 0 0 [1]", "odd": "failing 0 0 ", "platform.other_context": "not_target 0 0 ", "worlds.by_another": "handled 0 0 " + another.String(),
		"worlds.failing": "failing 1 2 y", "worlds.handled": "handled 0 0 ", "worlds.late": "not_run 0 0 ", "worlds.parked": "parked 6 0 x",
	}; !reflect.DeepEqual(stages, want) {
		t.Errorf("handlers:\n%v, want\n%v", stages, want)
	}
	if e.Workers != 2 || e.PriorReplays != 1 || len(e.History) != 3 || len(e.Actions) != 1 || e.Actions[0].Events != 2 || e.Class != "slow" ||
		string(e.Payload) != `{"n": 1.50}` || e.FailedAt != nil || e.Crashes != 1 || e.Attempts != 3 || *e.Target != events.Worlds {
		t.Errorf("%+v", e)
	}
	e = all[0]
	if e.Class != events.DefaultClass || e.LeaseExpiresAt == nil || *e.ClaimedBy != "w" || *e.LeaseHandler != "worlds.parked" || len(e.Handlers) != 4 || e.Handlers[0].Stage != "to_run" {
		t.Errorf("%+v", e)
	}
	_, err = d.office(t).Show(deadline(t), another)
	_, refused := d.office(t).SelectToDiscard(deadline(t), []uuid.UUID{another})
	var missing, database *admin.RefusedError
	if !errors.As(err, &missing) || !errors.As(refused, &database) || *missing != *database {
		t.Errorf("an id that nothing has: %v, of which the database says: %v", err, refused)
	}
}
