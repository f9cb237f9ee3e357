package integration_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"spectral/internal/app"
	"spectral/internal/core/events"
	"spectral/internal/core/events/eventstest"
	"spectral/internal/worlds/application"
	"spectral/internal/worlds/domain"
	"spectral/tests/pgtest"
)

// The recorder takes the place of the database.
func TestPublishCardPublishesTheCard(t *testing.T) {
	t.Parallel()
	contracts, err := app.Contracts()
	if err != nil {
		t.Fatal(err)
	}
	recorder := eventstest.NewRecorder(contracts, time.Now)
	transact := func(_ context.Context, _ uuid.NullUUID, work func(application.Cards, events.EventPublisher) error) error {
		return recorder.Transact(func(publisherFor events.PublisherFor) error {
			return work(cardsInMemory{}, publisherFor())
		})
	}
	publishCard := application.PublishCard{Transact: transact, Now: time.Now}

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
	eventstest.RequireNotPublished(t, recorder, "worlds.world_model_card.published",
		func(p cardPublished) bool { return p.CardID == "mill" })
}

// cardsInMemory is a repository that stores nothing, and fails to store the card mill.
type cardsInMemory struct{}

var errUnstorable = errors.New("unstorable")

func (cardsInMemory) ReserveVersion(context.Context, uuid.NullUUID, string, time.Time) (int64, error) {
	return 1, nil
}

func (cardsInMemory) Put(_ context.Context, _ uuid.NullUUID, cardID string, _ int64, _ json.RawMessage,
	_ time.Time) error {
	if cardID == "mill" {
		return errUnstorable
	}
	return nil
}

// Drain runs every consumer of the product on a real database.
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
	err = db.QueryRow(t.Context(), `select title from platform.system_cards
		where workspace_id = $1 and card_id = 'harbour'`, workspace).Scan(&title)
	if err != nil {
		t.Fatal(err)
	}
	if title != "The Harbour of Veyra" {
		t.Errorf("projected with the title %q", title)
	}
	type cardPublished struct {
		CardID string `json:"card_id"`
	}
	outbox := eventstest.Outbox(db)
	eventstest.RequirePublished(t, outbox.InWorkspace(workspace.UUID), "worlds.world_model_card.published",
		func(p cardPublished) bool { return p.CardID == "harbour" })
	eventstest.RequireNotPublished[any](t, outbox.InWorkspace(uuid.New()), "worlds.world_model_card.published")
}

// A developer who forgot a grant or a consumer is told so at once, and not when the retries are used up.
func TestDrainFailsAtOnceWhereWaitingCannotHelp(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ prepare, publish, want string }{
		{
			"revoke insert, update on platform.system_cards from spectral_platform",
			`select core.outbox_publish('worlds.world_model_card.published', 'worlds',
				'{"card_id": "c", "version": 1, "title": "t"}')`,
			`worlds.world_model_card.published cannot be delivered: DatabaseError: platform.world_model_card_projector: ` +
				`.*permission denied for table system_cards .*
platform.world_model_card_projector runs as spectral_platform, whose privileges on platform.system_cards are: select. .*
  grant select, insert, update on platform.system_cards to spectral_platform;$`,
		},
		{"select", "select core.outbox_publish('" + happenedType + `', 'worlds', '{"n": 1}')`,
			happenedType + " has no handler in the workers that run: list its consumer in ConsumerBuilders"},
	} {
		url := pgtest.New(t)
		db := pgtest.Pool(t, url)
		pgtest.Workers(t, url)
		for _, sql := range []string{c.prepare, c.publish} {
			_, err := db.Exec(t.Context(), sql)
			must(t, err)
		}
		func() {
			defer func() {
				if message := fmt.Sprint(recover()); !regexp.MustCompile("^" + c.want).MatchString(message) {
					t.Errorf("Drain fails with\n%s\nwant\n%s", message, c.want)
				}
			}()
			eventstest.Drain(panickingTB{t}, db)
		}()
	}
}

// panickingTB panics with the message that a test fails with.
type panickingTB struct{ testing.TB }

func (panickingTB) Helper() {}

func (panickingTB) Fatalf(format string, args ...any) { panic(fmt.Sprintf(format, args...)) }

// Drain fails the test while events are left, and also waits for those that handlers publish.
func aTestsDrainWaitsForWhatHandlersPublish(b *bundle) {
	b.publish(event(20))
	func() {
		defer func() {
			if message := fmt.Sprint(recover()); !strings.HasPrefix(message,
				"the outbox is not quiet after 1ms; of 1 events these are left:") {
				b.Errorf("with an event left it says %s", message)
			}
		}()
		eventstest.DrainWithin(panickingTB{b.T}, b.pool, time.Millisecond)
	}()
	s := subscription(handler("worlds.one", func(ctx context.Context, tx events.Tx, e events.Envelope) error {
		payload, err := events.Decode[happened](e)
		if err != nil || payload.N == 0 {
			return err
		}
		return b.publishing.Publisher(tx).Publish(ctx, event(payload.N-1))
	}))
	eventstest.Start(b.T, b.newWorker(noPoll, s).Worker)
	outcomes := eventstest.Drain(b.T, b.pool)
	eventstest.RequireDelivered(b.T, outcomes)
	if len(outcomes) != 21 {
		b.Fatalf("the drain ended after %d of 21 events", len(outcomes))
	}
	for i, o := range outcomes {
		payload, err := events.Decode[happened](o.Envelope)
		if err != nil || payload.N != 20-i || o.Envelope.EventType != happenedType || o.Status != eventstest.Delivered ||
			o.LastError != "" ||
			!slices.Equal(o.HandledBy, []string{"worlds.one"}) || o.Generation != pgtest.Generation {
			b.Fatalf("outcome %d: %+v, %v", i, o, err)
		}
	}
}
