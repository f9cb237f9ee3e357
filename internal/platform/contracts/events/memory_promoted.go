package events

import (
	"time"

	"github.com/google/uuid"

	"spectral/internal/core/events"
)

// The event that others may build on something that agents have learned.
const (
	MemoryPromotedType    = "platform.memory.promoted"
	MemoryPromotedVersion = 1
)

// MemoryPromoted is something that agents have learned and others may build on.
type MemoryPromoted struct {
	// MemoryID is the memory's own.
	MemoryID uuid.UUID `json:"memory_id"`
	// Version counts the changes of the memory from 1. Events may arrive in any order: compare it.
	Version int64 `json:"version" jsonschema:"minimum=1"`
	// Scope says for whom it holds: the agent that learned it, or everybody in the workspace.
	Scope string `json:"scope" jsonschema:"enum=agent,enum=workspace"`
	// Statement is what was learned, one sentence.
	Statement string `json:"statement" jsonschema:"minLength=1"`
	// Observations is how often it was recorded before it was promoted.
	Observations int64 `json:"observations" jsonschema:"minimum=1"`
	// PromotedAt is when it was promoted.
	PromotedAt time.Time `json:"promoted_at"`
}

// MemoryPromotedContract declares the event.
func MemoryPromotedContract() events.Contract {
	return events.Contract{
		Type: MemoryPromotedType, Version: MemoryPromotedVersion, Source: events.Platform,
		Payload: MemoryPromoted{
			MemoryID: uuid.MustParse("01936e5c-7d00-7000-8000-0000000000a1"), Version: 3, Scope: "workspace",
			Statement: "Ask a person before a card is deleted.", Observations: 2, PromotedAt: time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC),
		}, ContentClass: events.WorkspaceContent,
	}
}
