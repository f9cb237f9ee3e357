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
	worlds "spectral/internal/worlds/contracts/events"
	worldsevents "spectral/internal/worlds/infrastructure/events"
	worldspg "spectral/internal/worlds/infrastructure/postgres"
)

// Parts are what consumers are built of.
type Parts struct {
	Generation events.Generation
	// UnitOfWork is for what a handler does outside its own transaction, and its Publishing for what it
	// publishes in it. Nil where consumers are only looked at.
	UnitOfWork *publish.UnitOfWork
	// BriefingsDir is the folder that briefings are delivered to.
	BriefingsDir string
}

// ConsumerBuilder composes one consumer: an event type, its handlers over their repositories, and
// how they are dispatched. It uses nothing of the parts but the generation before a handler is built. A
// second consumer of one event type is a co-handler on its subscription, never a second builder.
type ConsumerBuilder func(Parts) events.Subscription

// ConsumerBuilders is the boot list: every consumer of a worker.
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

// Subscriptions are the consumers that a worker runs: all of them, or those of the given processing classes,
// [events.DefaultClass] for the one without a name. The error joins a [*SettingsError] for each class that no consumer
// belongs to, or says what is wrong with a subscription.
func Subscriptions(builders []ConsumerBuilder, contracts *events.Contracts, parts Parts, classes []string) ([]events.Subscription, error) {
	byClass, err := consumersByClass(builders, contracts, parts)
	if err != nil {
		return nil, err
	}
	known := slices.Sorted(maps.Keys(byClass))
	wanted := known
	if len(classes) > 0 {
		wanted = nil
		for _, class := range classes {
			wanted = append(wanted, strings.TrimSpace(class))
		}
		slices.Sort(wanted)
	}
	var chosen []events.Subscription
	var problems []error
	for _, class := range slices.Compact(wanted) {
		if len(byClass[class]) == 0 {
			problems = append(problems, settingsError("no consumer is of the processing class %.40q: choose among %s", class, strings.Join(known, ", ")))
		}
		chosen = append(chosen, byClass[class]...)
	}
	return chosen, errors.Join(problems...)
}

func consumersByClass(builders []ConsumerBuilder, contracts *events.Contracts, parts Parts) (map[string][]events.Subscription, error) {
	byClass := make(map[string][]events.Subscription)
	for _, build := range builders {
		s := build(parts)
		if err := s.WithDefaults().Validate(); err != nil {
			return nil, err
		}
		class := events.DefaultClass
		if of := contracts.OfType(s.EventType); len(of) > 0 {
			class = cmp.Or(of[0].Class, class)
		}
		byClass[class] = append(byClass[class], s)
	}
	return byClass, nil
}

// Classes are the processing classes of this build's consumers, by name; [events.DefaultClass] is the one without one.
func Classes() ([]string, error) {
	contracts, err := Contracts()
	if err != nil {
		return nil, err
	}
	byClass, err := consumersByClass(ConsumerBuilders(), contracts, Parts{Generation: 1})
	return slices.Sorted(maps.Keys(byClass)), err
}

// subscriptions are those of this build that s asks for.
func subscriptions(s Settings, unitOfWork *publish.UnitOfWork) ([]events.Subscription, error) {
	contracts, err := Contracts()
	if err != nil {
		return nil, err
	}
	parts := Parts{Generation: s.Generation, UnitOfWork: unitOfWork, BriefingsDir: s.BriefingsDir}
	return Subscriptions(ConsumerBuilders(), contracts, parts, s.Classes)
}

// CheckConsumers refuses what [Subscriptions] refuses, before anything is connected.
func CheckConsumers(s Settings) error {
	_, err := subscriptions(s, nil)
	return err
}

// consumer is the subscription to a contract's event type.
func (p Parts) consumer(contract events.Contract, primary events.Registration, coHandlers ...events.Registration) events.Subscription {
	return events.Subscription{
		Channel: events.ChannelName(p.Generation, contract.Class), EventType: contract.Type, Primary: primary, CoHandlers: coHandlers,
	}
}

func buildWorldModelCardProjectionConsumer(parts Parts) events.Subscription {
	return parts.consumer(worlds.WorldModelCardPublishedContract(), events.Registration{
		Name: platformevents.WorldModelCardProjectorName, Reads: platformevents.WorldModelCardPublishedEvent{},
		Handler: func(tx events.Tx) events.EventHandler {
			return platformevents.WorldModelCardProjector(platformpg.NewSystemCards(tx))
		},
	})
}

// buildDecisionRecordedConsumer has both contexts that care about decisions on one claim.
func buildDecisionRecordedConsumer(parts Parts) events.Subscription {
	return parts.consumer(platform.DecisionRecordedContract(), events.Registration{
		Name: platformevents.DecisionRecordedAggregatorName, Reads: platformevents.DecisionRecordedEvent{},
		Batch: func(tx events.Tx) events.BatchHandler {
			return platformevents.DecisionRecordedAggregator(platformpg.NewOverridePatterns(tx))
		},
	}, events.Registration{
		Name: worldsevents.RuleHealthRecorderName, Reads: worldsevents.DecisionRecordedEvent{},
		Batch: func(tx events.Tx) events.BatchHandler {
			return worldsevents.RuleHealthRecorder(worldspg.NewRuleHealth(tx))
		},
	})
}

func buildScanCompletedConsumer(parts Parts) events.Subscription {
	return parts.consumer(worlds.ScanCompletedContract(), events.Registration{
		Name: worldsevents.ScanCompletedIndexerName, Reads: worldsevents.ScanCompletedEvent{},
		Handler: func(tx events.Tx) events.EventHandler {
			return worldsevents.ScanCompletedIndexer(worldspg.NewScanIndex(tx))
		},
	})
}
