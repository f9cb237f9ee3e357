package integration_test

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"math/rand/v2"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
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

func TestPostgresIsAPublisher(t *testing.T) {
	t.Parallel()
	eventstest.TestPublisher(t, func(t *testing.T) eventstest.PublisherUnderTest {
		b := setupAlone(t, 4*patience, eventstest.SuiteContracts()...)
		return eventstest.PublisherUnderTest{
			Transact: transactWith(b.uow),
			Publications: func(ctx context.Context) ([]eventstest.Publication, error) {
				outcomes, err := eventstest.Outcomes(ctx, b.pool)
				publications := make([]eventstest.Publication, len(outcomes))
				for i, o := range outcomes {
					publications[i] = o.Publication
				}
				return publications, err
			},
		}
	})
}

func transactWith(u *postgres.UnitOfWork) func(context.Context, func(events.PublisherFor) error) error {
	return func(ctx context.Context, work func(events.PublisherFor) error) error {
		return u.Do(ctx, events.Worlds, uuid.NullUUID{}, func(_ events.Tx, publisherFor events.PublisherFor) error { return work(publisherFor) })
	}
}

func TestPostgresIsAListener(t *testing.T) {
	t.Parallel()
	eventstest.TestListener(t, func(t *testing.T) eventstest.ListenerUnderTest {
		b := setupAlone(t, 4*patience, eventstest.SuiteContracts()...)
		b.exec(`create schema suite; grant usage on schema suite to public;
			create table suite.lines (line text); grant insert on suite.lines to public`)
		elsewhere := *b.uow
		elsewhere.Publishing.Generation = pgtest.Generation + 1
		must(t, postgres.Register(b.ctx, b.pool, elsewhere.Publishing.Generation, b.contracts))
		return eventstest.ListenerUnderTest{
			Listener: b.idleListener(), Generation: pgtest.Generation,
			Transact: transactWith(b.uow), TransactElsewhere: transactWith(&elsewhere),
			Outcomes: func(ctx context.Context) ([]eventstest.Outcome, error) { return eventstest.Outcomes(ctx, b.pool) },
			Leave: func(ctx context.Context, tx events.Tx, line string) error {
				_, err := tx.Exec(ctx, "insert into suite.lines values ($1)", line)
				return err
			},
			Left: func(ctx context.Context) ([]string, error) {
				rows, err := b.pool.Query(ctx, "select line from suite.lines")
				if err != nil {
					return nil, err
				}
				return pgx.CollectRows(rows, pgx.RowTo[string])
			},
			OpenTransactions: func(ctx context.Context) (n int, err error) {
				err = b.pool.QueryRow(ctx, `select count(*)::int from pg_stat_activity
					where datname = current_database() and application_name = 'workers' and state <> 'idle'`).Scan(&n)
				return n, err
			},
		}
	})
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
		Generation: pgtest.Generation, Direct: direct, Pool: pool, Contracts: b.contracts, Log: slog.New(b.log), PollInterval: never,
		Worker: uuid.New(), Name: b.Name(), Now: time.Now, Random: rand.Float64,
	})
	must(b.T, err)
	return listener
}
