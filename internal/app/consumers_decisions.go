package app

import (
	"spectral/internal/core/events"
	platform "spectral/internal/platform/contracts/events"
	platformevents "spectral/internal/platform/infrastructure/events"
	platformpg "spectral/internal/platform/infrastructure/postgres"
	worlds "spectral/internal/worlds/contracts/events"
	worldsevents "spectral/internal/worlds/infrastructure/events"
	worldspg "spectral/internal/worlds/infrastructure/postgres"
)

// buildDecisionRecordedConsumer has both contexts that care about decisions on one claim.
func buildDecisionRecordedConsumer(parts Parts) events.Subscription {
	return parts.consumer(platform.DecisionRecordedContract(), events.Registration{
		Name: platformevents.DecisionRecordedAggregatorName, Reads: platformevents.DecisionRecordedEvent{},
		Batch: func(tx events.Tx) events.BatchHandler {
			return platformevents.NewDecisionRecordedAggregator(platformpg.NewOverridePatterns(tx))
		},
	}, events.Registration{
		Name: worldsevents.RuleHealthRecorderName, Reads: worldsevents.DecisionRecordedEvent{},
		Batch: func(tx events.Tx) events.BatchHandler {
			return worldsevents.NewRuleHealthRecorder(worldspg.NewRuleHealth(tx))
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
