package integration_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"spectral/internal/app"
	"spectral/internal/core/events"
	"spectral/internal/core/events/eventstest"
	"spectral/internal/core/events/infrastructure/postgres"
	"spectral/internal/worlds/application"
	"spectral/internal/worlds/domain"
	"spectral/tests/pgtest"
)

// A use case without a database.
func TestPublishCardPublishesTheCard(t *testing.T) {
	t.Parallel()
	contracts, err := app.Contracts()
	if err != nil {
		t.Fatal(err)
	}
	recorder := eventstest.NewRecorder(contracts, time.Now)
	publishCard := application.NewPublishCard(func(_ context.Context, _ uuid.NullUUID, work func(application.Cards, events.EventPublisher) error) error {
		return recorder.Transact(func(publisherFor events.PublisherFor) error { return work(cardsInMemory{}, publisherFor()) })
	}, time.Now)

	card, err := domain.NewWorldModelCard("harbour", "The Harbour of Veyra", "", nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := publishCard.Publish(t.Context(), uuid.NullUUID{}, card); err != nil {
		t.Fatal(err)
	}
	type cardPublished struct {
		CardID  string `json:"card_id"`
		Version int64  `json:"version"`
	}
	eventstest.RequirePublished(t, recorder, "worlds.world_model_card.published", func(p cardPublished) bool {
		return p.CardID == "harbour" && p.Version == 1
	})

	unstorable, err := domain.NewWorldModelCard("mill", "The Tide Mill", "", nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := publishCard.Publish(t.Context(), uuid.NullUUID{}, unstorable); !errors.Is(err, errUnstorable) {
		t.Fatalf("the card was stored, or: %v", err)
	}
	eventstest.RequireNotPublished(t, recorder, "worlds.world_model_card.published", func(p cardPublished) bool { return p.CardID == "mill" })
}

// cardsInMemory is as much of a repository as the test needs: it cannot store the mill.
type cardsInMemory struct{}

var errUnstorable = errors.New("unstorable")

func (cardsInMemory) ReserveVersion(context.Context, uuid.NullUUID, string, time.Time) (int64, error) {
	return 1, nil
}

func (cardsInMemory) Put(_ context.Context, _ uuid.NullUUID, cardID string, _ int64, _ json.RawMessage, _ time.Time) error {
	if cardID == "mill" {
		return errUnstorable
	}
	return nil
}

// The whole way: every consumer of the product at a real database.
func TestPublishedCardReachesPlatform(t *testing.T) {
	t.Parallel()
	url := pgtest.New(t)
	db := pgtest.Pool(t, url)
	publishCard := app.NewPublishCard(pgtest.Workers(t, url))

	workspace := uuid.NullUUID{UUID: uuid.New(), Valid: true}
	card, err := domain.NewWorldModelCard("harbour", "The Harbour of Veyra", "", nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := publishCard.Publish(t.Context(), workspace, card); err != nil {
		t.Fatal(err)
	}
	eventstest.RequireDelivered(t, eventstest.Drain(t, db))

	var title string
	if err := db.QueryRow(t.Context(), "select title from platform.system_cards where workspace_id = $1 and card_id = 'harbour'", workspace).Scan(&title); err != nil {
		t.Fatal(err)
	}
	if title != "The Harbour of Veyra" {
		t.Errorf("projected with the title %q", title)
	}
	type cardPublished struct {
		CardID string `json:"card_id"`
	}
	outbox := eventstest.Outbox(db)
	eventstest.RequirePublished(t, outbox.InWorkspace(workspace.UUID), "worlds.world_model_card.published", func(p cardPublished) bool {
		return p.CardID == "harbour"
	})
	eventstest.RequireNotPublished[any](t, outbox.InWorkspace(uuid.New()), "worlds.world_model_card.published")
}

// The page shows these tests, word for word.
func TestTheTestingPageIsUpToDate(t *testing.T) {
	t.Parallel()
	source, err := os.ReadFile("eventstest_test.go")
	must(t, err)
	page, err := os.ReadFile("../../docs/testing.md")
	must(t, err)
	blocks := 0
	for i, block := range strings.Split(string(page), "```") {
		code, isGo := strings.CutPrefix(block, "go\n")
		if i%2 == 0 || !isGo {
			continue
		}
		blocks++
		if !strings.Contains(string(source), strings.TrimSpace(code)) {
			t.Errorf("docs/testing.md has a block that is not in tests/integration/eventstest_test.go: copy it from there:\n%s", code)
		}
	}
	if blocks == 0 {
		t.Error("docs/testing.md shows no Go")
	}
}

// idleListener has no subscriptions and has not been started. Without a notification it looks at nothing.
func (b *bundle) idleListener() *postgres.Listener {
	b.Helper()
	direct, err := postgres.DirectConfig(b.url)
	must(b.T, err)
	config, err := postgres.PoolConfig(b.url, 8)
	must(b.T, err)
	config.ConnConfig.RuntimeParams["application_name"] = "workers"
	pool, err := pgxpool.NewWithConfig(b.ctx, config)
	must(b.T, err)
	b.Cleanup(pool.Close)
	listener, err := postgres.NewListener(postgres.Config{
		Generation: pgtest.Generation, Direct: direct, Pool: pool, Contracts: b.contracts, Log: slog.New(b.log), PollInterval: noPoll,
		Worker: uuid.New(), Name: b.Name(), Now: time.Now, Random: rand.Float64,
	})
	must(b.T, err)
	return listener
}

// failing notes how a test fails. Drain and the like are tried on it.
type failing struct {
	testing.TB
	message string
}

type failedTest struct{}

func (f *failing) Helper() {}

func (f *failing) Fatal(args ...any) { f.Fatalf("%s", fmt.Sprint(args...)) }

func (f *failing) Fatalf(format string, args ...any) {
	f.message = fmt.Sprintf(format, args...)
	panic(failedTest{})
}

// failureOf is the message with which do fails a test, or empty.
func failureOf(t testing.TB, do func(*failing)) string {
	t.Helper()
	f := &failing{TB: t}
	func() {
		defer func() {
			if r := recover(); r != nil && r != any(failedTest{}) {
				panic(r)
			}
		}()
		do(f)
	}()
	return f.message
}

// wantTable checks the lines of a message: that each has its words, blanks apart, in this order.
func wantTable(t testing.TB, message string, lines ...string) {
	t.Helper()
	got := strings.Split(strings.TrimSpace(message), "\n")
	if len(got) != len(lines) {
		t.Fatalf("%d lines, want %d:\n%s", len(got), len(lines), message)
	}
	for i, want := range lines {
		if !strings.Contains(strings.Join(strings.Fields(got[i]), " "), want) {
			t.Errorf("line %d is %q, want in it %q", i+1, got[i], want)
		}
	}
}

const tableHead = "event type generation status attempts due handler failures last error"

func TestDrainWaitsForWhatHandlersPublish(t *testing.T) {
	b := setup(t)
	listener := b.idleListener()
	s := subscription(handler("worlds.one", func(ctx context.Context, tx events.Tx, e events.Envelope) error {
		payload, err := events.Decode[happened](e)
		if err != nil || payload.N == 0 {
			return err
		}
		return b.publishing.Publisher(tx).Publish(ctx, event(payload.N-1)) // there is always one more
	}))
	must(t, listener.Listen(b.ctx, s))
	eventstest.Start(t, listener)
	b.publish(event(20))
	outcomes := eventstest.Drain(t, b.pool)
	eventstest.RequireDelivered(t, outcomes)
	if len(outcomes) != 21 {
		t.Fatalf("quiet after %d of 21 events", len(outcomes))
	}
	for i, o := range outcomes {
		payload, err := events.Decode[happened](o.Envelope)
		if err != nil || payload.N != 20-i || o.Envelope.EventType != happenedType || o.Status != eventstest.Delivered || o.LastError != "" ||
			!slices.Equal(o.HandledBy, []string{"worlds.one"}) || o.Generation != pgtest.Generation {
			t.Fatalf("outcome %d: %+v, %v", i, o, err)
		}
	}
}

func TestDrainTellsWhatIsLeft(t *testing.T) {
	b := setup(t)
	b.exec("alter table core.outbox disable trigger outbox_notify")
	due, retried, inFlight, failed, scheduled := event(1), event(2), event(3), event(4), event(5)
	b.publish(due, retried, inFlight, failed)
	must(t, b.uow.Do(b.ctx, events.Worlds, uuid.NullUUID{}, func(_ events.Tx, publisherFor events.PublisherFor) error {
		return publisherFor(events.AvailableAt(time.Now().Add(time.Hour))).Publish(b.ctx, scheduled)
	}))
	b.exec(`update core.outbox set attempts = 2, available_at = now() + interval '1 hour', last_error = E'HandlerError: platform.one: no\nfurther',
		handler_failures = '{"platform.one": {"failures": 2, "class": "HandlerError", "error": "no"}, "worlds.two": {"failures": 1, "parked": true, "class": "TerminalError", "error": "no"}}'
		where id = $1`, retried.EventID)
	b.exec("update core.outbox set status = 'in_flight', claim_token = gen_random_uuid(), claimed_at = now(), attempts = 1 where id = $1", inFlight.EventID)
	b.exec("update core.outbox set status = 'failed', attempts = 1, last_error = 'TerminalError: platform.one: no' where id = $1", failed.EventID)
	drain := func(options ...eventstest.DrainOption) string {
		return failureOf(t, func(t *failing) {
			eventstest.Drain(t, b.pool, append(options, eventstest.Within(50*time.Millisecond))...)
		})
	}
	left := []string{
		tableHead,
		due.EventID.String() + " " + happenedType + " 1 pending 0",
		retried.EventID.String() + " " + happenedType + " 1 pending 2",
		inFlight.EventID.String() + " " + happenedType + " 1 in_flight 1",
	}
	message := drain()
	wantTable(t, message, append([]string{"the outbox is not quiet after 50ms; of 5 events these are left:"}, left...)...)
	if words := strings.Join(strings.Fields(message), " "); !strings.Contains(words, "platform.one 2, worlds.two 1 (parked) HandlerError: platform.one: no further ") {
		t.Errorf("failures are missing in %s", message)
	}
	wantTable(t, drain(eventstest.AwaitScheduled()), append([]string{"of 5 events"}, append(left, scheduled.EventID.String())...)...)

	// as soon as these are settled, it is quiet but for what is scheduled
	b.exec("update core.outbox set status = 'delivered', claim_token = null where id = any($1)", []uuid.UUID{due.EventID, retried.EventID, inFlight.EventID})
	outcomes := eventstest.Drain(t, b.pool, eventstest.Within(50*time.Millisecond))
	wantTable(t, drain(eventstest.AwaitScheduled()), "of 5 events", tableHead, scheduled.EventID.String())
	wantTable(t, failureOf(t, func(t *failing) { eventstest.RequireDelivered(t, outcomes) }),
		"2 of 5 events were not delivered:", tableHead, failed.EventID.String(), scheduled.EventID.String())
	b.exec("update core.outbox set available_at = now() where id = $1", scheduled.EventID)
	wantTable(t, drain(), "of 5 events", tableHead, scheduled.EventID.String())
}

func TestDrainWaitsForHandlersAtWork(t *testing.T) {
	b := setup(t)
	g := newGate()
	t.Cleanup(g.letOn)
	listener := b.idleListener()
	must(t, listener.Listen(b.ctx, subscription(handler("platform.one", func(ctx context.Context, _ events.Tx, _ events.Envelope) error { return g.pass(ctx) }))))
	eventstest.Start(t, listener)
	b.publish(event(1))
	g.awaitEntered(t)
	if message := failureOf(t, func(t *failing) { eventstest.Drain(t, b.pool, eventstest.Within(50*time.Millisecond)) }); message == "" {
		t.Error("quiet while a handler is at work")
	}
	g.letOn()
	eventstest.RequireDelivered(t, eventstest.Drain(t, b.pool))
}

func TestNothingIsNotDelivered(t *testing.T) {
	b := setup(t)
	outcomes := eventstest.Drain(t, b.pool)
	if message := failureOf(t, func(t *failing) { eventstest.RequireDelivered(t, outcomes) }); message == "" {
		t.Error("of no events all are delivered")
	}
}
