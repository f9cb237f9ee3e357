package sql_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"spectral/internal/core/events"
	"spectral/tests/pgtest"
)

// numbered are n events that carry their place.
func numbered(n int) []events.Envelope {
	all := make([]events.Envelope, n)
	for i := range all {
		all[i] = card(fmt.Sprintf(`{"n":%d}`, i+1))
	}
	return all
}

// elements is the argument of core.outbox_publish_many for n events of a class.
func elements(n int, class string) string {
	all := make([]string, n)
	for i := range all {
		all[i] = fields{"payload": fmt.Sprintf(`{"n":%d}`, i+1), "class": class}.complete().element()
	}
	return "[" + strings.Join(all, ",") + "]"
}

func TestPublishDefaults(t *testing.T) {
	t.Parallel()
	d := setup(t)
	exec(t, d.admin, "select core.generation_announce(3), core.generation_announce(4), core.generation_announce(5)")
	exec(t, d.admin, "update core.deployments set status = 'draining', draining_at = now() where generation = 4")
	exec(t, d.admin, "update core.deployments set status = 'retired', retired_at = now() where generation = 5")
	conn := d.login(t, "spectral_worlds")
	type row struct {
		ID                                         uuid.UUID
		Generation                                 int64
		Channel, Class, Key, Status                string
		Due, Settled, Created, UUIDv7, NothingElse bool
	}
	read := func(id string) row {
		t.Helper()
		rows, err := d.admin.Query(deadline(t), `select id, generation, channel, content_class, idempotency_key, status,
			available_at = created_at and occurred_at = created_at, delivered_at is not null,
			created_at between now() - interval '1 minute' and clock_timestamp(), substring(id::text, 15, 1) = '7',
			attempts = 0 and last_error is null and handler_failures = '{}' and claim_token is null and claimed_at is null
				and deleted_at is null
			from core.outbox where id = $1::text::uuid`, id)
		if err != nil {
			t.Fatal(err)
		}
		r, err := pgx.CollectExactlyOneRow(rows, pgx.RowToStructByPos[row])
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	for _, c := range []struct {
		eventType, arguments string
		want                 row
	}{
		{cardType, "", row{Generation: 3, Channel: "outbox_gen_3", Class: "operational", Status: "pending"}},
		{cardType, ", p_generation => 4",
			row{Generation: 4, Channel: "outbox_gen_4", Class: "operational", Status: "pending"}},
		{cardType, ", p_class => 'own', p_content_class => 'workspace'",
			row{Generation: 3, Channel: "outbox_gen_3_own", Class: "workspace", Status: "pending"}},
		{classType, "", row{Generation: 3, Channel: "outbox_gen_3_slow", Class: "operational", Status: "pending"}},
		{unconsumedType, "", row{Generation: 3, Channel: "outbox_gen_3", Class: "operational", Status: "delivered",
			Settled: true}},
	} {
		id := value[string](t, conn, "select core.outbox_publish($1, 'worlds', '{}'"+c.arguments+")::text", c.eventType)
		want := c.want
		want.ID, want.Key, want.Due, want.Created, want.UUIDv7, want.NothingElse = uuid.MustParse(id), id, true, true, true,
			true
		if have := read(id); have != want {
			t.Errorf("%s%s is stored as\n%+v, want\n%+v", c.eventType, c.arguments, have, want)
		}
	}

	// a caller's own key is qualified; conformance shows the same of Go
	workspace := uuid.New()
	for _, w := range []uuid.NullUUID{{}, {UUID: workspace, Valid: true}} {
		id := value[string](t, conn,
			"select core.outbox_publish($1, 'worlds', '{}', p_workspace_id => $2, p_idempotency_key => 'k')::text", cardType, w)
		want := "worlds:-:k"
		if w.Valid {
			want = "worlds:" + workspace.String() + ":k"
		}
		if have := read(id).Key; have != want {
			t.Errorf("the key is %q, want %q", have, want)
		}
	}

	exec(t, d.admin, "update core.deployments set status = 'draining' where status = 'live'")
	_, err := conn.Exec(deadline(t), "select core.outbox_publish($1, 'worlds', '{}')", cardType)
	if have := sqlstate(t, err); have != "SP019" {
		t.Errorf("publishing with no live generation: %q", have)
	}
}

// All events of a call are published or none, in the order of the call: by time-ordered ids.
func TestPublishMany(t *testing.T) {
	t.Parallel()
	const many = 500
	d := setup(t)
	conn := d.login(t, "spectral_worlds")
	_, err := conn.Exec(deadline(t), "select core.outbox_publish_many($1::text::jsonb || '[{\"event_type\":\"x\"}]')",
		elements(many-1, null))
	pg, ok := errors.AsType[*pgconn.PgError](err)
	if !ok || pg.Code != "SP001" || !strings.HasPrefix(pg.Detail, "event 500 of the call: ") || d.count(t) != 0 {
		t.Errorf("the last of many is bad: %v", err)
	}
	if err := inTx(t, conn, func(ctx context.Context, tx pgx.Tx) error {
		return d.publishing(1).Publisher(tx).Publish(ctx, numbered(many)...)
	}); err != nil {
		t.Fatal(err)
	}
	const ordered = "select count(*) from (select (payload ->> 'n')::int as n, row_number() over (order by id) as place " +
		"from core.outbox) as r where n = place"
	d.run(t, line{"", ordered, "500"}, line{"", "delete from core.outbox", ""})
	matching := `with p as (select * from unnest(core.outbox_publish_many($1::text::jsonb)) with ordinality as u(id,
		place)) select array_agg(id order by place) from p`
	ids := value[[]uuid.UUID](t, conn, matching, elements(many, null))
	if n := value[int](t, d.admin,
		"select count(*) from core.outbox o join unnest($1::uuid[]) with ordinality as u(id, place) using (id) where "+
			"(o.payload ->> 'n')::int = u.place", ids); n != many {
		t.Errorf("%d of %d ids returned are those of their events", n, many)
	}
}

// subscriber receives the notifications of a database.
type subscriber struct{ conn *pgx.Conn }

const sentinel = "test_sentinel"

func (d *database) listen(t testing.TB, channels ...string) subscriber {
	t.Helper()
	b := subscriber{pgtest.Conn(t, d.at)}
	for _, channel := range append(channels, sentinel) {
		exec(t, b.conn, "listen "+channel)
	}
	return b
}

// received counts the notifications so far by channel: those before one that it sends itself, since
// Postgres delivers in the order of commits.
func (b subscriber) received(t testing.TB, d *database) map[string]int {
	t.Helper()
	exec(t, d.admin, "select pg_notify('"+sentinel+"', '')")
	heard := map[string]int{}
	for ctx := deadline(t); ; {
		n, err := b.conn.WaitForNotification(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if n.Channel == sentinel {
			return heard
		}
		if _, err := uuid.Parse(n.Payload); err != nil {
			t.Errorf("the payload of a notification is %q, not a row's id", n.Payload)
		}
		heard[n.Channel]++
	}
}

// One notification for each channel of a commit, however many rows and calls, and none of what is undone.
func TestNotifications(t *testing.T) {
	t.Parallel()
	d := setup(t)
	conn := d.login(t, "spectral_worlds")
	const gen, slow, unconsumed = "outbox_gen_1", "outbox_gen_1_slow", -1
	b := d.listen(t, gen, slow, events.DefaultChannel)
	type call struct {
		n    int // events; unconsumed, or 0 for SQL
		what string
	}
	of := func(n int) call { return call{n, null} }
	slowly := func(n int) call { return call{n, "slow"} }
	do := func(sql string) call { return call{0, sql} }
	for _, c := range []struct {
		calls     []call
		gen, slow int
	}{
		{[]call{of(1)}, 1, 0}, {[]call{of(100)}, 1, 0}, {[]call{of(101)}, 1, 0}, {[]call{of(60), of(60), of(1)}, 1, 0},
		{[]call{of(50), slowly(50)}, 1, 1}, {[]call{of(150), slowly(150)}, 1, 1}, {[]call{slowly(3), of(150)}, 1, 1},
		{[]call{of(60), slowly(60), of(60), slowly(60)}, 1, 1},
		{[]call{of(3), do("rollback; begin")}, 0, 0}, {[]call{of(300), do("rollback; begin")}, 0, 0},
		{[]call{do("savepoint s"), of(3), do("rollback to s")}, 0, 0},
		{[]call{do("savepoint s"), of(300), do("rollback to s"), of(1)}, 1, 0},
		{[]call{do("savepoint s"), of(300), do("rollback to s"), slowly(200)}, 0, 1},
		{[]call{of(80), do("savepoint s"), of(80), do("rollback to s")}, 1, 0}, {[]call{{unconsumed, ""}}, 0, 0},
	} {
		exec(t, conn, "begin")
		for _, call := range c.calls {
			switch call.n {
			case 0:
				exec(t, conn, call.what)
			case unconsumed:
				exec(t, conn, "select core.outbox_publish($1, 'worlds', '{}')", unconsumedType)
			default:
				exec(t, conn, "select core.outbox_publish_many($1::text::jsonb)", elements(call.n, call.what))
			}
		}
		exec(t, conn, "commit")
		if heard := b.received(t, d); heard[gen] != c.gen || heard[slow] != c.slow || heard[events.DefaultChannel] != 0 {
			t.Errorf("%+v: notified %v, want %d and %d", c.calls, heard, c.gen, c.slow)
		}
	}
}
