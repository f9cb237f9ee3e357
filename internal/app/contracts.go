package app

import (
	"spectral/internal/core/events"
	platform "spectral/internal/platform/contracts/events"
	worlds "spectral/internal/worlds/contracts/events"
)

// Contracts returns the event contracts of every context. An event type that is not listed here is refused at publish.
func Contracts() (*events.Contracts, error) {
	return events.NewContracts(
		worlds.WorldModelCardPublishedContract(),
		platform.DecisionRecordedContract(),
		worlds.ScanCompletedContract(),
		platform.FailureClusterDetectedContract(),
		platform.FailureClusterDetectedV2Contract(),
		platform.MemoryPromotedContract(),
		platform.CurationDecidedContract(),
		worlds.RuleCandidateProposedContract(),
		worlds.CurationAppliedContract(),
		platform.AgentTaskDispatchedContract(),
	)
}
