package app

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"spectral/internal/core/events"
	"spectral/internal/core/events/infrastructure/postgres"
	platformevents "spectral/internal/platform/infrastructure/events"
	platformpg "spectral/internal/platform/infrastructure/postgres"
	worlds "spectral/internal/worlds/contracts/events"
)

// Parts are what consumers are built of.
type Parts struct {
	Generation events.Generation
	// UnitOfWork is for what a handler does outside its own transaction, and its Publishing for what it
	// publishes in it. Nil where consumers are only looked at.
	UnitOfWork *postgres.UnitOfWork
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
// [events.DefaultClass] for the one without a name. The error is a [*SettingsError] for a class that no consumer
// belongs to, or says what is wrong with a subscription.
func Subscriptions(builders []ConsumerBuilder, contracts *events.Contracts, parts Parts, classes []string) ([]events.Subscription, error) {
	byClass, err := consumersByClass(builders, contracts, parts)
	if err != nil {
		return nil, err
	}
	known := slices.Sorted(maps.Keys(byClass))
	if len(classes) == 0 {
		classes = known
	}
	var chosen []events.Subscription
	var problems []error
	wanted := make([]string, len(classes))
	for i, class := range classes {
		wanted[i] = strings.TrimSpace(class)
	}
	slices.Sort(wanted)
	for _, class := range slices.Compact(wanted) {
		if len(byClass[class]) == 0 {
			problems = append(problems, fmt.Errorf("no consumer is of the processing class %.40q: choose among %s", class, strings.Join(known, ", ")))
		}
		chosen = append(chosen, byClass[class]...)
	}
	if len(problems) > 0 {
		return nil, &SettingsError{problems}
	}
	return chosen, nil
}

func consumersByClass(builders []ConsumerBuilder, contracts *events.Contracts, parts Parts) (map[string][]events.Subscription, error) {
	byClass := make(map[string][]events.Subscription)
	for _, build := range builders {
		s := build(parts)
		if err := s.WithDefaults().Validate(); err != nil {
			return nil, err
		}
		class := events.DefaultClass
		if of := contracts.OfType(s.EventType); len(of) > 0 && of[0].Class != "" {
			class = of[0].Class
		}
		byClass[class] = append(byClass[class], s)
	}
	return byClass, nil
}

// Classes are the processing classes of consumers, by name; [events.DefaultClass] is the one without one.
func Classes(builders []ConsumerBuilder, contracts *events.Contracts) ([]string, error) {
	byClass, err := consumersByClass(builders, contracts, Parts{Generation: 1})
	if err != nil {
		return nil, err
	}
	return slices.Sorted(maps.Keys(byClass)), nil
}

// CheckConsumers refuses what [Subscriptions] refuses, before anything is connected.
func CheckConsumers(s Settings) error {
	contracts, err := Contracts()
	if err != nil {
		return err
	}
	_, err = Subscriptions(ConsumerBuilders(), contracts, Parts{Generation: s.Generation}, s.Classes)
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
