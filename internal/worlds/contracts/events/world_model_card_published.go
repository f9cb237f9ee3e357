package events

import (
	"encoding/json"

	"spectral/internal/core/events"
)

// WorldModelCardPublishedType is the event that a world model card has a new version.
const WorldModelCardPublishedType = "worlds.world_model_card.published"

// WorldModelCardPublished is the new version of a world model card.
type WorldModelCardPublished struct {
	// CardID identifies the card within its workspace.
	CardID string `json:"card_id" jsonschema:"minLength=1"`
	// Version counts the card's publications from 1. Compare it, because events may arrive in any order.
	Version int64 `json:"version" jsonschema:"minimum=1"`
	// Title is one line.
	Title string `json:"title" jsonschema:"minLength=1"`
	// Summary is prose.
	Summary string `json:"summary,omitempty"`
	// Attributes is what the world model knows about the card's subject.
	Attributes json.RawMessage `json:"attributes,omitempty"`
}

// WorldModelCardPublishedContract declares the event.
func WorldModelCardPublishedContract() events.Contract {
	return events.Contract{
		Type: WorldModelCardPublishedType, Version: 1, Source: events.Worlds,
		Payload: WorldModelCardPublished{
			CardID: "harbour-veyra", Version: 3, Title: "The Harbour of Veyra",
			Summary: "A deep-water harbour with forty berths.", Attributes: json.RawMessage(`{"berths": 40, "tidal": true}`),
		}, ContentClass: events.WorkspaceContent,
	}
}
