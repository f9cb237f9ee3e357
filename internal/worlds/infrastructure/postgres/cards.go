package postgres

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/google/uuid"

	"spectral/internal/core/events"
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
	version, err := c.queries.ReserveVersion(ctx,
		worldsdb.ReserveVersionParams{WorkspaceID: workspace, CardID: cardID, PublishedAt: at})
	if err != nil {
		return 0, fmt.Errorf("reserve a version of card %s: %w", cardID, err)
	}
	return version, nil
}

// Put implements [application.Cards].
func (c *Cards) Put(ctx context.Context, workspace uuid.NullUUID, cardID string, version int64,
	document json.RawMessage, at time.Time) error {
	n, err := c.queries.PutCard(ctx, worldsdb.PutCardParams{
		WorkspaceID: workspace, CardID: cardID, Version: version, Card: document, PublishedAt: at,
	})
	if err != nil {
		return fmt.Errorf("store card %s: %w", cardID, err)
	}
	if n != 1 {
		return fmt.Errorf("store card %s: version %d was not reserved in this transaction", cardID, version)
	}
	return nil
}
