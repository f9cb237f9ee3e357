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

// proposing builds a handler with the use case that proposes candidates, in the handler's transaction.
func (d Deps) proposing(
	handler func(worldsevents.CandidateProposer) events.BatchHandler,
) func(events.Tx) events.BatchHandler {
	return func(tx events.Tx) events.BatchHandler {
		return handler(&worldsapp.ProposeCandidate{Candidates: worldspg.NewRuleCandidates(tx),
			Publisher: d.UnitOfWork.Publishing.Publisher(tx), NewID: newID, Now: now})
	}
}

func buildFailureClusterConsumer(deps Deps) events.Subscription {
	return deps.consumer(platform.FailureClusterDetectedContract(), events.Registration{
		Name: worldsevents.FailureClusterCandidateProposerName, Reads: worldsevents.FailureClusterDetectedEvent{},
		Batch: deps.proposing(worldsevents.FailureClusterCandidateProposer),
	})
}

func buildFailureClusterV2Consumer(deps Deps) events.Subscription {
	return deps.consumer(platform.FailureClusterDetectedV2Contract(), events.Registration{
		Name: worldsevents.FailureClusterV2CandidateProposerName, Reads: worldsevents.FailureClusterDetectedV2Event{},
		Batch: deps.proposing(worldsevents.FailureClusterV2CandidateProposer),
	})
}

func buildMemoryRoutingConsumer(deps Deps) events.Subscription {
	return deps.consumer(platform.MemoryPromotedContract(), events.Registration{
		Name: worldsevents.MemoryCandidateRouterName, Reads: worldsevents.MemoryPromotedEvent{},
		Batch: deps.proposing(worldsevents.MemoryCandidateRouter),
	})
}

func buildCurationConsumer(deps Deps) events.Subscription {
	return deps.consumer(platform.CurationDecidedContract(), events.Registration{
		Name: worldsevents.CurationDecisionApplierName, Reads: worldsevents.CurationDecidedEvent{},
		Batch: func(tx events.Tx) events.BatchHandler {
			return worldsevents.CurationDecisionApplier(&worldsapp.ApplyDecision{
				Candidates: worldspg.NewRuleCandidates(tx), Rulings: worldspg.NewCurationRulings(tx),
				Publisher: deps.UnitOfWork.Publishing.Publisher(tx), Now: now})
		},
	})
}

func buildCurationOutcomeConsumer(deps Deps) events.Subscription {
	return deps.consumer(worlds.CurationAppliedContract(), events.Registration{
		Name: platformevents.CurationOutcomeRecorderName, Reads: platformevents.CurationAppliedEvent{},
		Handler: func(tx events.Tx) events.EventHandler {
			return platformevents.CurationOutcomeRecorder(platformpg.NewCurationDecisions(tx))
		},
	})
}
