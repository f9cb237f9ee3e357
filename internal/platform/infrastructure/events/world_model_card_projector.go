package events

import (
	"context"

	"github.com/google/uuid"

	"spectral/internal/core/events"
	"spectral/internal/platform/domain"
)

// WorldModelCardProjectorName is half of the projector's dedup key: it never changes.
const WorldModelCardProjectorName = "platform.world_model_card_projector"

// WorldModelCardPublishedEvent is what platform reads of worlds.world_model_card.published.
type WorldModelCardPublishedEvent struct {
	CardID  string `json:"card_id"`
	Version int64  `json:"version"`
	Title   string `json:"title"`
}

// SystemCards is what the projector writes to.
type SystemCards interface {
	// Project stores card unless the same or a higher version of it is there already.
	Project(ctx context.Context, workspace uuid.NullUUID, card domain.SystemCard) error
}

// WorldModelCardProjector projects world model cards into system cards: the snapshot is the
// payload as it came.
func WorldModelCardProjector(cards SystemCards) events.EventHandler {
	return events.HandlerOf(func(e events.Envelope, published WorldModelCardPublishedEvent) (domain.SystemCard, error) {
		card := domain.SystemCard{CardID: published.CardID, Version: published.Version, Title: published.Title, Snapshot: e.Payload}
		return card, card.Validate()
	}, cards.Project)
}
