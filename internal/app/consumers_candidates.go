package app

import (
	"github.com/google/uuid"

	"spectral/internal/core/events"
	platform "spectral/internal/platform/contracts/events"
	platformevents "spectral/internal/platform/infrastructure/events"
	platformpg "spectral/internal/platform/infrastructure/postgres"
	worldsapp "spectral/internal/worlds/application"
	worlds "spectral/internal/worlds/contracts/events"
	worldsevents "spectral/internal/worlds/infrastructure/events"
	worldspg "spectral/internal/worlds/infrastructure/postgres"
)

// proposeCandidate is the use case in a handler's transaction.
func proposeCandidate(parts Parts, tx events.Tx) *worldsapp.ProposeCandidate {
	return worldsapp.NewProposeCandidate(worldspg.NewRuleCandidates(tx), parts.UnitOfWork.Publishing.Publisher(tx), uuid.NewV7, now)
}

func buildFailureClusterConsumer(parts Parts) events.Subscription {
	return parts.consumer(platform.FailureClusterDetectedContract(), events.Registration{
		Name: worldsevents.FailureClusterCandidateProposerName, Reads: worldsevents.FailureClusterDetectedEvent{},
		Batch: func(tx events.Tx) events.BatchHandler {
			return worldsevents.FailureClusterCandidateProposer(proposeCandidate(parts, tx))
		},
	})
}

func buildFailureClusterV2Consumer(parts Parts) events.Subscription {
	return parts.consumer(platform.FailureClusterDetectedV2Contract(), events.Registration{
		Name: worldsevents.FailureClusterV2CandidateProposerName, Reads: worldsevents.FailureClusterDetectedV2Event{},
		Batch: func(tx events.Tx) events.BatchHandler {
			return worldsevents.FailureClusterV2CandidateProposer(proposeCandidate(parts, tx))
		},
	})
}

func buildMemoryRoutingConsumer(parts Parts) events.Subscription {
	return parts.consumer(platform.MemoryPromotedContract(), events.Registration{
		Name: worldsevents.MemoryCandidateRouterName, Reads: worldsevents.MemoryPromotedEvent{},
		Batch: func(tx events.Tx) events.BatchHandler {
			return worldsevents.MemoryCandidateRouter(proposeCandidate(parts, tx))
		},
	})
}

func buildCurationConsumer(parts Parts) events.Subscription {
	return parts.consumer(platform.CurationDecidedContract(), events.Registration{
		Name: worldsevents.CurationDecisionApplierName, Reads: worldsevents.CurationDecidedEvent{},
		Batch: func(tx events.Tx) events.BatchHandler {
			return worldsevents.NewCurationDecisionApplier(worldsapp.NewApplyDecision(
				worldspg.NewRuleCandidates(tx), worldspg.NewCurationRulings(tx), parts.UnitOfWork.Publishing.Publisher(tx), now))
		},
	})
}

func buildCurationOutcomeConsumer(parts Parts) events.Subscription {
	return parts.consumer(worlds.CurationAppliedContract(), events.Registration{
		Name: platformevents.CurationOutcomeRecorderName, Reads: platformevents.CurationAppliedEvent{},
		Handler: func(tx events.Tx) events.EventHandler {
			return platformevents.CurationOutcomeRecorder(platformpg.NewCurationDecisions(tx))
		},
	})
}
