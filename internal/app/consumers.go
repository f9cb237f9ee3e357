package app

import (
	"spectral/internal/core/events"
	platformevents "spectral/internal/platform/infrastructure/events"
	platformpg "spectral/internal/platform/infrastructure/postgres"
	worlds "spectral/internal/worlds/contracts/events"
)

// ConsumerBuilder composes one consumer: an event type, its handlers over their repositories, and
// how they are dispatched. A second consumer of one event type is a co-handler on its
// subscription, never a second builder.
type ConsumerBuilder func(events.Generation) events.Subscription

// ConsumerBuilders is the boot list: every consumer of a worker.
func ConsumerBuilders() []ConsumerBuilder {
	return []ConsumerBuilder{
		buildWorldModelCardProjectionConsumer,
	}
}

func buildWorldModelCardProjectionConsumer(g events.Generation) events.Subscription {
	contract := worlds.WorldModelCardPublishedContract()
	return events.Subscription{
		Channel: events.ChannelName(g, contract.Class), EventType: contract.Type,
		Primary: events.Registration{
			Name: platformevents.WorldModelCardProjectorName,
			Handler: func(tx events.Tx) events.EventHandler {
				return platformevents.WorldModelCardProjector(platformpg.NewSystemCards(tx))
			},
		},
	}
}
