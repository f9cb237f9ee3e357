package events

import (
	"encoding/json"

	"spectral/internal/core/events"
)

// The event that a world model card has a new version.
const (
	WorldModelCardPublishedType    = "worlds.world_model_card.published"
	WorldModelCardPublishedVersion = 1
)

// WorldModelCardPublished is its payload: the whole card as it now stands.
type WorldModelCardPublished struct {
	CardID string `json:"card_id"`
	// Version counts the card's publications from 1. Events may arrive in any order: compare it.
	Version int64  `json:"version"`
	Title   string `json:"title"`
	Summary string `json:"summary"`
	// Attributes is a JSON object of whatever the world model knows about the card's subject.
	Attributes json.RawMessage `json:"attributes"`
}

// WorldModelCardPublishedContract declares the event.
func WorldModelCardPublishedContract() events.Contract {
	return events.Contract{
		Type: WorldModelCardPublishedType, Version: WorldModelCardPublishedVersion, Source: events.Worlds,
		Payload: WorldModelCardPublished{}, ContentClass: events.WorkspaceContent,
	}
}
