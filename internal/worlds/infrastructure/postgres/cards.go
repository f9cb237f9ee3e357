package postgres

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"spectral/internal/core/events"
	"spectral/internal/worlds/contracts/protocols"
	"spectral/internal/worlds/infrastructure/postgres/worldsdb"
)

// Cards stores world model cards in the transaction it was built for.
type Cards struct{ queries *worldsdb.Queries }

// NewCards returns the repository for tx.
func NewCards(tx events.Tx) *Cards { return &Cards{queries: worldsdb.New(tx)} }

// ReserveVersion implements [application.Cards]. It locks the card's row, so publications of one card run one after
// another.
func (c *Cards) ReserveVersion(ctx context.Context, workspace uuid.NullUUID, cardID string,
	at time.Time) (int64, error) {
	return c.queries.ReserveVersion(ctx,
		worldsdb.ReserveVersionParams{WorkspaceID: workspace, CardID: cardID, PublishedAt: at})
}

// Put implements [application.Cards].
func (c *Cards) Put(ctx context.Context, workspace uuid.NullUUID, cardID string, version int64,
	document json.RawMessage, at time.Time) error {
	return c.queries.PutCard(ctx, worldsdb.PutCardParams{
		WorkspaceID: workspace, CardID: cardID, Version: version, Card: document, PublishedAt: at,
	})
}

// Card implements [application.CardReader].
func (c *Cards) Card(ctx context.Context, workspace uuid.NullUUID, cardID string) (card protocols.Card, err error) {
	row, err := c.queries.FindCard(ctx, worldsdb.FindCardParams{WorkspaceID: workspace, CardID: cardID})
	if errors.Is(err, pgx.ErrNoRows) {
		err = protocols.ErrCardNotFound
	}
	if err == nil {
		err = events.Unmarshal(row.Card, &card) // the published payload, whose fields have the same names
	}
	card.CardID, card.Version = cardID, row.Version
	return card, err
}
