package events

import (
	"time"

	"github.com/google/uuid"

	"spectral/internal/core/events"
)

// ScanCompletedType is the event that a scan is completed.
const ScanCompletedType = "worlds.scan.completed"

// ScanCompleted is a completed scan and what it found.
type ScanCompleted struct {
	// ScanID identifies the scan within its workspace.
	ScanID uuid.UUID `json:"scan_id"`
	// Subject is the card or the source that was scanned, like card:harbour.
	Subject string `json:"subject" jsonschema:"minLength=1,maxLength=200"`
	// StartedAt is when the scan began, in UTC to the microsecond.
	StartedAt time.Time `json:"started_at"`
	// FinishedAt is when it was completed, in UTC to the microsecond. Events may arrive in any order: of two
	// scans of a subject the one that finished later counts.
	FinishedAt time.Time `json:"finished_at"`
	// Findings are what the scan found, one per kind, in the order of the kinds. They may be empty.
	Findings []ScanFinding `json:"findings" jsonschema:"maxItems=200"`
}

// ScanFinding is what a scan found of one kind.
type ScanFinding struct {
	// Kind is lower-case words, like broken_link.
	Kind string `json:"kind" jsonschema:"minLength=1,maxLength=64"`
	// Occurrences is how often the kind was found in the subject.
	Occurrences int64 `json:"occurrences" jsonschema:"minimum=1,maximum=1000000000"`
}

// ScanCompletedContract declares the event.
func ScanCompletedContract() events.Contract {
	return events.Contract{
		Type: ScanCompletedType, Version: 1, Source: events.Worlds, Target: events.Worlds,
		Payload: ScanCompleted{
			ScanID: uuid.MustParse("01936e5c-7d00-7000-8000-0000000000c1"), Subject: "card:harbour-veyra",
			StartedAt: time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC), FinishedAt: time.Date(2026, 3, 1, 12, 4, 30, 0, time.UTC),
			Findings: []ScanFinding{{Kind: "broken_link", Occurrences: 3}},
		}, ContentClass: events.WorkspaceContent,
	}
}
