package events

import (
	"context"

	"github.com/google/uuid"

	"spectral/internal/core/events"
	"spectral/internal/worlds/domain"
)

// MemoryCandidateRouterName is half of the router's dedup key: it never changes.
const MemoryCandidateRouterName = "worlds.memory_candidate_router"

// MemoryPromotedEvent is what worlds reads of platform.memory.promoted.
type MemoryPromotedEvent struct {
	MemoryID     uuid.UUID `json:"memory_id"`
	Version      int64     `json:"version"`
	Statement    string    `json:"statement"`
	Observations int64     `json:"observations"`
}

// MemoryCandidateRouter routes promoted memories to rule candidates.
func MemoryCandidateRouter(candidates CandidateProposer) events.EventHandler {
	return func(ctx context.Context, e events.Envelope) error {
		promoted, err := events.Decode[MemoryPromotedEvent](e)
		if err != nil {
			return err
		}
		facts, err := domain.MemoryFacts(promoted.MemoryID, promoted.Version, promoted.Statement, promoted.Observations)
		if err != nil {
			return &events.PayloadError{EventType: e.EventType, Err: err}
		}
		return candidates.Propose(ctx, e.WorkspaceID, facts)
	}
}
