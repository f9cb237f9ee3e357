package events

import (
	"time"

	"github.com/google/uuid"

	"spectral/internal/core/events"
)

// MemoryPromotedType is the event that a memory of agents was promoted.
const MemoryPromotedType = "platform.memory.promoted"

// MemoryPromoted is something that agents have learned and that others may use.
type MemoryPromoted struct {
	// MemoryID is the memory's id.
	MemoryID uuid.UUID `json:"memory_id"`
	// Version counts the changes of the memory from 1. Compare it, because events may arrive in any order.
	Version int64 `json:"version" jsonschema:"minimum=1"`
	// Scope says who may use it: the agent that learned it, or all in the workspace.
	Scope string `json:"scope" jsonschema:"enum=agent,enum=workspace"`
	// Statement is what was learned, in one sentence.
	Statement string `json:"statement" jsonschema:"minLength=1"`
	// Observations is how often it was recorded before it was promoted.
	Observations int64 `json:"observations" jsonschema:"minimum=1"`
	// PromotedAt is when it was promoted.
	PromotedAt time.Time `json:"promoted_at"`
}

// MemoryPromotedContract declares the event.
func MemoryPromotedContract() events.Contract {
	return events.Contract{
		Type: MemoryPromotedType, Version: 1, Source: events.Platform,
		Payload: MemoryPromoted{
			MemoryID: uuid.MustParse("01936e5c-7d00-7000-8000-0000000000a1"), Version: 3, Scope: "workspace",
			Statement: "Ask a person before a card is deleted.", Observations: 2,
			PromotedAt: time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC),
		}, ContentClass: events.WorkspaceContent, Sensitive: []string{"statement"},
	}
}
