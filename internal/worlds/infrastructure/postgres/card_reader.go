package postgres

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"spectral/internal/core/events"
	"spectral/internal/worlds/contracts/protocols"
	"spectral/internal/worlds/infrastructure/postgres/worldsdb"
)

// CardReader reads world model cards in the transaction it was built for.
type CardReader struct{ queries *worldsdb.Queries }

// NewCardReader returns the reader for tx.
func NewCardReader(tx events.Tx) *CardReader { return &CardReader{queries: worldsdb.New(tx)} }

// Card implements [application.CardReader].
func (c *CardReader) Card(ctx context.Context, workspace uuid.NullUUID, cardID string) (protocols.Card, error) {
	row, err := c.queries.FindCard(ctx, worldsdb.FindCardParams{WorkspaceID: workspace, CardID: cardID})
	if errors.Is(err, pgx.ErrNoRows) {
		return protocols.Card{}, protocols.ErrCardNotFound
	}
	if err != nil {
		return protocols.Card{}, err
	}
	var stored struct {
		Title      string          `json:"title"`
		Summary    string          `json:"summary"`
		Attributes json.RawMessage `json:"attributes"`
	}
	if err := json.Unmarshal(row.Card, &stored); err != nil {
		return protocols.Card{}, fmt.Errorf("card %s as stored: %w", cardID, err)
	}
	return protocols.Card{CardID: cardID, Version: row.Version, Title: stored.Title, Summary: stored.Summary,
		Attributes: stored.Attributes}, nil
}
