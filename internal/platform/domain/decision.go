package domain

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"spectral/internal/core/check"

	"github.com/google/uuid"
)

// Bounds of a decision, in bytes.
const (
	MaxRuleIDBytes         = 200
	MaxOverrideReasonBytes = 1000
)

// Outcome is the outcome of a rule's proposal.
type Outcome string

// The outcomes.
const (
	Followed   Outcome = "followed"
	Overridden Outcome = "overridden"
)

// Ruling is what was decided about a rule's proposal, and when. It never changes.
type Ruling struct {
	DecisionID uuid.UUID
	RuleID     string
	Outcome    Outcome
	// OverrideReason is empty for a proposal that was followed.
	OverrideReason string
	DecidedAt      time.Time
}

// Validate returns an error for a ruling that is invalid at the time now.
func (r Ruling) Validate(now time.Time) error {
	var reason error
	switch {
	case r.Outcome == Overridden:
		reason = check.Line("override_reason", r.OverrideReason, MaxOverrideReasonBytes)
	case r.Outcome == Followed && r.OverrideReason != "":
		reason = errors.New("override_reason is given for a followed proposal: leave it out, or record it as overridden")
	}
	return errors.Join(check.ID("decision_id", r.DecisionID), check.Line("rule_id", r.RuleID, MaxRuleIDBytes),
		check.OneOf("outcome", r.Outcome, Followed, Overridden), reason, check.Time("decided_at", r.DecidedAt, now))
}

// Decision is a ruling and the person or agent who made it.
type Decision struct {
	Ruling
	DecidedBy string // a person or an agent
}

// Validate returns an error for a decision that cannot be recorded at the time now.
func (d Decision) Validate(now time.Time) error {
	return errors.Join(d.Ruling.Validate(now), checkPerson("decided_by", d.DecidedBy))
}

// Recordable returns the decision in its stored and published form: times in UTC, to the microsecond.
func (d Decision) Recordable() Decision {
	d.DecidedAt = d.DecidedAt.UTC().Truncate(time.Microsecond)
	return d
}

// CheckSame returns a [*DecisionConflictError] if other differs from the decision recorded under its id.
func (d Decision) CheckSame(other Decision) error {
	differ := map[string]bool{
		"rule_id": d.RuleID != other.RuleID, "outcome": d.Outcome != other.Outcome,
		"override_reason": d.OverrideReason != other.OverrideReason,
		"decided_by":      d.DecidedBy != other.DecidedBy, "decided_at": !d.DecidedAt.Equal(other.DecidedAt),
	}
	maps.DeleteFunc(differ, func(_ string, differs bool) bool { return !differs })
	if fields := slices.Sorted(maps.Keys(differ)); len(fields) > 0 {
		return &DecisionConflictError{DecisionID: d.DecisionID, Fields: fields}
	}
	return nil
}

// DecisionConflictError means that another decision is recorded under the id.
type DecisionConflictError struct {
	DecisionID uuid.UUID
	Fields     []string // the fields that differ, sorted
}

func (e *DecisionConflictError) Error() string {
	return fmt.Sprintf("decision %s is recorded already with another %s: a decision never changes, record a new one "+
		"under another id", e.DecisionID, strings.Join(e.Fields, ", "))
}
