package app

import (
	"cmp"
	"errors"
	"maps"
	"slices"
	"strings"

	"spectral/internal/core/events"
	"spectral/internal/core/events/infrastructure/postgres/publish"
	platform "spectral/internal/platform/contracts/events"
	platformevents "spectral/internal/platform/infrastructure/events"
	platformpg "spectral/internal/platform/infrastructure/postgres"
	worldsapp "spectral/internal/worlds/application"
	worlds "spectral/internal/worlds/contracts/events"
	worldsevents "spectral/internal/worlds/infrastructure/events"
	worldspg "spectral/internal/worlds/infrastructure/postgres"
)

// Deps is what consumers are built from.
type Deps struct {
	Generation events.Generation
	// UnitOfWork is for what a handler does outside its transaction; its Publishing is for what it publishes in it. Nil
	// where consumers are listed and not run.
	UnitOfWork *publish.UnitOfWork
	// BriefingsDir is the folder for briefings.
	BriefingsDir string
}

// ConsumerBuilder composes one consumer: an event type, its handlers with their repositories, and how they are
// dispatched. Until a handler is built it uses only the generation of deps. A second consumer of an event type is a
// co-handler on its subscription, never a second builder.
type ConsumerBuilder func(Deps) events.Subscription

// ConsumerBuilders lists every consumer of a worker.
func ConsumerBuilders() []ConsumerBuilder {
	return []ConsumerBuilder{
		buildWorldModelCardProjectionConsumer,
		buildDecisionRecordedConsumer,
		buildScanCompletedConsumer,
		buildFailureClusterConsumer,
		buildFailureClusterV2Consumer,
		buildMemoryRoutingConsumer,
		buildCurationConsumer,
		buildCurationOutcomeConsumer,
		buildAgentTaskConsumer,
	}
}

// Subscriptions returns the consumers that a worker runs: all of them, or those of the given processing classes, where
// [events.DefaultClass] is the one without a name. The error joins a [*SettingsError] for each class that no consumer
// belongs to, or is that of an invalid subscription.
func Subscriptions(builders []ConsumerBuilder, contracts *events.Contracts, deps Deps,
	classes []string) (chosen []events.Subscription, err error) {
	wanted, known := make(map[string]bool), make(map[string]bool)
	for _, class := range classes {
		wanted[strings.TrimSpace(class)] = true
	}
	for _, build := range builders {
		s := build(deps)
		if err := s.WithDefaults().Validate(); err != nil {
			return nil, err
		}
		class := events.DefaultClass
		if of := contracts.OfType(s.EventType); len(of) > 0 {
			class = cmp.Or(of[0].Class, class)
		}
		known[class] = true
		if len(classes) == 0 || wanted[class] {
			chosen = append(chosen, s)
		}
	}
	for _, class := range slices.Sorted(maps.Keys(wanted)) {
		if !known[class] {
			err = errors.Join(err, settingsError("no consumer belongs to the processing class %.40q: choose among %s", class,
				strings.Join(slices.Sorted(maps.Keys(known)), ", ")))
		}
	}
	return chosen, err
}

// subscriptions returns those of this build that s asks for.
func subscriptions(s Settings, unitOfWork *publish.UnitOfWork) ([]events.Subscription, error) {
	contracts, err := Contracts()
	if err != nil {
		return nil, err
	}
	deps := Deps{Generation: s.Generation, UnitOfWork: unitOfWork, BriefingsDir: s.BriefingsDir}
	return Subscriptions(ConsumerBuilders(), contracts, deps, s.Classes)
}

// consumer returns the subscription to a contract's event type.
func (d Deps) consumer(contract events.Contract, primary events.Registration,
	coHandlers ...events.Registration) events.Subscription {
	return events.Subscription{
		Channel: events.ChannelName(d.Generation, contract.Class), EventType: contract.Type,
		Primary: primary, CoHandlers: coHandlers,
	}
}

func buildWorldModelCardProjectionConsumer(deps Deps) events.Subscription {
	return deps.consumer(worlds.WorldModelCardPublishedContract(), events.Registration{
		Name: platformevents.WorldModelCardProjectorName, Reads: platformevents.WorldModelCardPublishedEvent{},
		EffectKey: "card_id",
		Handler: func(tx events.Tx) events.EventHandler {
			return platformevents.WorldModelCardProjector(platformpg.NewSystemCards(tx).Project)
		},
	})
}

// buildDecisionRecordedConsumer has handlers of both contexts on one claim.
func buildDecisionRecordedConsumer(deps Deps) events.Subscription {
	return deps.consumer(platform.DecisionRecordedContract(), events.Registration{
		Name: platformevents.DecisionRecordedAggregatorName, Reads: platformevents.DecisionRecordedEvent{},
		Batch: func(tx events.Tx) events.BatchHandler {
			return platformevents.DecisionRecordedAggregator(platformpg.NewOverridePatterns(tx).Count)
		},
	}, events.Registration{
		Name: worldsevents.RuleHealthRecorderName, Reads: worldsevents.DecisionRecordedEvent{},
		Batch: func(tx events.Tx) events.BatchHandler {
			return worldsevents.RuleHealthRecorder(worldspg.NewRuleHealth(tx).Count)
		},
	})
}

func buildScanCompletedConsumer(deps Deps) events.Subscription {
	return deps.consumer(worlds.ScanCompletedContract(), events.Registration{
		Name: worldsevents.ScanCompletedIndexerName, Reads: worldsevents.ScanCompletedEvent{},
		Handler: func(tx events.Tx) events.EventHandler {
			return worldsevents.ScanCompletedIndexer(worldspg.NewScanIndex(tx).Put)
		},
	})
}

// proposer returns a consumer whose handler proposes rule candidates, in its transaction.
func (d Deps) proposer(contract events.Contract, name string, reads any,
	handler func(*worldsapp.ProposeCandidate) events.BatchHandler) events.Subscription {
	batch := func(tx events.Tx) events.BatchHandler {
		return handler(&worldsapp.ProposeCandidate{Candidates: worldspg.NewRuleCandidates(tx),
			Publisher: d.UnitOfWork.Publishing.Publisher(tx), NewID: newID, Now: now})
	}
	return d.consumer(contract, events.Registration{Name: name, Reads: reads, Batch: batch})
}

func buildFailureClusterConsumer(deps Deps) events.Subscription {
	return deps.proposer(platform.FailureClusterDetectedContract(), worldsevents.FailureClusterCandidateProposerName,
		worldsevents.FailureClusterDetectedEvent{}, worldsevents.FailureClusterCandidateProposer)
}

func buildFailureClusterV2Consumer(deps Deps) events.Subscription {
	return deps.proposer(platform.FailureClusterDetectedV2Contract(), worldsevents.FailureClusterV2CandidateProposerName,
		worldsevents.FailureClusterDetectedV2Event{}, worldsevents.FailureClusterV2CandidateProposer)
}

func buildMemoryRoutingConsumer(deps Deps) events.Subscription {
	return deps.proposer(platform.MemoryPromotedContract(), worldsevents.MemoryCandidateRouterName,
		worldsevents.MemoryPromotedEvent{}, worldsevents.MemoryCandidateRouter)
}

func buildCurationConsumer(deps Deps) events.Subscription {
	return deps.consumer(platform.CurationDecidedContract(), events.Registration{
		Name: worldsevents.CurationDecisionApplierName, Reads: worldsevents.CurationDecidedEvent{},
		Batch: func(tx events.Tx) events.BatchHandler {
			return worldsevents.CurationDecisionApplier(&worldsapp.ApplyDecision{
				Candidates: worldspg.NewRuleCandidates(tx),
				Publisher:  deps.UnitOfWork.Publishing.Publisher(tx), Now: now})
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
