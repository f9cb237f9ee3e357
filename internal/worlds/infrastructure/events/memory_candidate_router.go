package events

import (
	"github.com/google/uuid"

	"spectral/internal/core/events"
	"spectral/internal/worlds/application"
	"spectral/internal/worlds/domain"
)

// MemoryCandidateRouterName is part of the router's dedup key. It must never change.
const MemoryCandidateRouterName = "worlds.memory_candidate_router"

// MemoryPromotedEvent is what worlds reads of platform.memory.promoted.
type MemoryPromotedEvent struct {
	MemoryID     uuid.UUID `json:"memory_id"`
	Version      int64     `json:"version"`
	Statement    string    `json:"statement"`
	Observations int64     `json:"observations"`
}

// MemoryCandidateRouter routes promoted memories to rule candidates.
func MemoryCandidateRouter(candidates *application.ProposeCandidate) events.BatchHandler {
	return events.BatchHandlerOf(func(_ events.Envelope, p MemoryPromotedEvent) (domain.CandidateFacts, error) {
		return domain.MemoryFacts(p.MemoryID, p.Version, p.Statement, p.Observations)
	}, candidates.Propose)
}
