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
	const row = `select generation, channel, content_class, status, idempotency_key = id::text, available_at = created_at
		and occurred_at = created_at, created_at between now() - interval '1 minute' and clock_timestamp(),
		substring(id::text, 15, 1) = '7', attempts = 0 and last_error is null and handler_failures = '{}'
			and claim_token is null and claimed_at is null and deleted_at is null
			and (delivered_at is null) = (status = 'pending')
		from core.outbox order by id desc limit 1`
	for _, c := range []struct{ eventType, arguments, want string }{
		{cardType, "", "3 outbox_gen_3 operational pending"},
		{cardType, ", p_generation => 4", "4 outbox_gen_4 operational pending"},
		{cardType, ", p_class => 'own', p_content_class => 'workspace'", "3 outbox_gen_3_own workspace pending"},
		{classType, "", "3 outbox_gen_3_slow operational pending"},
		{unconsumedType, "", "3 outbox_gen_3 operational delivered"},
	} {
		d.run(t, line{"worlds", "select core.outbox_publish('" + c.eventType + "', 'worlds', '{}'" + c.arguments + ")", ""},
			line{"", row, c.want + " t t t t t"})
	}

	// a caller's own key is qualified
	for workspace, scope := range map[string]string{"null": "-", "'" + key(1).String() + "'": key(1).String()} {
		d.run(t, line{"worlds", "select core.outbox_publish('{card}', 'worlds', '{}', p_workspace_id => " + workspace +
			", p_idempotency_key => 'k')", ""},
			line{"", "select idempotency_key from core.outbox order by id desc limit 1", "worlds:" + scope + ":k"})
	}
	// an event may be published again; its id is no other tenant's, whose event would be taken for handled
	many := func(workspace, want string) line {
		return line{"worlds", fmt.Sprintf(`select core.outbox_publish_many('[{"event_id": "%s", "event_type": "{card}",
			"source": "worlds", "payload": {}, "workspace_id": %s}]')`, key(7), workspace), want}
	}
	d.run(t, many("null", ""), many("null", ""), many(`"`+key(1).String()+`"`, "SP020 event_id"),
		line{"", "select count(distinct idempotency_key) || ' of ' || count(*) from core.outbox where id = '{7}'", "1 of 2"})
	rows := "select core.outbox_publish_rows(%s, null, array['{card}'], array['worlds'], array['{}'::jsonb], array[1], " +
		"null, array['{1}'::uuid], null, null, null, null, null, null)"
	for _, ids := range []string{"array['{7}'::uuid]", "array[array['{7}'::uuid]]",
		"('[0:0]={' || '{7}' || '}')::uuid[]"} {
		d.run(t, line{"worlds", fmt.Sprintf(rows, ids), "SP020 event_id"}) // however the array is numbered
	}
	exec(t, d.admin, "update core.deployments set status = 'draining' where status = 'live'")
	d.run(t, line{"worlds", "select core.outbox_publish('{card}', 'worlds', '{}')", "SP019 generation"})
}

// A row that would stop the others of its type, or every list, is refused from anyone.
func TestRowsThatWouldStopOthersAreRefused(t *testing.T) {
	t.Parallel()
	d := setup(t)
	d.run(t, line{"worlds", publishInto(1), ""})
	for _, set := range []string{"available_at = 'infinity'", "available_at = '-infinity'", "occurred_at = 'infinity'",
		"lease_seconds = 'NaN'", "lease_seconds = 'infinity'", "lease_seconds = 0", "handler_failures = '[1]'",
		"status = 'sent'", "content_class = 'other'"} {
		d.run(t, line{"", "update core.outbox set " + set, "23514"})
	}
	d.run(t, line{"", "select core.outbox_fail(id, occurred_at, available_at, 'X: y', '[1]') from core.outbox", "23514"})
}

// Two generations live side by side, and only one of them handles a type: its events must not settle unhandled because
// the other's build says so, nor the other's wait for ever, whichever version they are of.
func TestWhetherATypeIsConsumedIsTheGenerations(t *testing.T) {
	t.Parallel()
	d := setup(t)
	exec(t, d.admin, "select core.generation_announce(3), core.generation_announce(4)")
	register := func(generation, version int, consumed bool) line {
		return line{"", fmt.Sprintf(`select core.event_types_register(%d, '[{"event_type": "worlds.a", "event_version": %d,
			"source": "worlds", "content_class": "operational", "consumed": %t}]')`, generation, version, consumed), ""}
	}
	published := func(generation, version int, want string) line {
		return line{"", fmt.Sprintf(`select core.outbox_publish('worlds.a', 'worlds', '{}', p_event_version => %d,
			p_generation => %d); select status from core.outbox order by id desc limit 1`, version, generation), want}
	}
	d.run(t, register(1, 1, false), register(3, 2, true), register(4, 2, false),
		published(1, 1, "delivered"), published(3, 1, "pending"), published(3, 2, "pending"), published(4, 1, "delivered"),
		published(4, 2, "delivered"), published(1, 2, "delivered"),
		register(4, 2, true), published(4, 1, "pending")) // another build of the same generation
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
	const unknown = ` || '[{"event_type": "worlds.no.%s", "source": "worlds", "payload": {}}]'`
	_, err = conn.Exec(deadline(t), "select core.outbox_publish_many($1::text::jsonb"+fmt.Sprintf(unknown, "b")+
		" || $1::text::jsonb"+fmt.Sprintf(unknown, "a")+")", elements(many-1, null))
	if pg, ok = errors.AsType[*pgconn.PgError](err); !ok || !strings.HasPrefix(pg.Detail, "event 500 of the call: ") {
		t.Errorf("two of many are bad: %v", err)
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
		must(t, err)
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
	singly := func(n int) call {
		return do(fmt.Sprintf(`select core.outbox_publish('`+cardType+`', 'worlds', '{}')
			from generate_series(1, %d)`, n))
	}
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
		{[]call{singly(150)}, 1, 0}, {[]call{singly(80), of(80), slowly(1)}, 1, 1},
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
