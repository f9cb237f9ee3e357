package domain

import (
	"errors"
	"fmt"
	"time"

	"spectral/internal/core/check"

	"github.com/google/uuid"
)

// Bounds of a curation decision, in bytes.
const (
	MaxCurationNoteBytes   = 2000
	MaxCurationReasonBytes = 500
)

// CurationVerdict is a curator's answer about a rule candidate.
type CurationVerdict string

// The verdicts.
const (
	ApproveCandidate CurationVerdict = "approve"
	RejectCandidate  CurationVerdict = "reject"
)

// CurationOutcome is the outcome that worlds reports:
//
//	pending ──> applied
//	   └──────> refused
type CurationOutcome string

// The outcomes.
const (
	CurationPending CurationOutcome = "pending"
	CurationApplied CurationOutcome = "applied"
	CurationRefused CurationOutcome = "refused"
)

// CurationDecision is a curator's decision on a rule candidate of worlds.
type CurationDecision struct {
	ID          uuid.UUID
	CandidateID uuid.UUID
	Verdict     CurationVerdict
	Note        string // possibly empty
	DecidedBy   string
	// DecidedAt orders the decisions on a candidate.
	DecidedAt time.Time

	Outcome CurationOutcome
	Reason  string    // why it was refused, or empty
	RuledAt time.Time // when worlds decided; zero while pending
}

// Validate returns an error for a decision that is invalid at the time now.
func (d CurationDecision) Validate(now time.Time) error {
	return errors.Join(check.ID("candidate_id", d.CandidateID), check.Text("note", d.Note, false, MaxCurationNoteBytes),
		checkPerson("decided_by", d.DecidedBy), check.Time("decided_at", d.DecidedAt, now),
		check.OneOf("verdict", d.Verdict, ApproveCandidate, RejectCandidate))
}

// CurationRuling is the outcome of a decision that worlds reports.
type CurationRuling struct {
	DecisionID uuid.UUID
	Outcome    CurationOutcome // applied or refused
	Reason     string          // of a refusal
	AppliedAt  time.Time
}

// Validate returns an error for a ruling that is invalid.
func (r CurationRuling) Validate() error {
	reason := check.Text("reason", r.Reason, r.Outcome == CurationRefused, MaxCurationReasonBytes)
	if r.Outcome == CurationApplied && r.Reason != "" {
		reason = errors.New("reason is given, but the decision was applied")
	}
	return errors.Join(check.ID("decision_id", r.DecisionID), check.Time("applied_at", r.AppliedAt, r.AppliedAt), reason,
		check.OneOf("outcome", r.Outcome, CurationApplied, CurationRefused))
}

// Settle records a ruling. Changed is false for the same outcome again. Another outcome is an error.
func (d CurationDecision) Settle(r CurationRuling) (settled CurationDecision, changed bool, err error) {
	switch d.Outcome {
	case CurationPending:
		d.Outcome, d.Reason, d.RuledAt = r.Outcome, r.Reason, r.AppliedAt
		return d, true, nil
	case r.Outcome:
		return d, false, nil
	default:
		return d, false, fmt.Errorf("decision %s has the outcome %s already, and not %s", d.ID, d.Outcome, r.Outcome)
	}
}
