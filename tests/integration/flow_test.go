package integration_test

import (
	"context"
	"encoding/json"
	"errors"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"

	"spectral/internal/app"
	"spectral/internal/core/events"
	"spectral/internal/core/events/infrastructure/postgres/pgtx"
	"spectral/internal/core/events/infrastructure/postgres/publish"
	"spectral/internal/worlds/domain"
	"spectral/tests/pgtest"
)

// projection is the product's consumer of published cards.
func projection() events.Subscription {
	return app.ConsumerBuilders()[0](app.Deps{Generation: pgtest.Generation})
}

func card(t testing.TB, id, title string) domain.WorldModelCard {
	t.Helper()
	c, err := domain.NewWorldModelCard(id, title, "A summary, “quoted” \\ and é漢🦊.", json.RawMessage(
		`{"z": 1, "a": [1.50, 1e3, -0.0, 12345678901234567890], "nested": {"b": null, "": true}, "html": "<b>&amp;</b>"}`))
	must(t, err)
	return c
}

// The worker does not poll: a wrong channel name shows as a timeout.
func aPublishedCardIsNotifiedAndProjected(b *bundle, l *testWorker) {
	raw := pgtest.Conn(b.T, b.url)
	_, err := raw.Exec(b.ctx, "listen outbox_gen_1")
	must(b.T, err)
	workspace := newWorkspace()
	version, err := app.NewPublishCard(b.uow).Publish(b.ctx, workspace, card(b.T, "harbour", "The Harbour of Veyra"))
	must(b.T, err)
	if version != 1 {
		b.Fatalf("version is %d", version)
	}
	ctx, cancel := context.WithTimeout(b.ctx, 10*time.Second)
	defer cancel()
	notification, err := raw.WaitForNotification(ctx)
	must(b.T, err)
	id := one[uuid.UUID](b, "select id from core.outbox")
	if notification.Channel != "outbox_gen_1" || notification.Payload != id.String() {
		b.Fatalf("notified %q %q, want the id %s", notification.Channel, notification.Payload, id)
	}
	l.awaitDelivered(1)

	texts := one[[]string](b, `select array[(select card::text from worlds.world_model_cards), (select payload::text
		from core.outbox),
		(select snapshot::text from platform.system_cards)]`)
	if texts[0] != texts[1] || texts[1] != texts[2] {
		b.Fatalf("card, outbox and projection differ:\n%s\n%s\n%s", texts[0], texts[1], texts[2])
	}
	numbers := one[string](b, `select snapshot #>> '{attributes,a}' from platform.system_cards where card_id = 'harbour'
		and workspace_id = $1 and title = 'The Harbour of Veyra' and version = 1`, workspace)
	if strings.Replace(numbers, "-0.0", "0.0", 1) != "[1.50, 1000, 0.0, 12345678901234567890]" {
		b.Fatalf("numbers arrived as %s", numbers)
	}
	b.wantRow(id, "delivered", 1)
}

func anOlderVersionNeverOverwritesANewerOne(b *bundle, l *testWorker) {
	workspace := newWorkspace()
	publish := app.NewPublishCard(b.uow)
	b.exec("alter table core.outbox disable trigger outbox_notify")
	for _, title := range []string{"first", "second", "third"} {
		_, err := publish.Publish(b.ctx, workspace, card(b.T, "harbour", title))
		must(b.T, err)
	}
	// The third version is handled first.
	b.exec(`update core.outbox set available_at = clock_timestamp() - make_interval(secs => (payload ->> 'version')::int
		/ 1e6)`)
	b.exec("alter table core.outbox enable trigger outbox_notify; select pg_notify('outbox_gen_1', '')")
	l.awaitDelivered(3)
	if got := one[string](b, "select version || title || (snapshot ->> 'title') from platform.system_cards where "+
		"workspace_id = $1", workspace); got != "3thirdthird" {
		b.Fatalf("the projection is %s", got)
	}
}

func concurrentVersionsOfACardDiffer(b *bundle, _ *testWorker) {
	const n = 4
	workspace := newWorkspace()
	countOf(b.T, n, func() (bool, error) {
		_, err := app.NewPublishCard(b.uow).Publish(b.ctx, workspace, card(b.T, "harbour", "title"))
		return true, err
	})
	if got := one[int](b, "select count(distinct payload -> 'version')::int from core.outbox"); got != n {
		b.Fatalf("%d different versions of %d", got, n)
	}
	if got := one[int](b, "select version::int from worlds.world_model_cards where workspace_id = $1",
		workspace); got != n {
		b.Fatalf("the card is at version %d", got)
	}
}

func aRollbackPublishesNothing(b *bundle, _ *testWorker) {
	var revoked events.Tx
	if err := b.uow.Do(b.ctx, events.Worlds, uuid.NullUUID{}, func(tx events.Tx, p events.PublisherFor) error {
		revoked = tx
		must(b.T, p().Publish(b.ctx, event(1)))
		_, _ = tx.Exec(b.ctx, "select 1/0")
		return nil
	}); err == nil {
		b.Error("a unit of work with a failed statement committed")
	}
	if _, err := revoked.Exec(b.ctx, "select 1"); !errors.Is(err, pgtx.ErrTxOver) {
		b.Errorf("the Tx of an ended unit of work still works: %v", err)
	}
	if n := one[int](b, "select count(*)::int from core.outbox"); n != 0 {
		b.Fatalf("%d rows were published", n)
	}
}

// BEGIN, the events and COMMIT are one message. Whether it took effect is unknown, and the error must say so.
func aLostAnswerIsTheCommitsError(b *bundle, _ *testWorker) {
	var lost atomic.Bool
	b.sockets = &sockets{via: func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := new(net.Dialer).DialContext(ctx, network, address)
		return &answerLost{conn, &lost}, err
	}}
	u := &publish.UnitOfWork{Pool: b.workersPool(), Publishing: b.publishing}
	do := func() error {
		return u.Do(b.ctx, events.Worlds, uuid.NullUUID{}, func(_ events.Tx, p events.PublisherFor) error {
			lost.Store(one[int](b, "select count(*) from core.outbox") == 2) // the statements are prepared
			return p().Publish(b.ctx, event(0))
		})
	}
	must(b.T, do())
	must(b.T, do())
	err := do()
	if err == nil || !strings.HasPrefix(err.Error(), "commit: ") || pgtx.ErrorClass(err) != pgtx.ClassConnection {
		b.Errorf("%v", err)
	}
	if n := one[int](b, "select count(*) from core.outbox"); n != 3 {
		b.Errorf("%d events are published, want 3", n)
	}
}

// What a unit of work publishes waits for its next statement or its end, and takes effect where it was published.
func aUnitSendsWhatItPublishesInOrder(b *bundle, _ *testWorker) {
	duplicate := event(9)
	duplicate.EventID, duplicate.OccurredAt = uuid.New(), time.Now().Truncate(time.Microsecond)
	b.publish(duplicate)
	direct := &publish.UnitOfWork{Pool: b.workersPool(), Publishing: b.publishing}
	type unit = func(tx events.Tx, send func(...events.Envelope)) error
	run := func(sql string, tx events.Tx) error { _, err := tx.Exec(b.ctx, sql); return err }
	over, cancel := context.WithCancel(b.ctx)
	cancel()
	for name, c := range map[string]struct {
		do        unit
		published string
		fails     bool
	}{
		"nothing at all": {do: func(events.Tx, func(...events.Envelope)) error { return nil }},
		"only events": {published: "0 1 2", do: func(_ events.Tx, send func(...events.Envelope)) error {
			send(event(0))
			send(event(1), event(2))
			return nil
		}},
		"one before a savepoint, one undone": {published: "0 2",
			do: func(tx events.Tx, send func(...events.Envelope)) error {
				send(event(0))
				must(b.T, run("savepoint unit", tx))
				send(event(1))
				must(b.T, run("rollback to unit", tx))
				send(event(2))
				return nil
			}},
		"one before a statement that is cancelled": {published: "0",
			do: func(tx events.Tx, send func(...events.Envelope)) error {
				send(event(0))
				if _, err := tx.Exec(over, "select 1"); !errors.Is(err, context.Canceled) {
					b.Errorf("a cancelled statement: %v", err)
				}
				return nil
			}},
		"payloads in one buffer": {published: "0 1", do: func(_ events.Tx, send func(...events.Envelope)) error {
			e := event(0)
			send(e)
			copy(e.Payload, event(1).Payload)
			send(e)
			return nil
		}},
		"a refusal is the next statement's error": {fails: true,
			do: func(tx events.Tx, send func(...events.Envelope)) error {
				send(event(0), duplicate)
				return run("select 1", tx)
			}},
		"or that of the unit": {fails: true, do: func(_ events.Tx, send func(...events.Envelope)) error {
			send(event(0))
			send(duplicate)
			return nil
		}},
	} {
		for pool, u := range map[string]*publish.UnitOfWork{"a pooler's": b.uow, "a direct": direct, "the same": direct} {
			b.exec("delete from core.outbox where id <> $1", duplicate.EventID)
			err := u.Do(b.ctx, events.Worlds, uuid.NullUUID{}, func(tx events.Tx, p events.PublisherFor) error {
				return c.do(tx, func(all ...events.Envelope) { must(b.T, p().Publish(b.ctx, all...)) })
			})
			if refusal, ok := errors.AsType[*events.Refusal](err); ok != c.fails || ok && refusal.Field != "event_id" {
				b.Errorf("%s on %s connection: %v", name, pool, err)
			}
			published := one[string](b, "select coalesce(string_agg(payload ->> 'n', ' ' order by available_at, id), '') "+
				"from core.outbox where id <> $1", duplicate.EventID)
			if published != c.published {
				b.Errorf("%s on %s connection: %q were published, want %q", name, pool, published, c.published)
			}
		}
	}
	err := direct.Do(b.ctx, events.Worlds, uuid.NullUUID{}, func(tx events.Tx, p events.PublisherFor) error {
		_, _ = tx.Exec(b.ctx, "select 1/0")
		return p().Publish(b.ctx, event(0))
	})
	if err == nil || !strings.Contains(err.Error(), "aborted") {
		b.Errorf("published in an aborted transaction: %v", err)
	}
	err = direct.Do(b.ctx, events.Worlds, uuid.NullUUID{}, func(_ events.Tx, p events.PublisherFor) error {
		return p().Publish(over, event(0))
	})
	if !errors.Is(err, context.Canceled) {
		b.Errorf("published when it was cancelled: %v", err)
	}
	// one at a time publishes, and the others are told so
	b.exec("delete from core.outbox")
	var accepted atomic.Int64
	err = direct.Do(b.ctx, events.Worlds, uuid.NullUUID{}, func(_ events.Tx, p events.PublisherFor) error {
		publisher := p()
		var all sync.WaitGroup
		for range 4 {
			all.Go(func() {
				for n := range 500 {
					if publisher.Publish(b.ctx, event(n)) == nil {
						accepted.Add(1)
					}
				}
			})
		}
		all.Wait()
		return nil
	})
	must(b.T, err)
	if n := one[int](b, "select count(*)::int from core.outbox"); n != int(accepted.Load()) || n == 0 {
		b.Errorf("of %d events that were accepted at once, %d are stored", accepted.Load(), n)
	}
}

// A large Publish takes several calls. The error names the event's place among all of them.
func aRefusalNamesThePlaceInTheWholePublish(b *bundle, _ *testWorker) {
	unknown := happenedContract()
	unknown.Type = "worlds.test.unregistered"
	contracts, err := events.NewContracts(happenedContract(), unknown)
	must(b.T, err)
	b.uow.Publishing.Contracts = contracts
	many := make([]events.Envelope, 1100)
	for i := range many {
		many[i] = event(i)
	}
	many[1045].EventType = unknown.Type
	err = b.uow.Do(b.ctx, events.Worlds, uuid.NullUUID{}, func(_ events.Tx, publisherFor events.PublisherFor) error {
		return publisherFor().Publish(b.ctx, many...)
	})
	var refusal *events.Refusal
	if !errors.As(err, &refusal) || refusal.Code != events.CodeUnregistered || refusal.Field != "event_type" ||
		!strings.HasPrefix(err.Error(), `event 1046 of 1100: event "worlds.test.unregistered" refused (SP016): event_type`) {
		b.Fatalf("%v", err)
	}
	if n := one[int](b, "select count(*)::int from core.outbox"); n != 0 {
		b.Fatalf("%d events were published", n)
	}
}
