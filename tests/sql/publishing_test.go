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
			attempts = 0 and last_error is null and handler_failures = '{}' and claim_token is null and claimed_at is null and deleted_at is null
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
		{cardType, ", p_generation => 4", row{Generation: 4, Channel: "outbox_gen_4", Class: "operational", Status: "pending"}},
		{cardType, ", p_class => 'own', p_content_class => 'workspace'", row{Generation: 3, Channel: "outbox_gen_3_own", Class: "workspace", Status: "pending"}},
		{classType, "", row{Generation: 3, Channel: "outbox_gen_3_slow", Class: "operational", Status: "pending"}},
		{unconsumedType, "", row{Generation: 3, Channel: "outbox_gen_3", Class: "operational", Status: "delivered", Settled: true}},
	} {
		id := value[string](t, conn, "select core.outbox_publish($1, 'worlds', '{}'"+c.arguments+")::text", c.eventType)
		want := c.want
		want.ID, want.Key, want.Due, want.Created, want.UUIDv7, want.NothingElse = uuid.MustParse(id), id, true, true, true, true
		if have := read(id); have != want {
			t.Errorf("%s%s is stored as\n%+v, want\n%+v", c.eventType, c.arguments, have, want)
		}
	}

	// a caller's own key is qualified; conformance shows the same of Go
	workspace := uuid.New()
	for _, w := range []uuid.NullUUID{{}, {UUID: workspace, Valid: true}} {
		id := value[string](t, conn, "select core.outbox_publish($1, 'worlds', '{}', p_workspace_id => $2, p_idempotency_key => 'k')::text", cardType, w)
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

func TestPublishMany(t *testing.T) {
	t.Parallel()
	const many = 500
	d := setup(t)
	conn := d.login(t, "spectral_worlds")
	publish := func(envelopes []events.Envelope) error {
		return inTx(t, conn, func(ctx context.Context, tx pgx.Tx) error {
			return d.publishing(1).Publisher(tx).Publish(ctx, envelopes...)
		})
	}
	bad := numbered(many)
	bad[many-1].Payload = []byte("[]")
	var refusal *events.Refusal
	if err := publish(bad); !errors.As(err, &refusal) || refusal.Code != "SP005" || !strings.Contains(err.Error(), "event 500 of 500") {
		t.Errorf("the last of many is bad: %v", err)
	}
	_, err := conn.Exec(deadline(t), "select core.outbox_publish_many($1::text::jsonb || '[{\"event_type\":\"x\"}]')", elements(many-1, null))
	var pg *pgconn.PgError
	if !errors.As(err, &pg) || pg.Code != "SP001" || pg.Detail != "event 500 of the call" {
		t.Errorf("the last of many is bad, in SQL: %v", err)
	}
	if n := d.count(t); n != 0 {
		t.Fatalf("%d events of refused calls were published", n)
	}

	// ids are time-ordered, and come back in the order of the call
	if err := publish(numbered(many)); err != nil {
		t.Fatal(err)
	}
	ordered := value[int](t, d.admin, "select count(*) from (select (payload ->> 'n')::int as n, row_number() over (order by id) as place from core.outbox) as r where n = place")
	if ordered != many {
		t.Errorf("%d of %d ids are in the order of the events", ordered, many)
	}
	exec(t, d.admin, "delete from core.outbox")
	ids := values[uuid.UUID](t, conn, "select id from unnest(core.outbox_publish_many($1::text::jsonb)) with ordinality as u(id, place) order by place", elements(many, null))
	if len(ids) != many {
		t.Fatalf("%d ids, want %d", len(ids), many)
	}
	matching := value[int](t, d.admin, `select count(*) from core.outbox o join unnest($1::uuid[]) with ordinality as u(id, place) using (id)
		where (o.payload ->> 'n')::int = u.place`, ids)
	if matching != many {
		t.Errorf("%d of %d ids returned are those of their events", matching, many)
	}
	if err := publish(nil); err != nil {
		t.Errorf("publishing nothing: %v", err)
	}
	if n := d.count(t); n != many {
		t.Errorf("%d events, want %d", n, many)
	}
}

var errUndo = errors.New("undo")

// bell hears what a database's notifications say.
type bell struct{ conn *pgx.Conn }

const sentinel = "test_sentinel"

func (d *database) listen(t testing.TB, channels ...string) bell {
	t.Helper()
	b := bell{pgtest.Conn(t, d.at)}
	for _, channel := range append(channels, sentinel) {
		exec(t, b.conn, "listen "+channel)
	}
	return b
}

// heard counts the notifications so far by channel: those before one that it sends itself, since
// Postgres delivers in the order of commits.
func (b bell) heard(t testing.TB, d *database) map[string]int {
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

func TestNotifications(t *testing.T) {
	t.Parallel()
	d := setup(t)
	conn := d.login(t, "spectral_worlds")
	const gen, slow = "outbox_gen_1", "outbox_gen_1_slow"
	b := d.listen(t, gen, slow, events.DefaultChannel)
	publish := func(class string, numbers ...int) func(ctx context.Context, tx pgx.Tx) error {
		return func(ctx context.Context, tx pgx.Tx) error {
			for _, n := range numbers {
				if _, err := tx.Exec(ctx, "select core.outbox_publish_many($1::text::jsonb)", elements(n, class)); err != nil {
					return err
				}
			}
			return nil
		}
	}
	both := func(works ...func(ctx context.Context, tx pgx.Tx) error) func(ctx context.Context, tx pgx.Tx) error {
		return func(ctx context.Context, tx pgx.Tx) error {
			for _, work := range works {
				if err := work(ctx, tx); err != nil {
					return err
				}
			}
			return nil
		}
	}
	savepoint := func(work func(ctx context.Context, tx pgx.Tx) error) func(ctx context.Context, tx pgx.Tx) error {
		return func(ctx context.Context, tx pgx.Tx) error {
			err := pgx.BeginFunc(ctx, tx, func(tx pgx.Tx) error { return errors.Join(work(ctx, tx), errUndo) })
			if errors.Is(err, errUndo) {
				return nil
			}
			return err
		}
	}
	undo := func(context.Context, pgx.Tx) error { return errUndo }
	fromGo := func(ctx context.Context, tx pgx.Tx) error {
		return d.publishing(1).Publisher(tx).Publish(ctx, numbered(1100)...)
	}
	unconsumed := func(ctx context.Context, tx pgx.Tx) error {
		_, err := tx.Exec(ctx, "select core.outbox_publish($1, 'worlds', '{}')", unconsumedType)
		return err
	}
	for _, c := range []struct {
		name      string
		work      func(ctx context.Context, tx pgx.Tx) error
		gen, slow int
	}{
		{"1 row", publish(null, 1), 1, 0},
		{"2 rows", publish(null, 2), 1, 0},
		{"100 rows", publish(null, 100), 1, 0},
		{"101 rows", publish(null, 101), 1, 0},
		{"250 rows", publish(null, 250), 1, 0},
		{"several calls", publish(null, 60, 60, 1), 1, 0},
		{"1,100 rows from Go", fromGo, 1, 0},
		{"two channels", both(publish(null, 50), publish("slow", 50)), 1, 1},
		{"two channels in bulk", both(publish(null, 150), publish("slow", 150)), 1, 1},
		{"two channels, one of them in bulk", both(publish("slow", 3), publish(null, 150)), 1, 1},
		{"two channels in turns", both(publish(null, 60), publish("slow", 60), publish(null, 60), publish("slow", 60)), 1, 1},
		{"rolled back", both(publish(null, 3), undo), 0, 0},
		{"rolled back in bulk", both(publish(null, 300), undo), 0, 0},
		{"a savepoint rolled back", savepoint(publish(null, 3)), 0, 0},
		{"a savepoint rolled back in bulk, then a row", both(savepoint(publish(null, 300)), publish(null, 1)), 1, 0},
		{"a savepoint rolled back in bulk, then another channel", both(savepoint(publish(null, 300)), publish("slow", 200)), 0, 1},
		{"rows, then a savepoint rolled back in bulk", both(publish(null, 80), savepoint(publish(null, 80))), 1, 0},
		{"an event without consumer", unconsumed, 0, 0},
	} {
		before := d.count(t)
		if err := inTx(t, conn, c.work); err != nil && !errors.Is(err, errUndo) {
			t.Fatalf("%s: %v", c.name, err)
		}
		if published := d.count(t) - before; published > 0 && c.gen+c.slow == 0 && c.name != "an event without consumer" {
			t.Errorf("%s: %d events are published", c.name, published)
		}
		heard := b.heard(t, d)
		if heard[gen] != c.gen || heard[slow] != c.slow || heard[events.DefaultChannel] != 0 {
			t.Errorf("%s: heard %v, want %d and %d", c.name, heard, c.gen, c.slow)
		}
	}
}
