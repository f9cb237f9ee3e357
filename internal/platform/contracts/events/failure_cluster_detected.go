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

// FailureClusterDetectedV2Type is the event that a failure cluster was detected or has grown.
const FailureClusterDetectedV2Type = "platform.failure_cluster.detected.v2"

// FailureClusterDetectedV2 is the current state of a cluster of failures.
type FailureClusterDetectedV2 struct {
	// ClusterID is the cluster's id. It does not change when the cluster grows.
	ClusterID uuid.UUID `json:"cluster_id"`
	// Revision counts the detections of the cluster from 1. Compare it, because events may arrive in any order.
	Revision int64 `json:"revision" jsonschema:"minimum=1"`
	// Signature is what the failures have in common.
	Signature FailureSignature `json:"signature"`
	// Failures are all failures so far, one entry per kind.
	Failures []ClusterFailures `json:"failures" jsonschema:"minItems=1,maxItems=50"`
	// Severity follows from the number of failures: below 10, below 100, below 1,000, more.
	Severity string `json:"severity" jsonschema:"enum=low,enum=medium,enum=high,enum=critical"`
	// FirstSeenAt is when the earliest failure was seen.
	FirstSeenAt time.Time `json:"first_seen_at"`
	// LastSeenAt is when the latest failure was seen.
	LastSeenAt time.Time `json:"last_seen_at"`
}

// FailureSignature is where the failures of a cluster come from.
type FailureSignature struct {
	// Component is what failed.
	Component string `json:"component" jsonschema:"minLength=1,maxLength=200"`
	// Operation is what the component was doing.
	Operation string `json:"operation" jsonschema:"minLength=1,maxLength=200"`
	// ErrorClass is the class of the errors.
	ErrorClass string `json:"error_class" jsonschema:"minLength=1,maxLength=200"`
}

// ClusterFailures is the failures of one kind.
type ClusterFailures struct {
	// Kind is the kind of the failures, or "other" for all kinds beyond the limit.
	Kind string `json:"kind" jsonschema:"minLength=1,maxLength=200"`
	// Count is the number of failures of the kind.
	Count int64 `json:"count" jsonschema:"minimum=1"`
	// Example is the message of one of these failures.
	Example string `json:"example,omitempty"`
}

// FailureClusterDetectedV2Contract declares the event.
func FailureClusterDetectedV2Contract() events.Contract {
	return events.Contract{
		Type: FailureClusterDetectedV2Type, Version: 1, Source: events.Platform,
		Payload: FailureClusterDetectedV2{
			ClusterID: uuid.MustParse("01936e5c-7d00-7000-8000-0000000000f1"), Revision: 2,
			Signature: FailureSignature{Component: "loader", Operation: "fetch", ErrorClass: "Timeout"},
			Failures: []ClusterFailures{{Kind: "connect", Count: 12, Example: "no answer within 5 s"},
				{Kind: "read", Count: 8, Example: "half an answer"}},
			Severity: "medium", FirstSeenAt: time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC),
			LastSeenAt: time.Date(2026, 3, 1, 18, 30, 0, 0, time.UTC),
		}, ContentClass: events.WorkspaceContent,
	}
}
