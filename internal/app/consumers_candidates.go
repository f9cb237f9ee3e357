package app

import (
	"spectral/internal/core/events"
	platform "spectral/internal/platform/contracts/events"
	platformevents "spectral/internal/platform/infrastructure/events"
	platformpg "spectral/internal/platform/infrastructure/postgres"
	worldsapp "spectral/internal/worlds/application"
	worlds "spectral/internal/worlds/contracts/events"
	worldsevents "spectral/internal/worlds/infrastructure/events"
	worldspg "spectral/internal/worlds/infrastructure/postgres"
)

// proposing builds a handler over the use case that proposes candidates, in the handler's transaction.
func (p Parts) proposing(handler func(worldsevents.CandidateProposer) events.BatchHandler) func(events.Tx) events.BatchHandler {
	return func(tx events.Tx) events.BatchHandler {
		return handler(worldsapp.NewProposeCandidate(
			worldspg.NewRuleCandidates(tx), p.UnitOfWork.Publishing.Publisher(tx), newID, now))
	}
}

func buildFailureClusterConsumer(parts Parts) events.Subscription {
	return parts.consumer(platform.FailureClusterDetectedContract(), events.Registration{
		Name: worldsevents.FailureClusterCandidateProposerName, Reads: worldsevents.FailureClusterDetectedEvent{},
		Batch: parts.proposing(worldsevents.FailureClusterCandidateProposer),
	})
}

func buildFailureClusterV2Consumer(parts Parts) events.Subscription {
	return parts.consumer(platform.FailureClusterDetectedV2Contract(), events.Registration{
		Name: worldsevents.FailureClusterV2CandidateProposerName, Reads: worldsevents.FailureClusterDetectedV2Event{},
		Batch: parts.proposing(worldsevents.FailureClusterV2CandidateProposer),
	})
}

func buildMemoryRoutingConsumer(parts Parts) events.Subscription {
	return parts.consumer(platform.MemoryPromotedContract(), events.Registration{
		Name: worldsevents.MemoryCandidateRouterName, Reads: worldsevents.MemoryPromotedEvent{},
		Batch: parts.proposing(worldsevents.MemoryCandidateRouter),
	})
}

func buildCurationConsumer(parts Parts) events.Subscription {
	return parts.consumer(platform.CurationDecidedContract(), events.Registration{
		Name: worldsevents.CurationDecisionApplierName, Reads: worldsevents.CurationDecidedEvent{},
		Batch: func(tx events.Tx) events.BatchHandler {
			return worldsevents.CurationDecisionApplier(worldsapp.NewApplyDecision(
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
