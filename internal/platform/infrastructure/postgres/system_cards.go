package postgres

import (
	"context"
	"errors"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"spectral/internal/core/events"
	"spectral/internal/platform/domain"
	"spectral/internal/platform/infrastructure/postgres/platformdb"
)

// SystemCards stores system cards in the transaction it was built for.
type SystemCards struct{ queries *platformdb.Queries }

// NewSystemCards returns the repository for tx.
func NewSystemCards(tx events.Tx) *SystemCards { return &SystemCards{queries: platformdb.New(tx)} }

// Project stores card, unless the same or a higher version is stored already.
func (s *SystemCards) Project(ctx context.Context, workspace uuid.NullUUID, card domain.SystemCard) error {
	return s.queries.ProjectCard(ctx, platformdb.ProjectCardParams{
		WorkspaceID: workspace, CardID: card.CardID, Version: card.Version, Title: card.Title, Snapshot: card.Snapshot,
	})
}

// Versions returns the stored version of each card of a workspace, by card id.
func (s *SystemCards) Versions(ctx context.Context, workspace uuid.NullUUID) (map[string]int64, error) {
	rows, err := s.queries.ListVersions(ctx, workspace)
	versions := make(map[string]int64, len(rows))
	for _, row := range rows {
		versions[row.CardID] = row.Version
	}
	return versions, err
}

// Latest returns the card of a workspace that was projected last, or the zero value if there is none.
func (s *SystemCards) Latest(ctx context.Context, workspace uuid.NullUUID) (domain.SystemCard, error) {
	row, err := s.queries.LatestCard(ctx, workspace)
	if errors.Is(err, pgx.ErrNoRows) {
		err = nil
	}
	return domain.SystemCard{CardID: row.CardID, Version: row.Version, Title: row.Title}, err
}
