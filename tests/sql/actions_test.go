package sql_test

import (
	"errors"
	"os"
	"regexp"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"

	"spectral/db"
	"spectral/internal/core/events"
	"spectral/internal/core/events/infrastructure/postgres/admin"
	"spectral/tests/pgtest"
)

// acts writes n actions by hand, seven in each second, each on an event of its own.
func (d *database) acts(t testing.TB, n int) {
	t.Helper()
	exec(t, d.admin, `insert into core.operator_actions (acted_at, action, acted_by, login, event_ids, generation)
		select now() - make_interval(secs => i / 7), case i % 2 when 0 then 'replay' else 'discard' end, 'ann', 'shared',
			array[lpad(to_hex(i), 32, '0')::uuid], 1 + i % 3
		from generate_series(1, $1) i`, n)
}

// Through all pages each action comes once, the latest first, also of those of one moment; and a cursor goes with its filter.
func TestPagesOfActions(t *testing.T) {
	t.Parallel()
	d := setup(t)
	d.acts(t, 60)
	office := d.office(t)
	filter := admin.ActionFilter{Actions: []string{"replay"}, By: []string{"shared"}}
	seen, last, after := make(map[uuid.UUID]bool), time.Time{}, ""
	for {
		found, err := office.Actions(deadline(t), filter, admin.Page{Limit: 4, After: after, EventIDs: true})
		if err != nil || len(found.Actions) == 0 {
			t.Fatalf("%d actions after %d: %v", len(found.Actions), len(seen), err)
		}
		for _, a := range found.Actions {
			if seen[a.ID] || a.Action != "replay" || len(a.EventIDs) != 1 || a.Events != 1 || !last.IsZero() && a.ActedAt.After(last) {
				t.Errorf("behind %s: %+v", last, a)
			}
			seen[a.ID], last = true, a.ActedAt
		}
		if after = found.Next; after == "" {
			break
		}
		filter.Generations = []events.Generation{1}
		if _, err := office.Actions(deadline(t), filter, admin.Page{Limit: 4, After: after}); !errors.Is(err, admin.ErrCursor) {
			t.Errorf("a cursor of another filter: %v", err)
		}
		filter.Generations = nil
	}
	if len(seen) != 30 {
		t.Errorf("%d actions, want 30", len(seen))
	}
}

// A page costs what it has, and so does asking about an event, however much operators did and whatever the server knows of that.
func TestPagesOfManyActions(t *testing.T) {
	t.Parallel()
	d := setupNew(t)
	exec(t, d.admin, "analyze core.operator_actions")
	d.acts(t, 10000)
	for _, known := range []bool{false, true} {
		if known {
			exec(t, d.admin, "vacuum analyze core.operator_actions")
		}
		for name, filter := range map[string]admin.ActionFilter{
			"all": {}, "recent": {NewerThan: time.Minute, Generations: []events.Generation{1}}, "common": {Actions: []string{"discard"}},
			"of an event": {Events: []uuid.UUID{uuid.MustParse("00000000-0000-0000-0000-00000000270f")}},
		} {
			at := pgtest.Login(t, d.at, admin.Role)
			pool := pgtest.Pool(t, at)
			read := "select (s.seq_tup_read + s.idx_tup_fetch)::int from pg_stat_user_tables s where s.relid = 'core.operator_actions'::regclass"
			exec(t, d.admin, "select pg_stat_force_next_flush()")
			before := value[int](t, d.admin, read)
			found, err := admin.New(pool).Actions(deadline(t), filter, admin.Page{Limit: 50})
			if err != nil || len(found.Actions) == 0 {
				t.Fatalf("%s: %+v, %v", name, found, err)
			}
			if name == "all" {
				if _, err := admin.New(pool).Actions(deadline(t), filter, admin.Page{Limit: 50, After: found.Next}); err != nil {
					t.Fatal(err)
				}
			}
			pool.Close() // a session that ends flushes what it counted
			waitFor(t, d.admin, "select not exists (select from pg_stat_activity where datname = current_database() and usename = '"+loginOf(t, at)+"')")
			if n := value[int](t, d.admin, read) - before; n > 700 {
				t.Errorf("%s, statistics %t: %d rows were read of 10000", name, known, n)
			}
		}
	}
}

// The words that a command completes with are those that the functions write.
func TestActionNames(t *testing.T) {
	t.Parallel()
	names, err := db.Migrations.ReadDir("migrations")
	if err != nil {
		t.Fatal(err)
	}
	written := []string{}
	for _, name := range names {
		text, err := os.ReadFile("../../db/migrations/" + name.Name())
		if err != nil {
			t.Fatal(err)
		}
		for _, found := range regexp.MustCompile(`operator_action\('([a-z_]+)'`).FindAllSubmatch(text, -1) {
			written = append(written, string(found[1]))
		}
	}
	slices.Sort(written)
	if have := slices.Sorted(slices.Values(admin.ActionNames())); !slices.Equal(have, slices.Compact(written)) {
		t.Errorf("%q, but the functions write %q", have, written)
	}
}

// Where nobody is named the login is, in the history of an event as well.
func TestTheLoginActs(t *testing.T) {
	t.Parallel()
	d := setup(t)
	ctx := deadline(t)
	exec(t, d.admin, `insert into core.outbox (event_type, event_version, source, content_class, generation, payload, idempotency_key, status, attempts, last_error, claimed_at)
		values ('a.b', 1, 'worlds', 'operational', 1, '{}', 'k', 'failed', 6, 'E: a.b: no', now() - interval '1 minute')`)
	at := pgtest.Login(t, d.at, admin.Role)
	office := admin.New(pgtest.Pool(t, at))
	for _, act := range []func(admin.Selection) (admin.Acted, error){
		func(s admin.Selection) (admin.Acted, error) { return office.Discard(ctx, s, "", "", admin.Pace{}) },
		func(s admin.Selection) (admin.Acted, error) { return office.Undiscard(ctx, s, "", admin.Pace{}) },
		func(s admin.Selection) (admin.Acted, error) {
			return office.Replay(ctx, s, 1, "", false, admin.Pace{})
		},
	} {
		s, err := office.Select(ctx, admin.Filter{Statuses: []admin.Status{admin.Failed, admin.Discarded}}, 0)
		if err != nil {
			t.Fatal(err)
		}
		if acted, err := act(s); err != nil || acted.Done != 1 {
			t.Fatalf("%+v, %v", acted, err)
		}
	}
	// by SQL as well
	exec(t, d.admin, "update core.outbox set status = 'failed', claimed_at = now()")
	id := value[uuid.UUID](t, d.admin, "select id from core.outbox")
	conn := pgtest.Conn(t, at)
	for _, act := range []string{"select core.outbox_discard($1, null)", "select core.outbox_undiscard($1, null)", "select core.outbox_replay($1, 1)"} {
		exec(t, conn, act, id)
	}
	names := values[string](t, d.admin, `select coalesce(h ->> 'discarded_by', h ->> 'undiscarded_by', h ->> 'replayed_by', '-')
		from core.outbox o cross join lateral jsonb_array_elements(o.failure_history) h`)
	if login := loginOf(t, at); !slices.Equal(names, slices.Repeat([]string{login}, 6)) {
		t.Errorf("they are %q, want %q", names, login)
	}
}
