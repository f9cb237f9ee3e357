package database_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"spectral/tests/pgtest"
)

// refuses runs a statement that must be refused with a code and a field, and returns the detail.
func refuses(t testing.TB, q querier, code, field, sql string, arguments ...any) string {
	t.Helper()
	_, err := q.Exec(deadline(t), sql, arguments...)
	if have := sqlstate(t, err); have != code {
		t.Fatalf("%s: answer %q, want %q: %v", sql, have, code, err)
	}
	pg := err.(*pgconn.PgError) //nolint:errorlint // sqlstate has seen that it is one
	if field != "" && pg.ColumnName != field {
		t.Errorf("%s: refused for field %q, want %q", sql, pg.ColumnName, field)
	}
	if strings.HasPrefix(code, "SP") && code != "SP030" && pg.Hint == "" && !strings.Contains(pg.Message, "must be a number") {
		t.Errorf("%s: the refusal has no hint", sql)
	}
	return pg.Detail
}

// actions are those that were noted, with by whom, the generation and the details.
func (d database) generationActions(t testing.TB) []string {
	t.Helper()
	return values[string](t, d.admin, "select concat_ws(' ', action, acted_by, generation, details) from core.operator_actions order by acted_at, id")
}

func (d database) wantActions(t testing.TB, want ...string) {
	t.Helper()
	if have := d.generationActions(t); !slices.Equal(have, want) {
		t.Errorf("actions are\n%s\nwant\n%s", strings.Join(have, "\n"), strings.Join(want, "\n"))
	}
}

func (d database) status(t testing.TB, generation int) string {
	t.Helper()
	return value[string](t, d.admin, "select coalesce((select status from core.generation_status($1)), 'none')", generation)
}

const publishCard = `select core.outbox_publish('worlds.world_model_card.published', 'worlds', '{"card_id": "c", "version": 1, "title": "t"}', p_generation => %s)`

// publishInto is SQL that publishes a card into a generation.
func publishInto(generation any) string { return fmt.Sprintf(publishCard, fmt.Sprint(generation)) }

func TestAnOperatorRegistersAGeneration(t *testing.T) {
	t.Parallel()
	d := setup(t)
	operator, worker := d.login(t, "spectral_operator"), d.login(t, "spectral_worker")
	exec(t, worker, "set role spectral_worker")
	register := func(generation int) {
		t.Helper()
		if status := value[string](t, operator, "select core.generation_register($1, 'ann')", generation); status != "live" || d.status(t, generation) != "live" {
			t.Errorf("generation %d is %s, %s", generation, status, d.status(t, generation))
		}
	}
	register(7)
	register(7)
	exec(t, operator, "select core.generation_drain(7)")
	// a worker that starts lets a draining one drain
	if status := value[string](t, worker, "select core.generation_announce(7)"); status != "draining" || d.status(t, 7) != "draining" {
		t.Errorf("a worker's start makes a draining generation %s", status)
	}
	register(7)
	if value[bool](t, d.admin, "select draining_at is not null from core.deployments where generation = 7") {
		t.Error("live again, it is draining since")
	}
	refuses(t, operator, "SP019", "generation", "select core.generation_register(2, 'ann')")
	refuses(t, operator, "SP019", "generation", "select core.generation_register(0, 'ann')")
	refuses(t, operator, "SP019", "generation", "select core.generation_register(null, 'ann')")
	refuses(t, operator, "SP030", "acted_by", "select core.generation_register(8, ' ')")
	refuses(t, worker, denied, "", "select core.generation_register(8, 'ann')")
	refuses(t, operator, denied, "", "select core.generation_announce(8)") // the workers' form, which notes no action
	for _, call := range []string{"generation_drain(7)", "generation_retire(7)", "outbox_adopt(1, 7)", "outbox_adoptable(1, 7)", "generation_status()"} {
		refuses(t, worker, denied, "", "select core."+call)
	}
	for _, internal := range []string{"generation_open(7, true)", "generation_left(7)", "adoption_check(1, 7, true)", "transactions_below(null)"} {
		refuses(t, operator, denied, "", "select core."+internal)
	}
	login := value[string](t, operator, "select session_user::text")
	d.wantActions(t, "generation_register ann 7 {}", "generation_drain "+login+" 7 {}", `generation_register ann 7 {"was": "draining"}`)
}

func TestDrain(t *testing.T) {
	t.Parallel()
	d := setup(t)
	operator, publisher := d.login(t, "spectral_operator"), d.login(t, "spectral_worlds")
	goes := func() int {
		t.Helper()
		id := value[string](t, publisher, publishInto("null")+"::text")
		return value[int](t, d.admin, "select generation from core.outbox where id = $1", id)
	}
	only := refuses(t, operator, "SP041", "generation", "select core.generation_drain(1, 'ann')")
	if !strings.Contains(only, "publishing from SQL that names no generation is refused") {
		t.Errorf("the refusal does not say what would happen: %s", only)
	}
	exec(t, operator, "select core.generation_register(3, 'ann')")
	if g := goes(); g != 3 {
		t.Errorf("publishing goes to %d", g)
	}
	for range 2 {
		if status := value[string](t, operator, "select core.generation_drain(3, 'ann')"); status != "draining" {
			t.Errorf("drained it is %s", status)
		}
	}
	if g := goes(); g != 1 {
		t.Errorf("while 3 drains publishing goes to %d", g)
	}
	exec(t, publisher, publishInto(3)) // its own producers run on
	refuses(t, operator, "SP019", "generation", "select core.generation_drain(2)")
	refuses(t, operator, "SP019", "generation", "select core.generation_drain(99)")
	refuses(t, operator, "SP019", "generation", "select core.generation_drain(null)")
	refuses(t, operator, "SP041", "generation", "select core.generation_drain(1)")
	exec(t, operator, "select core.generation_drain(1, 'ann', p_force => true)")
	refuses(t, publisher, "SP019", "generation", publishInto("null"))
	d.wantActions(t, "generation_register ann 3 {}", "generation_drain ann 3 {}", `generation_drain ann 1 {"forced": true}`)
}

// Events may name a generation that is not registered: those who come to finish them must not make it live.
func TestDrainOfWhatIsNotRegistered(t *testing.T) {
	t.Parallel()
	d := setup(t)
	operator, publisher := d.login(t, "spectral_operator"), d.login(t, "spectral_worlds")
	exec(t, publisher, publishInto(1))
	exec(t, d.admin, "update core.outbox set generation = 9, channel = 'outbox_gen_9'")
	for range 2 {
		if status := value[string](t, operator, "select core.generation_drain(9, 'ann')"); status != "draining" {
			t.Errorf("it is %s", status)
		}
	}
	exec(t, d.login(t, "spectral_worker"), "select core.generation_announce(9)")
	if status := d.status(t, 9); status != "draining" {
		t.Errorf("with a worker it is %s", status)
	}
	exec(t, publisher, publishInto("null"))
	if n := value[int](t, d.admin, "select count(*) from core.outbox where generation = 1"); n != 1 {
		t.Errorf("%d events went to the live generation", n)
	}
	d.wantActions(t, `generation_drain ann 9 {"was": "not registered"}`)
}

// Of two live generations that are drained at once, one stays.
func TestTwoDrainsAtOnce(t *testing.T) {
	t.Parallel()
	d := setup(t)
	exec(t, d.admin, "select core.generation_announce(3)")
	first, second := begin(t, d.login(t, "spectral_operator")), d.login(t, "spectral_operator")
	exec(t, first, "select core.generation_drain(3)")
	drained := make(chan error, 1)
	ctx := deadline(t)
	go func() {
		_, err := second.Exec(ctx, "select core.generation_drain(1)")
		drained <- err
	}()
	waitFor(t, d.admin, fmt.Sprintf("select cardinality(pg_blocking_pids(%d)) > 0", second.PgConn().PID()))
	if err := first.Commit(ctx); err != nil {
		t.Fatal(err)
	}
	if have := sqlstate(t, <-drained); have != "SP041" {
		t.Errorf("the second is answered with %q", have)
	}
}

func TestGenerationStatus(t *testing.T) {
	t.Parallel()
	d := setup(t)
	d.rows(t, 12, "")
	exec(t, d.admin, "select core.generation_announce(3)")
	// 1: two due, one in flight, two failed, one of them discarded; 5: known of by its events alone; 6: settled only
	d.alter(t, 3, "status = 'in_flight', claim_token = gen_random_uuid(), claimed_at = now()")
	d.alter(t, 4, "status = 'failed'")
	d.alter(t, 5, "status = 'failed', deleted_at = now()")
	for _, n := range []int{6, 7, 8} {
		d.alter(t, n, "generation = 5, available_at = now() + make_interval(hours => "+fmt.Sprint(n)+")")
	}
	d.alter(t, 9, "generation = 6, status = 'delivered'")
	d.alter(t, 10, "generation = 7, status = 'in_flight', claim_token = gen_random_uuid(), claimed_at = now()")
	d.alter(t, 11, "generation = 8, status = 'failed'")
	d.alter(t, 12, "status = 'delivered'")
	worker := d.login(t, "spectral_worker")
	exec(t, worker, "set role spectral_worker; select core.worker_register(gen_random_uuid(), 1, 'here', '{}')")
	gone := d.login(t, "spectral_worker")
	exec(t, gone, "set role spectral_worker; select core.worker_register(gen_random_uuid(), 1, 'gone', '{}')")
	exec(t, gone, "select pg_advisory_unlock_all()")

	operator := begin(t, d.login(t, "spectral_operator"))
	type line struct {
		Generation                       int
		Status                           string
		Due, Scheduled, InFlight, Failed int
		Workers                          int
		Default                          bool
	}
	const columns = "select generation, status, due, scheduled, in_flight, failed, workers, publishing_default from core.generation_status"
	read := func(call string) []line {
		t.Helper()
		rows, err := operator.Query(deadline(t), columns+call)
		if err != nil {
			t.Fatal(err)
		}
		all, err := pgx.CollectRows(rows, pgx.RowToStructByPos[line])
		if err != nil {
			t.Fatal(err)
		}
		return all
	}
	want := []line{
		{1, "live", 2, 0, 1, 1, 1, false}, {2, "retired", 0, 0, 0, 0, 0, false}, {3, "live", 0, 0, 0, 0, 0, true},
		{5, "unknown", 0, 3, 0, 0, 0, false}, {7, "unknown", 0, 0, 1, 0, 0, false}, {8, "unknown", 0, 0, 0, 1, 0, false},
	}
	if have := read("()"); !reflect.DeepEqual(have, want) {
		t.Errorf("status is\n%v, want\n%v", have, want)
	}
	for _, w := range want {
		if have := read(fmt.Sprintf("(%d)", w.Generation)); !reflect.DeepEqual(have, []line{w}) {
			t.Errorf("status of %d is %v, want %v", w.Generation, have, w)
		}
	}
	if have := read("(6)"); len(have) != 0 {
		t.Errorf("settled events make a generation known: %v", have)
	}
	// what was tried of the workers' locks is given back
	if n := value[int](t, operator, "select count(*) from pg_locks where pid = pg_backend_pid() and locktype = 'advisory'"); n != 0 {
		t.Errorf("%d locks of workers are held", n)
	}
	if !value[bool](t, operator, `select s.next_scheduled = (select min(available_at) from core.outbox where generation = 5)
		and s.last_scheduled = (select max(available_at) from core.outbox where generation = 5) and s.oldest_due is null from core.generation_status(5) s`) {
		t.Error("the times of what is scheduled are others")
	}
	if !value[bool](t, operator, `select s.oldest_due = (select available_at from core.outbox where id = $1) and s.next_scheduled is null
		from core.generation_status(1) s`, key(1)) {
		t.Error("the time of the oldest due one is another")
	}

	type backlog struct {
		EventType                         string
		Due, Scheduled, InFlight, Workers int
	}
	exec(t, d.admin, "update core.workers set handlers = '{\"worlds.world_model_card.published\": [\"a.b\"]}'")
	other := d.login(t, "spectral_worker") // a session has its own locks for the asking
	exec(t, other, "set role spectral_worker")
	for generation, want := range map[int][]backlog{
		1: {{cardType, 2, 0, 1, 1}}, 3: {}, 5: {{cardType, 0, 3, 0, 0}}, 7: {{cardType, 0, 0, 1, 0}}, 8: {},
	} {
		rows, err := other.Query(deadline(t), "select event_type, due, scheduled, in_flight, workers from core.generation_backlog($1)", generation)
		if err != nil {
			t.Fatal(err)
		}
		if have, err := pgx.CollectRows(rows, pgx.RowToStructByPos[backlog]); err != nil || !slices.Equal(have, want) {
			t.Errorf("backlog of %d is %v, want %v, %v", generation, have, want, err)
		}
	}
}

// retire calls once.
func retire(t testing.TB, q querier) string {
	t.Helper()
	return value[string](t, q, "select core.generation_retire(3, 'ann')")
}

// retireUntil calls until the answer begins so; transactions of other tests are waited for as well.
func retireUntil(t testing.TB, q querier, want string) string {
	t.Helper()
	for ctx := deadline(t); ; {
		answer := retire(t, q)
		if strings.HasPrefix(answer, want) {
			return answer
		}
		if !strings.HasPrefix(answer, "waiting") && !strings.HasPrefix(answer, "closing") || ctx.Err() != nil {
			t.Fatalf("retiring answers %q, want %q", answer, want)
		}
	}
}

// wantWaiting calls until the publisher is what is waited for; transactions of other tests may be waited for beside it.
func wantWaiting(t testing.TB, q querier, publisher *pgx.Conn) {
	t.Helper()
	for ctx := deadline(t); ; {
		answer := retire(t, q)
		if strings.Contains(answer, fmt.Sprintf("pid %d of ", publisher.PgConn().PID())) {
			return
		}
		if !strings.HasPrefix(answer, "waiting: for ") || ctx.Err() != nil {
			t.Fatalf("retiring beside a publisher answers %q", answer)
		}
	}
}

// draining is setup with a generation 3 that drains.
func draining(t *testing.T) (database, *pgx.Conn) {
	t.Helper()
	t.Parallel()
	d := setup(t)
	operator := d.login(t, "spectral_operator")
	exec(t, d.admin, "select core.generation_announce(3), core.generation_drain(3, 'ann')")
	exec(t, d.admin, "delete from core.operator_actions")
	return d, operator
}

func TestRetire(t *testing.T) {
	d, operator := draining(t)
	publisher := d.login(t, "spectral_worlds")
	refuses(t, operator, "SP040", "generation", "select core.generation_retire(1)")
	refuses(t, operator, "SP019", "generation", "select core.generation_retire(99)")
	refuses(t, operator, "SP019", "generation", "select core.generation_retire(null)")
	for _, level := range []string{"repeatable read", "serializable"} {
		exec(t, operator, "begin isolation level "+level)
		refuses(t, operator, "SP043", "", "select core.generation_retire(3)")
		exec(t, operator, "rollback")
	}
	// what is left is named, and changes nothing
	d.rows(t, 1, "")
	for set, left := range map[string]string{
		"status = 'pending'": "1 due, 0 scheduled, 0 in flight",
		"status = 'pending', available_at = '2150-01-01T00:00:00Z'":                 "0 due, 1 scheduled until 2150-01-01T00:00:00Z, 0 in flight",
		"status = 'in_flight', claim_token = gen_random_uuid(), claimed_at = now()": "0 due, 0 scheduled, 1 in flight",
	} {
		d.rows(t, 1, "generation = 3, "+set)
		if answer := retire(t, operator); answer != "not empty: "+left || d.status(t, 3) != "draining" {
			t.Errorf("retiring answers %q, want %q; status %s", answer, left, d.status(t, 3))
		}
	}
	exec(t, publisher, publishInto(3))
	d.rows(t, 2, "generation = 3, status = 'failed'") // its workers are not needed for those
	d.alter(t, 2, "status = 'delivered'")
	d.wantActions(t)

	// called twice in one transaction nobody else has seen it closed
	tx := begin(t, operator)
	for range 2 {
		if answer := retire(t, tx); !strings.HasPrefix(answer, "closing") {
			t.Errorf("retiring answers %q", answer)
		}
	}
	if err := tx.Commit(deadline(t)); err != nil {
		t.Fatal(err)
	}
	if status := d.status(t, 3); status != "closing" {
		t.Errorf("status is %s", status)
	}
	refuses(t, publisher, "SP019", "generation", publishInto(3))
	refuses(t, d.admin, "SP019", "generation", "select core.generation_open(3)")
	refuses(t, operator, "SP019", "generation", "select core.outbox_adopt(1, 3)")
	// live again, it begins anew
	exec(t, operator, "select core.generation_register(3, 'ann')")
	exec(t, publisher, publishInto(3))
	exec(t, d.admin, "update core.outbox set status = 'delivered' where status = 'pending'")
	exec(t, operator, "select core.generation_drain(3, 'ann')")
	if status := d.status(t, 3); status != "draining" {
		t.Errorf("status is %s", status)
	}
	if answer := retire(t, operator); !strings.HasPrefix(answer, "closing") {
		t.Errorf("retiring answers %q", answer)
	}
	retireUntil(t, operator, "retired")
	retireUntil(t, operator, "retired")
	if status := d.status(t, 3); status != "retired" || !value[bool](t, d.admin, "select retired_at is not null from core.deployments where generation = 3") {
		t.Errorf("status is %s", status)
	}
	refuses(t, publisher, "SP019", "generation", publishInto(3))
	refuses(t, operator, "SP019", "generation", "select core.generation_register(3, 'ann')")
	d.wantActions(t, "generation_close ann 3 {}", `generation_register ann 3 {"was": "draining"}`, "generation_drain ann 3 {}",
		"generation_close ann 3 {}", "generation_retire ann 3 {}")
}

// A mark of another cluster, whose dump this is, is not waited for.
func TestRetireOnARestoredDump(t *testing.T) {
	d, operator := draining(t)
	retireUntil(t, operator, "closing")
	exec(t, d.admin, "update core.deployments set closed_mark = '1000000000000', closed_xid = '999999999999' where generation = 3")
	retireUntil(t, operator, "retired")
}

// Nothing is stranded by retiring while somebody publishes, whatever they have done so far.
func TestRetireRacesPublishers(t *testing.T) {
	const advisory = 7
	for _, c := range []struct {
		name string
		// before and after the generation is closed; the transaction then commits
		before, after []string
		// the publisher's call of after waits inside for the lock, and came that far before the generation was closed
		inside bool
		// what the publisher is refused with after the closing
		refused string
		// what closing is waiting for
		closing string
	}{
		{name: "published, not committed", before: []string{"begin", publishInto(3)}},
		{name: "within a savepoint", before: []string{"begin", "savepoint s", publishInto(3), "release s"}},
		{name: "between check and insert", after: []string{publishInto(3)}, inside: true},
		{name: "prepared before", before: []string{"prepare p as " + publishInto(3), "begin"}, after: []string{"execute p"}, refused: "SP019"},
		{name: "an id but nothing published", before: []string{"begin", "select pg_current_xact_id()"}, after: []string{publishInto(3)}, refused: "SP019"},
		{name: "a snapshot of before, repeatable read", before: []string{"begin isolation level repeatable read", "select 1 from core.event_types"},
			after: []string{publishInto(3)}, refused: "40001"},
		{name: "a snapshot of before, serializable", before: []string{"begin isolation level serializable", "select 1 from core.event_types"},
			after: []string{publishInto(3)}, refused: "40001"},
		{name: "a snapshot and an id of before, repeatable read", before: []string{"begin isolation level repeatable read", "select pg_current_xact_id()"},
			after: []string{publishInto(3)}, refused: "40001"},
		{name: "published, repeatable read", before: []string{"begin isolation level repeatable read", publishInto(3)}, closing: "waiting: for a transaction that replays"},
	} {
		t.Run(c.name, func(t *testing.T) {
			d, operator := draining(t)
			publisher := d.login(t, "spectral_worlds")
			holder := pgtest.Conn(t, d.at)
			exec(t, holder, "select pg_advisory_lock($1)", advisory)
			if c.inside {
				// the publisher's function waits behind its check of the generation
				source := value[string](t, d.admin, "select pg_get_functiondef('core.outbox_insert'::regproc)")
				patched := strings.Replace(source, "  v_channel := 'outbox_gen_'", fmt.Sprintf("  perform pg_advisory_xact_lock_shared(%d);\n  v_channel := 'outbox_gen_'", advisory), 1)
				if patched == source {
					t.Fatal("core.outbox_insert has no such place")
				}
				exec(t, d.admin, patched)
			}
			for _, sql := range c.before {
				exec(t, publisher, sql)
			}
			published := make(chan error, 1)
			ctx := deadline(t)
			after := func() {
				for _, sql := range c.after {
					if _, err := publisher.Exec(ctx, sql); err != nil {
						published <- err
						return
					}
				}
				published <- nil
			}
			if c.inside {
				go after()
				waitFor(t, d.admin, fmt.Sprintf("select exists (select from pg_locks where database = (select oid from pg_database where datname = current_database()) and locktype = 'advisory' and objid = %d and not granted)", advisory))
			}
			if c.closing != "" {
				if answer := retire(t, operator); !strings.HasPrefix(answer, c.closing) {
					t.Fatalf("closing answers %q", answer)
				}
			} else if answer := retire(t, operator); !strings.HasPrefix(answer, "closing") {
				t.Fatalf("closing answers %q", answer)
			}
			if !c.inside {
				after()
			} else {
				wantWaiting(t, operator, publisher)
				exec(t, holder, "select pg_advisory_unlock($1)", advisory)
			}
			have := sqlstate(t, <-published)
			if have != c.refused {
				t.Errorf("the publisher is answered with %q, want %q", have, c.refused)
			}
			if c.refused == "" && !c.inside && c.closing == "" {
				wantWaiting(t, operator, publisher)
			}
			if !publisher.PgConn().IsClosed() && publisher.PgConn().TxStatus() != 'I' {
				exec(t, publisher, "commit")
			}
			if c.refused != "" {
				retireUntil(t, operator, "retired")
				return
			}
			answer := retireUntil(t, operator, "not empty: 1 due")
			if c.closing == "" && !strings.HasSuffix(answer, "it takes events again") {
				t.Errorf("retiring answers %q", answer)
			}
			if status := d.status(t, 3); status != "draining" {
				t.Errorf("with an event left it is %s", status)
			}
			// its workers may publish more while they finish
			exec(t, publisher, publishInto(3))
			exec(t, d.admin, "update core.outbox set status = 'delivered'")
			retireUntil(t, operator, "retired")
		})
	}
}

// A publisher whose id is above that of the closing transaction, and above every id that has ended by then.
func TestRetireAPublisherWithAHigherID(t *testing.T) {
	d, operator := draining(t)
	publisher := begin(t, d.login(t, "spectral_worlds"))
	closing := begin(t, d.login(t, "spectral_operator"))
	if answer := retire(t, closing); !strings.HasPrefix(answer, "closing") {
		t.Fatalf("closing answers %q", answer)
	}
	exec(t, publisher, publishInto(3))
	if err := closing.Commit(deadline(t)); err != nil {
		t.Fatal(err)
	}
	wantWaiting(t, operator, publisher.Conn())
	if err := publisher.Commit(deadline(t)); err != nil {
		t.Fatal(err)
	}
	retireUntil(t, operator, "not empty: 1 due")
}

// An operator's transaction that has had its id for longer than a publisher cannot make the mark: the publisher's is above it.
func TestRetireWithAnOlderID(t *testing.T) {
	d, operator := draining(t)
	older := begin(t, d.login(t, "spectral_operator"))
	exec(t, older, "select pg_current_xact_id()")
	publisher := begin(t, d.login(t, "spectral_worlds"))
	exec(t, publisher, publishInto(3))
	if answer := retire(t, operator); !strings.HasPrefix(answer, "closing") {
		t.Fatalf("closing answers %q", answer)
	}
	if answer := retire(t, older); answer != "waiting: commit, and call again" {
		t.Errorf("with an id of before, retiring answers %q", answer)
	}
	if err := older.Commit(deadline(t)); err != nil {
		t.Fatal(err)
	}
	wantWaiting(t, operator, publisher.Conn())
	// a mark that is made already serves whoever calls
	older = begin(t, operator)
	exec(t, older, "select pg_current_xact_id()")
	if answer := retire(t, older); !strings.HasPrefix(answer, "waiting: for ") {
		t.Errorf("beside a publisher, retiring answers %q", answer)
	}
	for _, tx := range []pgx.Tx{older, publisher} {
		if err := tx.Commit(deadline(t)); err != nil {
			t.Fatal(err)
		}
	}
	retireUntil(t, operator, "not empty: 1 due")
	if status := d.status(t, 3); status != "draining" {
		t.Errorf("with an event left it is %s", status)
	}
}

// A retired generation has no pauses: nobody could resume them.
func TestRetiringEndsPauses(t *testing.T) {
	d, operator := draining(t)
	exec(t, operator, "select core.event_type_pause($1, 3), core.event_type_pause($2, 3), core.event_type_pause($1, 1)", cardType, classType)
	exec(t, d.admin, "delete from core.operator_actions")
	retireUntil(t, operator, "retired")
	if left := values[string](t, d.admin, "select generation || ' ' || event_type from core.paused_types"); !slices.Equal(left, []string{"1 " + cardType}) {
		t.Errorf("paused are %v", left)
	}
	d.wantActions(t, "generation_close ann 3 {}", fmt.Sprintf(`generation_retire ann 3 {"paused_types": [%q, %q]}`, classType, cardType))
}

// Dry runs work where nothing may be written, and take no transaction id, for which retiring would wait.
func TestDryRunsWriteNothing(t *testing.T) {
	t.Parallel()
	d := setup(t)
	d.rows(t, 2, "")
	d.alter(t, 2, "status = 'failed'")
	operator := d.login(t, "spectral_operator")
	calls := []string{
		"core.outbox_adoptable(2, 1)", fmt.Sprintf("core.outbox_replay_preview(%s, 1)", quoted(key(2))),
		fmt.Sprintf("core.outbox_replay_preview_many(array[%s], 1)", quoted(key(2))),
		"core.generation_status()", "core.generation_backlog(1)",
	}
	for _, call := range calls {
		exec(t, operator, "begin read only")
		exec(t, operator, "select * from "+call)
		exec(t, operator, "commit; begin")
		exec(t, operator, "select * from "+call)
		if value[bool](t, operator, "select pg_current_xact_id_if_assigned() is not null") {
			t.Errorf("%s takes a transaction id", call)
		}
		exec(t, operator, "commit")
	}
	// and refuse what the real thing refuses
	exec(t, operator, "begin read only")
	refuses(t, operator, "SP019", "generation", "select core.outbox_adoptable(1, 2)")
	exec(t, operator, "rollback")
}

func quoted(id uuid.UUID) string { return "'" + id.String() + "'::uuid" }

// Hints for operators name what operators may call.
func TestHintsToRegister(t *testing.T) {
	t.Parallel()
	d := setup(t)
	operator, publisher := d.login(t, "spectral_operator"), d.login(t, "spectral_worlds")
	exec(t, operator, "select core.generation_drain(1, null, true)")
	for want, sql := range map[string]string{
		"core.generation_register(1, null)": publishInto("null"), "core.generation_register(99, null)": publishInto(99),
	} {
		if hint := hintOf(t, publisher, sql); !strings.Contains(hint, want) {
			t.Errorf("%s: the hint is %q", sql, hint)
		}
	}
	// a retired one is not registered again
	exec(t, d.admin, "insert into core.deployments (generation, status, retired_at) values (7, 'retired', now())")
	if hint := hintOf(t, publisher, publishInto(7)); !strings.Contains(hint, "publish into a live one") || strings.Contains(hint, "register") {
		t.Errorf("for a retired one the hint is %q", hint)
	}
	if hint := hintOf(t, operator, "select core.event_type_pause($1, 99)", cardType); !strings.Contains(hint, "core.generation_register(1, null)") {
		t.Errorf("where none is live, the hint is %q", hint)
	}
}

func hintOf(t *testing.T, q querier, sql string, arguments ...any) string {
	t.Helper()
	_, err := q.Exec(deadline(t), sql, arguments...)
	var pg *pgconn.PgError
	if !errors.As(err, &pg) {
		t.Fatalf("%s: %v, want a refusal", sql, err)
	}
	return pg.Hint
}

// What comes to light opens a generation again at once, whatever else is waited for: its handlers may want to publish.
func TestRetireBesideAnUnrelatedTransaction(t *testing.T) {
	d, operator := draining(t)
	publisher, unrelated := d.login(t, "spectral_worlds"), begin(t, pgtest.Conn(t, d.at))
	exec(t, unrelated, "select pg_current_xact_id()")
	exec(t, publisher, "begin; "+publishInto(3))
	if answer := retire(t, operator); !strings.HasPrefix(answer, "closing") {
		t.Fatalf("closing answers %q", answer)
	}
	wantWaiting(t, operator, publisher)
	wantWaiting(t, operator, unrelated.Conn())
	exec(t, publisher, "commit")
	if answer := retire(t, operator); !strings.HasPrefix(answer, "not empty: 1 due") {
		t.Fatalf("retiring answers %q", answer)
	}
	exec(t, publisher, publishInto(3))
	exec(t, d.admin, "update core.outbox set status = 'delivered'")
	if answer := retire(t, operator); !strings.HasPrefix(answer, "closing") {
		t.Fatalf("closing answers %q", answer)
	}
	wantWaiting(t, operator, unrelated.Conn())
	if err := unrelated.Commit(deadline(t)); err != nil {
		t.Fatal(err)
	}
	retireUntil(t, operator, "retired")
}

// Whoever moves events into a generation keeps it open until that is committed.
func TestRetireWaitsForAdopting(t *testing.T) {
	d, operator := draining(t)
	d.rows(t, 1, "")
	adopting := begin(t, d.login(t, "spectral_operator"))
	exec(t, adopting, "select core.outbox_adopt(1, 3)")
	if answer := retire(t, operator); !strings.HasPrefix(answer, "waiting: for a transaction that replays or adopts") {
		t.Fatalf("retiring answers %q", answer)
	}
	if err := adopting.Commit(deadline(t)); err != nil {
		t.Fatal(err)
	}
	retireUntil(t, operator, "not empty: 1 due")
}

func TestAdopt(t *testing.T) {
	t.Parallel()
	d := setup(t)
	d.rows(t, 12, "attempts = 2, crashes = 1, handler_failures = '{\"platform.a\": {\"failures\": 2}}', last_error = 'E: platform.a: e'")
	exec(t, d.admin, "select core.generation_announce(3), core.generation_announce(12)")
	// 1, 2 and 5 are due; 3 is of a class; 4 and 11 are scheduled; the others stay
	d.alter(t, 3, "channel = 'outbox_gen_1_slow', event_type = 'worlds.thing.slow'")
	d.alter(t, 4, "available_at = now() + interval '1 hour'")
	d.alter(t, 6, "status = 'in_flight', claim_token = gen_random_uuid(), claimed_at = now()")
	d.alter(t, 7, "status = 'failed'")
	d.alter(t, 8, "status = 'delivered'")
	d.alter(t, 9, "deleted_at = now()")
	d.alter(t, 10, "generation = 12, channel = 'outbox_gen_12'")
	d.alter(t, 11, "channel = 'outbox_default', available_at = now() + interval '2 hours'")
	held := begin(t, pgtest.Conn(t, d.at))
	exec(t, held, "select from core.outbox where id = $1 for update", key(12))
	before := map[int]map[string]any{}
	for n := 1; n <= 12; n++ {
		before[n] = d.row(t, n)
	}
	operator, listener := d.login(t, "spectral_operator"), pgtest.Conn(t, d.at)
	worker := d.login(t, "spectral_worker")
	exec(t, worker, `set role spectral_worker; select core.worker_register(gen_random_uuid(), 3, 'here', '{"worlds.world_model_card.published": ["a.b"]}')`)
	exec(t, listener, "listen outbox_gen_3; listen outbox_gen_3_slow; listen outbox_gen_1; listen outbox_gen_12")

	exec(t, operator, "select core.event_type_pause($1, 3)", cardType)
	exec(t, operator, "select core.event_type_pause($1, 1)", classType) // where it comes from does not matter
	type adoptable struct {
		EventType                         string
		Due, Scheduled, InFlight, Workers int
		Paused                            bool
	}
	dry := func(arguments string) []adoptable {
		t.Helper()
		rows, err := operator.Query(deadline(t), "select event_type, due, scheduled, in_flight, workers, paused from core.outbox_adoptable("+arguments+")")
		if err != nil {
			t.Fatal(err)
		}
		all, err := pgx.CollectRows(rows, pgx.RowToStructByPos[adoptable])
		if err != nil {
			t.Fatal(err)
		}
		return all
	}
	if have, want := dry("1, 3"), []adoptable{{classType, 1, 0, 0, 0, false}, {cardType, 4, 2, 1, 1, true}}; !slices.Equal(have, want) {
		t.Errorf("the dry run says %v, want %v", have, want)
	}
	if have, want := dry("1, 3, '{worlds.thing.slow,worlds.nothing}'"), []adoptable{{classType, 1, 0, 0, 0, false}}; !slices.Equal(have, want) {
		t.Errorf("the dry run of a type says %v, want %v", have, want)
	}
	exec(t, d.admin, "delete from core.paused_types; delete from core.operator_actions")
	at := value[time.Time](t, d.admin, "select clock_timestamp()")
	if n := value[int](t, operator, "select core.outbox_adopt(1, 3, 1000, 'ann', '{worlds.thing.slow}')"); n != 1 {
		t.Errorf("%d of the one type were moved", n)
	}
	if n := value[int](t, operator, "select core.outbox_adopt(1, 3, 2, 'ann')") + value[int](t, operator, "select core.outbox_adopt(1, 3, p_adopted_by => 'ann')"); n != 5 {
		t.Errorf("%d of the others were moved", n)
	}
	if n := value[int](t, operator, "select core.outbox_adopt(1, 3)"); n != 0 {
		t.Errorf("%d more were moved", n)
	}
	due := map[string]string{"generation": "= 3", "channel": "= 'outbox_gen_3'", "available_at": ">= b.at"}
	slow := map[string]string{"generation": "= 3", "channel": "= 'outbox_gen_3_slow'", "available_at": ">= b.at"}
	later := map[string]string{"generation": "= 3", "channel": "= 'outbox_gen_3'"}
	for n, want := range map[int]map[string]string{1: due, 2: due, 3: slow, 4: later, 5: due, 6: {}, 7: {}, 8: {}, 9: {}, 10: {}, 11: later, 12: {}} {
		d.wantChanges(t, n, before[n], at, want)
	}
	counts := map[string]int{}
	for range 3 { // one for each call and channel
		n, err := listener.WaitForNotification(deadline(t))
		if err != nil {
			t.Fatal(err)
		}
		counts[n.Channel]++
	}
	if counts["outbox_gen_3"] != 2 || counts["outbox_gen_3_slow"] != 1 {
		t.Errorf("listeners were woken %v", counts)
	}
	for i, ids := range values[[]uuid.UUID](t, d.admin, "select event_ids from core.operator_actions where action = 'adopt' order by acted_at, id") {
		if want := []int{1, 2, 3}[i]; len(ids) != want {
			t.Errorf("the %d. action names %d events, want %d", i+1, len(ids), want)
		}
	}
	if have := d.generationActions(t); len(have) != 3 || have[0] != `adopt ann 3 {"from": 1, "event_types": ["worlds.thing.slow"]}` || have[1] != `adopt ann 3 {"from": 1}` {
		t.Errorf("actions are %v", have)
	}
	if err := held.Rollback(deadline(t)); err != nil {
		t.Fatal(err)
	}
	if n := value[int](t, operator, "select core.outbox_adopt(1, 3)"); n != 1 {
		t.Errorf("%d that a worker had held were moved", n)
	}
}

// Whatever order the rows lie in, those of a type are moved, and are due then, in the order they were due before; and with
// a time, those that came later stay.
func TestAdoptKeepsTheOrder(t *testing.T) {
	t.Parallel()
	d := setup(t)
	d.rows(t, 20, "")
	exec(t, d.admin, "select core.generation_announce(3)")
	exec(t, d.admin, "drop index core.outbox_due") // which would give that order unasked
	for n := 1; n <= 20; n++ {
		d.alter(t, n, "available_at = now() - make_interval(mins => $1)", n)
	}
	for n := 11; n <= 20; n++ {
		d.alter(t, n, "event_type = $1", classType)
	}
	d.alter(t, 1, "created_at = now() + interval '1 second'")
	d.alter(t, 11, "created_at = now() + interval '1 second'")
	before := value[time.Time](t, d.admin, "select now()")
	operator := d.login(t, "spectral_operator")
	moved := 0
	for _, call := range []string{"core.outbox_adopt(1, 3, 3, null, '{worlds.thing.slow}', $1)", "core.outbox_adopt(1, 3, 4, null, null, $1)"} {
		for {
			n := value[int](t, operator, "select "+call, before)
			if moved += n; n == 0 {
				break
			}
		}
	}
	if moved != 18 {
		t.Errorf("%d of 18 events were moved", moved)
	}
	for eventType, want := range map[string][]int{cardType: {10, 9, 8, 7, 6, 5, 4, 3, 2}, classType: {20, 19, 18, 17, 16, 15, 14, 13, 12}} {
		have := values[int](t, d.admin, "select (payload ->> 'n')::int from core.outbox where generation = 3 and event_type = $1 order by available_at", eventType)
		if !slices.Equal(have, want) {
			t.Errorf("%s are due in the order %v, want %v", eventType, have, want)
		}
	}
	if n := value[int](t, operator, "select core.outbox_adopt(1, 3)"); n != 2 {
		t.Errorf("%d that came later were moved, want 2", n)
	}
}

// What a dead worker held is not moved before it is reaped, which adopting does, if no worker has.
func TestAdoptReapsWhatADeadWorkerHeld(t *testing.T) {
	t.Parallel()
	d := setup(t)
	d.rows(t, 4, "")
	exec(t, d.admin, "select core.generation_announce(3)")
	dying, operator := d.login(t, "spectral_worker"), d.login(t, "spectral_operator")
	claim := func(conn *pgx.Conn, name string, n int) {
		t.Helper()
		id := value[string](t, conn, "select gen_random_uuid()::text")
		exec(t, conn, "set role spectral_worker")
		exec(t, conn, "select core.worker_register($1, 1, $2, '{}')", id, name)
		exec(t, conn, "select core.claim_journal_write($1, 'worlds.world_model_card.published', 0, $2)", id, []string{key(n).String()})
	}
	claim(dying, "dying", 2)
	claim(d.login(t, "spectral_worker"), "living", 3) // it has let go of 3
	if err := dying.Close(deadline(t)); err != nil {
		t.Fatal(err)
	}
	waitFor(t, d.admin, "select not exists (select from core.live_workers where name = 'dying')")
	if n := value[int](t, operator, "select core.outbox_adopt(1, 3)"); n != 3 {
		t.Errorf("%d were moved, want 3", n)
	}
	if !d.holds(t, 2, "generation = 1 and crashes = 0") {
		t.Error("what the worker held was moved before it was reaped")
	}
	exec(t, d.admin, "update core.workers set gone_at = gone_at - interval '3 seconds' where name = 'dying'")
	if n := value[int](t, operator, "select core.outbox_adopt(1, 3)"); n != 1 {
		t.Errorf("%d were moved then, want 1", n)
	}
	if !d.holds(t, 2, "generation = 3 and crashes = 1") {
		t.Error("what a worker died of comes without its crash")
	}
	if n := value[int](t, d.admin, "select count(*) from core.outbox where generation = 3 and crashes = 0"); n != 3 {
		t.Errorf("%d of the 3 others are without a crash", n)
	}
}

func TestAdoptRefusals(t *testing.T) {
	t.Parallel()
	d := setup(t)
	d.rows(t, 1, "generation = 5")
	exec(t, d.admin, "select core.generation_announce(3)")
	var warnings []string
	config, err := pgx.ParseConfig(pgtest.Login(t, d.at, "spectral_operator"))
	if err != nil {
		t.Fatal(err)
	}
	config.OnNotice = func(_ *pgconn.PgConn, n *pgconn.Notice) { warnings = append(warnings, n.Message) }
	operator, err := pgx.ConnectConfig(deadline(t), config)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = operator.Close(context.Background()) }()
	for _, call := range []string{"select core.outbox_adopt(%s)", "select core.outbox_adoptable(%s)"} {
		refuses(t, operator, "SP042", "to", fmt.Sprintf(call, "1, 1"))
		refuses(t, operator, "SP019", "generation", fmt.Sprintf(call, "1, 2")) // retired
		refuses(t, operator, "SP019", "generation", fmt.Sprintf(call, "1, 99"))
		refuses(t, operator, "SP019", "generation", fmt.Sprintf(call, "1, null"))
		refuses(t, operator, "SP019", "from", fmt.Sprintf(call, "99, 1"))
		refuses(t, operator, "SP019", "from", fmt.Sprintf(call, "null, 1"))
	}
	for _, limit := range []string{"0", "10001", "null"} {
		refuses(t, operator, "SP030", "limit", fmt.Sprintf("select core.outbox_adopt(1, 3, %s)", limit))
	}
	refuses(t, operator, "SP030", "acted_by", "select core.outbox_adopt(5, 3, p_adopted_by => '')")
	exec(t, operator, "select core.outbox_adopt(1, 3)")
	if len(warnings) != 1 || !strings.Contains(warnings[0], "generation 1 is live") {
		t.Errorf("a live generation is warned of with %q", warnings)
	}
	// from a retired one, and from one that nobody knows
	exec(t, operator, "select core.outbox_adopt(2, 3)")
	if n := value[int](t, operator, "select core.outbox_adopt(5, 3)"); n != 1 {
		t.Errorf("%d events of an unknown generation were moved", n)
	}
}

// Adopting stamps what was due with a time after its transaction has its id, as publishing does: a floor that has risen in between
// is not above it.
func TestAdoptedEventsAreAboveTheFloor(t *testing.T) {
	t.Parallel()
	d := setup(t)
	d.rows(t, 50, "")
	exec(t, d.admin, "select core.generation_announce(3)")
	floors := d.login(t, "spectral_worker")
	exec(t, floors, "set role spectral_worker")
	adopting := begin(t, d.login(t, "spectral_operator"))
	exec(t, adopting, "select core.outbox_adopt(1, 3)")
	var mark time.Time
	var id, running int64
	measure := func() (time.Time, int64, int64) {
		t.Helper()
		if err := floors.QueryRow(deadline(t), "select mark_at, mark_id, lowest_running from core.outbox_floor(3, $1, '-infinity')", cardType).Scan(&mark, &id, &running); err != nil {
			t.Fatal(err)
		}
		return mark, id, running
	}
	if _, id, running := measure(); running >= id {
		t.Fatalf("the lowest running id is %d, the mark's %d", running, id)
	}
	if err := adopting.Commit(deadline(t)); err != nil {
		t.Fatal(err)
	}
	if n := value[int](t, d.admin, "select count(*) from core.outbox where generation = 3 and available_at >= $1", mark); n != 0 {
		t.Errorf("%d rows are stamped after a mark that was made later", n)
	}
	if order := values[int](t, d.admin, "select (payload ->> 'n')::int from core.outbox where generation = 3 order by available_at"); len(order) != 50 || !slices.IsSorted(order) {
		t.Errorf("they are due in the order %v", order)
	}
	if n := value[int](t, d.admin, "select count(*) from core.outbox where generation = 3 and available_at > clock_timestamp() - interval '1 minute'"); n != 50 {
		t.Errorf("%d of 50 rows are stamped anew", n)
	}
}

// Settled events are not read, whatever the session planned when there were none.
func TestPlansOfGenerations(t *testing.T) {
	t.Parallel()
	at := pgtest.New(t)
	admin := pgtest.Conn(t, at)
	exec(t, admin, "analyze core.outbox; alter table core.outbox disable trigger outbox_notify; select core.generation_announce(3)")
	operator := pgtest.Conn(t, pgtest.Login(t, at, "spectral_operator"))
	exec(t, operator, "set plan_cache_mode = force_generic_plan")
	calls := []string{
		"select core.generation_status(1)", "select core.generation_backlog(1)", "select core.outbox_adoptable(1, 3)",
		"select core.outbox_adopt(1, 3, 10)", "select core.outbox_adopt(1, 3, 10, null, '{worlds.world_model_card.published}')", "select core.generation_retire(1)",
	}
	all := func(sqls []string) {
		for _, sql := range sqls {
			exec(t, operator, sql)
		}
	}
	all(calls[:5])
	exec(t, admin, "select core.generation_drain(1)")
	exec(t, admin, `select core.outbox_publish_many((select jsonb_agg(jsonb_build_object('event_type', 'worlds.world_model_card.published', 'generation', 1,
		'source', 'worlds', 'payload', '{"card_id": "c", "version": 1, "title": "t"}'::jsonb)) from generate_series(1, 4000)))`)
	exec(t, admin, "update core.outbox set status = 'delivered'")
	exec(t, admin, "vacuum core.outbox")
	exec(t, admin, `select core.outbox_publish_many((select jsonb_agg(jsonb_build_object('event_type', 'worlds.world_model_card.published', 'generation', 1,
		'source', 'worlds', 'payload', '{"card_id": "c", "version": 1, "title": "t"}'::jsonb)) from generate_series(1, 100)))`)
	exec(t, admin, "select pg_stat_force_next_flush(), pg_stat_reset()")
	entries := `select (select sum(idx_tup_read) from pg_stat_user_indexes where relname = 'outbox')::int + (select seq_tup_read from pg_stat_user_tables where relname = 'outbox')::int`
	last := value[int](t, admin, entries)
	for _, call := range calls {
		exec(t, operator, call)
		exec(t, operator, "select pg_stat_force_next_flush()")
		exec(t, operator, "select 1")
		now := value[int](t, admin, entries)
		if now-last > 450 {
			t.Errorf("%s reads %d entries beside 100 events", call, now-last)
		}
		last = now
	}
}

// What has not happened has no time.
func TestGenerationStatusOfNone(t *testing.T) {
	t.Parallel()
	d := setup(t)
	exec(t, d.admin, "delete from core.outbox; delete from core.deployments")
	if n := value[int](t, d.admin, "select count(*) from core.generation_status()"); n != 0 {
		t.Errorf("%d generations of none", n)
	}
	exec(t, d.admin, "select core.generation_announce(4)")
	var row map[string]any
	if err := json.Unmarshal(value[[]byte](t, d.admin, "select to_jsonb(s) from core.generation_status() s"), &row); err != nil {
		t.Fatal(err)
	}
	for _, column := range []string{"draining_at", "closed_at", "retired_at", "oldest_due", "next_scheduled", "last_scheduled"} {
		if row[column] != nil {
			t.Errorf("%s is %v", column, row[column])
		}
	}
}

// Of a type that is handled in another context only, what is for one context is nobody's: the dry run says so as the preview of a replay does.
func TestAdoptableByTarget(t *testing.T) {
	t.Parallel()
	d := setup(t)
	exec(t, d.admin, "select core.generation_announce(3)")
	d.rows(t, 6, "target = case when o.payload ->> 'n' < '3' then null when o.payload ->> 'n' < '5' then 'platform' else 'worlds' end")
	d.alter(t, 6, "status = 'in_flight', claim_token = gen_random_uuid(), claimed_at = now()")
	worker, operator := d.login(t, "spectral_worker"), d.login(t, "spectral_operator")
	exec(t, worker, `set role spectral_worker; select core.worker_register(gen_random_uuid(), 3, 'here', '{"worlds.world_model_card.published": ["platform.a", "platform.b"]}')`)
	lines := values[string](t, operator, "select concat_ws(' ', event_type, coalesce(target, 'any'), due, scheduled, in_flight, workers) from core.outbox_adoptable(1, 3)")
	if want := []string{cardType + " any 2 0 0 1", cardType + " platform 2 0 0 1", cardType + " worlds 1 0 1 0"}; !slices.Equal(lines, want) {
		t.Errorf("adoptable: %q, want %q", lines, want)
	}
	for n, want := range map[int]int{1: 2, 3: 2, 5: 0} {
		exec(t, d.admin, "update core.outbox set status = 'failed', claimed_at = now() where id = $1", key(n))
		if runs := value[int](t, operator, fmt.Sprintf("select count(*) from core.outbox_replay_preview(%s, 3) where would_run", quoted(key(n)))); runs != want {
			t.Errorf("event %d would be handled by %d handlers, want %d", n, runs, want)
		}
	}
}

// What workers of a generation are still for.
func TestStandingOfAGeneration(t *testing.T) {
	t.Parallel()
	d := setup(t)
	worker := d.login(t, "spectral_worker")
	exec(t, worker, "set role spectral_worker")
	d.rows(t, 2, "status = case o.payload ->> 'n' when '1' then 'pending' else 'failed' end")
	for _, step := range []struct{ sql, want string }{
		{"", "live"},
		{"update core.deployments set status = 'draining', draining_at = now() where generation = 1", "draining"},
		{"update core.outbox set available_at = now() + interval '1 day' where status = 'pending'", "draining"},
		{"update core.outbox set status = 'in_flight', claim_token = gen_random_uuid(), claimed_at = now() where status = 'pending'", "draining"},
		{"update core.deployments set closed_at = now() where generation = 1", "closing"},
		{"update core.outbox set status = 'delivered', claim_token = null where status = 'in_flight'", "drained"},
		{"update core.deployments set status = 'retired', retired_at = now() where generation = 1", "retired"},
		{"delete from core.deployments where generation = 1", "unknown"},
	} {
		if step.sql != "" {
			exec(t, d.admin, step.sql)
		}
		if have := value[string](t, worker, "select core.generation_standing(1)"); have != step.want {
			t.Errorf("after %q the generation is %s, want %s", step.sql, have, step.want)
		}
	}
}
