package events

import (
	"time"

	"github.com/google/uuid"

	"spectral/internal/core/events"
)

// FailureClusterDetectedType is the event that a failure cluster was detected or has grown, in its first form.
const FailureClusterDetectedType = "platform.failure_cluster.detected"

// FailureClusterDetected is the current state of a cluster of failures. It has no revision: of two events of a cluster
// the one with the higher count is newer.
type FailureClusterDetected struct {
	// ClusterID is the cluster's id. It does not change when the cluster grows.
	ClusterID uuid.UUID `json:"cluster_id"`
	// Signature is what the failures have in common, in one line for people.
	Signature string `json:"signature" jsonschema:"minLength=1"`
	// Count is the number of failures so far. It only grows.
	Count int64 `json:"count" jsonschema:"minimum=1"`
	// Example is the message of one of the failures.
	Example string `json:"example,omitempty"`
}

// FailureClusterDetectedContract declares the event. Its successor is a new event type and not a version 2, because its
// fields have other names and types.
func FailureClusterDetectedContract() events.Contract {
	return events.Contract{
		Type: FailureClusterDetectedType, Version: 1, Source: events.Platform,
		Payload: FailureClusterDetected{
			ClusterID: uuid.MustParse("01936e5c-7d00-7000-8000-0000000000f1"), Signature: "loader/fetch: Timeout", Count: 20,
			Example: "no answer within 5 s",
		}, ContentClass: events.WorkspaceContent,
		Deprecation: &events.Deprecation{
			Deadline: time.Date(2027, time.June, 30, 0, 0, 0, 0, time.UTC), Successor: FailureClusterDetectedV2Type,
		},
	}
}
