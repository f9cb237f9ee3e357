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

// WorldModelCardProjector projects world model cards into system cards. The snapshot is the payload. Project stores a
// card, unless the same or a higher version is stored already.
func WorldModelCardProjector(
	project func(context.Context, uuid.NullUUID, domain.SystemCard) error,
) events.EventHandler {
	return events.HandlerOf(func(e events.Envelope, published WorldModelCardPublishedEvent) (domain.SystemCard, error) {
		card := domain.SystemCard{CardID: published.CardID, Version: published.Version, Title: published.Title,
			Snapshot: e.Payload}
		return card, card.Validate()
	}, project)
}
