package integration_test

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"spectral/internal/core/events"
	worlds "spectral/internal/worlds/contracts/events"
)

func (b *bundle) awaitFinal(n int) {
	b.Helper()
	b.eventually("the end of all events", func() bool {
		return one[int](b, "select count(*) from core.outbox where status in ('delivered', 'failed')") == n
	})
}

func TestBatches(t *testing.T) {
	setup(t).cases(aBadRowFailsAlone, deadlocksOfBatchesCostNoAttempt, effectsAreWrittenInTheOrderOfTheirKeys,
		duplicatesInOppositeOrderDoNotDeadlock, aBatchRunsWhatWasNotHandled, batchesThatAlwaysFailWarnOnce,
		aFoldedBatchStoresTheLatestOfEachKey, anotherRowIsNotSettledForOneThatIsKept)
}

// A batch that names a row twice is rolled back. The warning says so and quotes nothing of the payload.
func batchesThatAlwaysFailWarnOnce(b *bundle) {
	log := &logBuffer{}
	b.log = slog.NewJSONHandler(log, &slog.HandlerOptions{Level: slog.LevelDebug})
	all := b.publishMany(60)
	s := subscription(events.Registration{Name: "platform.hot_rows", Batch: func(tx events.Tx) events.BatchHandler {
		read := func(_ events.Envelope, p happened) (int, error) { return p.N / 2, nil }
		return events.BatchHandlerOf(read, func(ctx context.Context, _ uuid.NullUUID, rows []int) error {
			_, err := tx.Exec(ctx, `insert into platform.hot select id, 1 from unnest($1::int[]) id
				on conflict (id) do update set n = hot.n + 1`, rows)
			return err
		})
	}})
	s.BatchSize = 10
	b.startWorker(noPoll, s)
	b.awaitFinal(len(all))
	const rolledBack = `"msg":"batch rolled back; .*"error_class":"DatabaseError","handler_name":"platform.hot_rows",` +
		`"sqlstate":"21000","batches_rolled_back":1}`
	warned, debugged := log.match(`"level":"WARN",`+rolledBack), log.match(`"level":"DEBUG",`+rolledBack)
	if n := log.count("batch rolled back"); n < 2 || warned != 1 || debugged != 1 || log.count("a second time") != 0 {
		b.Errorf("%d batches rolled back, %d warnings, %d entries that count from it: %s", n, warned, debugged,
			log.text.String())
	}
}

// CardTitle is what the recorder reads of worlds.world_model_card.published.
type CardTitle struct {
	CardID  string `json:"card_id"`
	Version int64  `json:"version"`
	Title   string `json:"title"`
}

// CardTitleRecorder stores the latest title of each card, with one statement for a batch.
func CardTitleRecorder(tx events.Tx) events.BatchHandler {
	read := func(_ events.Envelope, card CardTitle) (CardTitle, error) { return card, nil }
	return events.BatchHandlerOf(read, func(ctx context.Context, workspace uuid.NullUUID, cards []CardTitle) error {
		slices.SortFunc(cards, func(a, b CardTitle) int {
			return cmp.Or(strings.Compare(a.CardID, b.CardID), cmp.Compare(b.Version, a.Version)) // the latest first
		})
		latest := slices.CompactFunc(cards, func(a, b CardTitle) bool { return a.CardID == b.CardID })
		_, err := tx.Exec(ctx, `insert into platform.card_titles (workspace_id, card_id, version, title)
			select $1, card_id, version, title from jsonb_to_recordset($2) as card (card_id text, version bigint, title text)
			on conflict (workspace_id, card_id) do update set version = excluded.version, title = excluded.title
			where card_titles.version < excluded.version`, workspace, latest)
		return err
	})
}

func cardTitles() events.Registration {
	return events.Registration{
		Name: "platform.card_title_recorder", Reads: CardTitle{}, EffectKey: "card_id", Batch: CardTitleRecorder,
	}
}

func aFoldedBatchStoresTheLatestOfEachKey(b *bundle) {
	log := &logBuffer{}
	b.log = slog.NewJSONHandler(log, &slog.HandlerOptions{Level: slog.LevelDebug})
	var all []events.Envelope
	for i, card := range []CardTitle{{"mill", 2, "Two"}, {"harbour", 1, "One"}, {"mill", 3, "Three"}, {"mill", 1, "One"}} {
		e := event(i)
		payload, err := json.Marshal(card)
		must(b.T, err)
		e.EventType, e.Payload = worlds.WorldModelCardPublishedType, payload
		all = append(all, e)
	}
	b.publish(all...)
	s := subscription(cardTitles())
	s.EventType = worlds.WorldModelCardPublishedType
	b.startWorker(noPoll, s)
	b.awaitFinal(len(all))
	const titles = "select string_agg(concat_ws(' ', card_id, version, title), ', ' order by card_id) from " +
		"platform.card_titles"
	if have := one[string](b, titles); have != "harbour 1 One, mill 3 Three" || log.count("batch rolled back") != 0 {
		b.Errorf("stored %s: %s", have, log.text.String())
	}
}

// Two workers update the same rows in opposite order.
func deadlocksOfBatchesCostNoAttempt(b *bundle) {
	b.poolURL += "&options=-c%20deadlock_timeout%3D20ms"
	b.exec("insert into platform.hot values (0, 0), (1, 0)")
	log := &logBuffer{}
	b.log = slog.NewJSONHandler(log, &slog.HandlerOptions{Level: slog.LevelDebug})
	all := b.publishMany(60)
	var met sync.WaitGroup // each worker holds the row that the other updates next
	met.Add(2)
	updateHotRows := func(first int) *testWorker {
		var meet sync.Once
		s := subscription(handler("platform.hot_rows", func(ctx context.Context, tx events.Tx, _ events.Envelope) error {
			for _, id := range []int{first, 1 - first} {
				if _, err := tx.Exec(ctx, "update platform.hot set n = n + 1 where id = $1", id); err != nil {
					return err
				}
				meet.Do(func() {
					met.Done()
					met.Wait()
				})
			}
			return nil
		}))
		return b.newWorker(noPoll, s)
	}
	updateHotRows(0).start()
	updateHotRows(1).start()
	b.awaitFinal(len(all))
	if n := one[int](b, "select count(*)::int from core.outbox where status = 'delivered' and attempts = "+
		"1"); n != len(all) {
		b.Errorf("%d of %d were delivered with one attempt", n, len(all))
	}
	if n := one[int](b, "select sum(n)::int from platform.hot"); n != 2*len(all) {
		b.Errorf("%d updates", n)
	}
	undone := log.count(`"deadlock: batch rolled back`)
	named := log.match(`"level":"WARN","msg":"deadlock: batch rolled back.*"handler_name":"platform.hot_rows"`)
	if undone == 0 || named != undone {
		b.Errorf("%d batches undone by a deadlock, %d entries that warn and name the handler", undone, named)
	}
}

// Two batches that write the same rows in opposite order wait for the same row first. There is a workspace's row in
// each, and one of none.
func effectsAreWrittenInTheOrderOfTheirKeys(b *bundle) {
	b.poolURL += "&options=-c%20deadlock_timeout%3D20ms"
	log := &logBuffer{}
	b.log = slog.NewJSONHandler(log, &slog.HandlerOptions{Level: slog.LevelDebug})
	var all []events.Envelope
	for i, n := range []int{0, 1, 2, 3, 3, 2, 1, 0} {
		e := event(n)
		e.WorkspaceID = uuid.NullUUID{UUID: uuid.UUID{15: byte(n/2 + 1)}, Valid: n > 1}
		all = append(all, e)
		if i < 4 {
			b.exec("insert into platform.hot values ($1, 0)", i)
		}
	}
	b.publish(all...)
	holder := b.beginTx("select from platform.hot for update")
	hot := handler("platform.hot_rows", func(ctx context.Context, tx events.Tx, e events.Envelope) error {
		_, err := tx.Exec(ctx, "update platform.hot set n = n + 1 where id = $1", payloadN(e))
		return err
	})
	hot.EffectKey = "n"
	s := subscription(hot)
	s.BatchSize, s.Concurrency = 4, 1
	b.startWorker(noPoll, s)
	b.awaitWaiting(1)
	b.startWorker(noPoll, s)
	b.awaitWaiting(2)
	b.rollback(holder)
	b.awaitFinal(len(all))
	if n := log.count("batch rolled back"); n != 0 {
		b.Errorf("%d batches were undone: %s", n, log.text.String())
	}
	if n := one[int](b, "select min(n)::int from platform.hot"); n != 2 {
		b.Errorf("a row has %d updates of 2", n)
	}
}

// A trigger keeps a row of a batch pending. A row that is not due, with the same id and a time within the batch's, is
// not settled instead.
func anotherRowIsNotSettledForOneThatIsKept(b *bundle) {
	b.exec(`create function public.keep() returns trigger language plpgsql as $$ begin
			return case when new.status <> 'delivered' or new.payload ->> 'n' <> '0' then new end;
		end $$;
		create trigger keep before update on core.outbox for each row execute function public.keep()`)
	all := []events.Envelope{event(0), event(1), event(2)}
	for i := range all {
		all[i].OccurredAt = time.Now().Add(time.Duration(i-10) * time.Minute)
	}
	all[1].EventID, all[1].IdempotencyKey = all[0].EventID, "another"
	must(b.T, b.uow.Do(b.ctx, events.Worlds, uuid.NullUUID{}, func(_ events.Tx, with events.PublisherFor) error {
		return errors.Join(with().Publish(b.ctx, all[0], all[2]),
			with(events.AvailableAt(time.Now().Add(time.Hour))).Publish(b.ctx, all[1]))
	}))
	b.startWorker(noPoll, subscription(effectHandler("platform.one")))
	b.awaitFinal(2)
	if have := one[string](b, "select string_agg(status, ' ' order by occurred_at) from core.outbox"); have !=
		"failed pending delivered" {
		b.Errorf("the rows are %s", have)
	}
}

// awaitWaiting waits for so many sessions that wait for another's row.
func (b *bundle) awaitWaiting(n int) {
	b.Helper()
	b.eventually("waiting batches", func() bool {
		return one[int](b, `select count(*)::int from pg_locks l join pg_stat_activity a using (pid)
			where not l.granted and l.locktype in ('transactionid', 'tuple') and a.datname = current_database()`) == n
	})
}

// Two batches with the same keys in opposite order insert them in one order.
func duplicatesInOppositeOrderDoNotDeadlock(b *bundle) {
	b.ofRowLocks() // a broker divides the events between the workers as it likes
	log := &logBuffer{}
	b.log = slog.NewJSONHandler(log, &slog.HandlerOptions{Level: slog.LevelDebug})
	var duplicates []events.Envelope
	for _, n := range []int{0, 1, 2, 3, 4, 4, 3, 2, 1, 0} {
		e := event(n)
		e.IdempotencyKey = fmt.Sprint("key ", n)
		duplicates = append(duplicates, e)
	}
	b.publish(duplicates...)
	// Both batches wait at the third of their keys.
	holder := b.beginTx(`insert into core.event_handled
			(handler_name, idempotency_key, event_id, event_type, content_class)
		values ('platform.one', 'worlds:-:key 2', gen_random_uuid(), 'worlds.test.happened', 'operational')`)
	s := subscription(effectHandler("platform.one"))
	s.BatchSize = 5
	b.startWorker(noPoll, s)
	b.awaitWaiting(1)
	b.startWorker(noPoll, s)
	b.awaitWaiting(2)
	b.rollback(holder)
	b.awaitFinal(len(duplicates))
	b.wantEffects(map[string]int{"platform.one": 5})
	if n := one[int](b, "select count(*)::int from core.outbox where status = 'delivered' and attempts = "+
		"1"); n != len(duplicates) {
		b.Errorf("%d of %d were delivered with one attempt", n, len(duplicates))
	}
	if n := log.count("batch rolled back"); n != 0 {
		b.Errorf("%d batches were undone: %s", n, log.text.String())
	}
}

// Of the handlers of a batch's events, those run that have not handled them: some, all or none.
func aBatchRunsWhatWasNotHandled(b *bundle) {
	var all []events.Envelope
	for n := range 5 {
		e := event(n)
		e.IdempotencyKey = fmt.Sprint("key ", n)
		all = append(all, e)
	}
	b.publish(all...)
	for handler, keys := range map[string][]int{"platform.one": {1, 3}, "platform.three": {0, 1, 2, 3, 4}} {
		b.exec(`insert into core.event_handled (handler_name, idempotency_key, event_id, event_type, content_class)
			select $1, 'worlds:-:key ' || n, gen_random_uuid(), 'worlds.test.happened', 'operational'
			from unnest($2::int[]) as n`, handler, keys)
	}
	b.startWorker(noPoll, subscription(effectHandler("platform.one"), effectHandler("platform.two"),
		effectHandler("platform.three")))
	b.awaitFinal(len(all))
	b.wantEffects(map[string]int{"platform.one": 3, "platform.two": 5})
}

// The rows that were claimed with a bad row are delivered at the first attempt.
func aBadRowFailsAlone(b *bundle) {
	config, err := pgxpool.ParseConfig(b.url + "&pool_max_conns=1")
	must(b.T, err)
	useCases, err := pgxpool.NewWithConfig(b.ctx, config)
	must(b.T, err)
	b.Cleanup(useCases.Close)
	taken, err := useCases.Acquire(b.ctx)
	must(b.T, err)
	b.Cleanup(taken.Release)
	deep := strings.Repeat("[", 12000) + strings.Repeat("]", 12000)
	run := func(sql string) func(context.Context, events.Tx) error {
		return func(ctx context.Context, tx events.Tx) error { _, err := tx.Exec(ctx, sql); return err }
	}
	cases := []struct {
		forge string // set by a superuser
		do    func(context.Context, events.Tx) error
		class string
	}{
		{forge: `payload = '{"n": 1e400}'`, class: "PayloadError"},
		{forge: `payload = '{"n": ` + deep + `}'`, class: "PayloadError"},
		{forge: `handler_failures = '{"platform.one": [1, null]}'`, class: "CorruptRow"},
		{do: func(ctx context.Context, tx events.Tx) error { _, _ = tx.Exec(ctx, "select 1/0"); return nil },
			class: "AbortedTransaction"},
		{do: run("insert into platform.numbers values (1), (1)"), class: "IntegrityError"}, // a deferred constraint
		{do: func(ctx context.Context, _ events.Tx) error { <-ctx.Done(); return ctx.Err() }, class: "TimeoutError"},
		{do: func(_ context.Context, tx events.Tx) error { // past its context, and within its timeout
			return run("select pg_catalog.pg_sleep(1)")(context.Background(), tx)
		}},
		{do: func(ctx context.Context, _ events.Tx) error { // a second connection
			conn, err := useCases.Acquire(ctx)
			if err == nil {
				conn.Release()
			}
			return err
		}, class: "TimeoutError"},
	}
	b.exec("alter table core.outbox disable trigger outbox_notify") // no event is claimed before the updates
	all := make([]events.Envelope, 3*len(cases))
	for n := range all {
		all[n] = event(n)
	}
	b.publish(all...)
	for i, c := range cases {
		if c.forge != "" {
			b.exec("update core.outbox set "+c.forge+" where id = $1", all[3*i+1].EventID)
		}
	}
	h := handlerOnce("platform.one", func(ctx context.Context, tx events.Tx, e events.Envelope) error {
		if _, err := events.Decode[happened](e); err != nil {
			return err
		}
		if n := payloadN(e); n%3 == 1 && cases[n/3].do != nil {
			return cases[n/3].do(ctx, tx)
		}
		return writeEffect("platform.one")(ctx, tx, e)
	})
	h.Timeout = 300 * time.Millisecond
	s := subscription(h)
	s.BatchSize = len(all)
	b.startWorker(noPoll, s)
	b.awaitFinal(len(all))
	for n, e := range all {
		c := cases[n/3]
		if n%3 != 1 || c.class == "" {
			b.wantRow(e.EventID, "delivered", 1)
		} else if r := b.wantRow(e.EventID, "failed", 1); !strings.HasPrefix(r.LastError, c.class+": ") {
			b.Errorf("want %s: last_error %q", c.class, r.LastError)
		} else if c.class == "TimeoutError" && !strings.Contains(r.LastError, "not done within its timeout of 300ms") {
			b.Errorf("last_error does not name the timeout: %q", r.LastError)
		}
	}
	b.wantEffects(map[string]int{"platform.one": 2 * len(cases)})
}
