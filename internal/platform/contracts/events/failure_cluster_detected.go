package events

import (
	"time"

	"github.com/google/uuid"

	"spectral/internal/core/events"
)

// The event that a failure cluster was detected or has grown, as it was first published.
const (
	FailureClusterDetectedType    = "platform.failure_cluster.detected"
	FailureClusterDetectedVersion = 1
)

// FailureClusterDetected is a cluster of failures as it now stands. It has no revision: of two events of a cluster the one with the higher
// count is newer.
type FailureClusterDetected struct {
	// ClusterID is the cluster's own; it stays through all its growth.
	ClusterID uuid.UUID `json:"cluster_id"`
	// Signature is what the failures have in common, in one line for people.
	Signature string `json:"signature" jsonschema:"minLength=1"`
	// Count is the number of failures so far. It only grows.
	Count int64 `json:"count" jsonschema:"minimum=1"`
	// Example is the message of one of the failures.
	Example string `json:"example,omitempty"`
}

// FailureClusterDetectedContract declares the event. It gave way to a type of its own, and not to a version 2,
// because what it says in one line and one number became structures of other names.
func FailureClusterDetectedContract() events.Contract {
	return events.Contract{
		Type: FailureClusterDetectedType, Version: FailureClusterDetectedVersion, Source: events.Platform,
		Payload: FailureClusterDetected{
			ClusterID: uuid.MustParse("01936e5c-7d00-7000-8000-0000000000f1"), Signature: "loader/fetch: Timeout", Count: 20, Example: "no answer within 5 s",
		}, ContentClass: events.WorkspaceContent,
		Deprecation: &events.Deprecation{
			Deadline: time.Date(2027, time.June, 30, 0, 0, 0, 0, time.UTC), Successor: FailureClusterDetectedV2Type,
		},
	}
}
