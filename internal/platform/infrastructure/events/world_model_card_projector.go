package events

import (
	"context"

	"github.com/google/uuid"

	"spectral/internal/core/events"
	"spectral/internal/platform/domain"
)

// WorldModelCardProjectorName is part of the projector's dedup key. It must never change.
const WorldModelCardProjectorName = "platform.world_model_card_projector"

// WorldModelCardPublishedEvent is what platform reads of worlds.world_model_card.published.
type WorldModelCardPublishedEvent struct {
	CardID  string `json:"card_id"`
	Version int64  `json:"version"`
	Title   string `json:"title"`
}

// SystemCards is where the projector writes.
type SystemCards interface {
	// Project stores card, unless the same or a higher version is stored already.
	Project(ctx context.Context, workspace uuid.NullUUID, card domain.SystemCard) error
}

// WorldModelCardProjector projects world model cards into system cards. The snapshot is the payload.
func WorldModelCardProjector(cards SystemCards) events.EventHandler {
	return events.HandlerOf(func(e events.Envelope, published WorldModelCardPublishedEvent) (domain.SystemCard, error) {
		card := domain.SystemCard{CardID: published.CardID, Version: published.Version, Title: published.Title,
			Snapshot: e.Payload}
		return card, card.Validate()
	}, cards.Project)
}
