package events

import (
	"errors"

	"github.com/google/uuid"

	"spectral/internal/core/check"
	"spectral/internal/core/events"
	"spectral/internal/worlds/application"
	"spectral/internal/worlds/domain"
)

// FailureClusterCandidateProposerName is part of the dedup key of the handler of version 1. It must never change.
const FailureClusterCandidateProposerName = "worlds.failure_cluster_candidate_proposer"

// FailureClusterV2CandidateProposerName is part of the dedup key of the handler of version 2. It must never change.
const FailureClusterV2CandidateProposerName = "worlds.failure_cluster_v2_candidate_proposer"

// FailureClusterDetectedEvent is what worlds reads of platform.failure_cluster.detected.
type FailureClusterDetectedEvent struct {
	ClusterID uuid.UUID `json:"cluster_id"`
	Signature string    `json:"signature"`
	Count     int64     `json:"count"`
}

// FailureClusterDetectedV2Event is what worlds reads of platform.failure_cluster.detected.v2.
type FailureClusterDetectedV2Event struct {
	ClusterID uuid.UUID `json:"cluster_id"`
	Revision  int64     `json:"revision"`
	Signature struct {
		Component  string `json:"component"`
		Operation  string `json:"operation"`
		ErrorClass string `json:"error_class"`
	} `json:"signature"`
	Failures []struct {
		Count int64 `json:"count"`
	} `json:"failures"`
}

// FailureClusterCandidateProposer proposes rules against the failures of clusters, from version 1 of the event. Version
// 1 has no revision, so it never changes a candidate that version 2 has updated. It proposes the facts of a batch at
// once: with one call per event, two batches could wait for each other's candidates.
func FailureClusterCandidateProposer(candidates *application.ProposeCandidate) events.BatchHandler {
	return events.BatchHandlerOf(func(_ events.Envelope, d FailureClusterDetectedEvent) (domain.CandidateFacts, error) {
		return domain.ClusterFacts(d.ClusterID, 0, d.Signature, d.Count)
	}, candidates.Propose)
}

// FailureClusterV2CandidateProposer proposes rules against the failures of clusters, from version 2 of the event.
func FailureClusterV2CandidateProposer(candidates *application.ProposeCandidate) events.BatchHandler {
	return events.BatchHandlerOf(func(_ events.Envelope, d FailureClusterDetectedV2Event) (domain.CandidateFacts, error) {
		counts := make([]int64, len(d.Failures))
		for i, f := range d.Failures {
			counts[i] = f.Count
		}
		failures, err := domain.SumOf(counts)
		s := d.Signature
		if s.Component == "" || s.Operation == "" || s.ErrorClass == "" {
			err = errors.Join(err, errors.New("signature needs component, operation and error_class"))
		}
		// the form of version 1, so both versions lead to the same statement
		signature := s.Component + "/" + s.Operation + ": " + s.ErrorClass
		facts, invalid := domain.ClusterFacts(d.ClusterID, d.Revision, signature, failures)
		return facts, errors.Join(err, check.AtLeast("revision", d.Revision, 1), invalid)
	}, candidates.Propose)
}

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
