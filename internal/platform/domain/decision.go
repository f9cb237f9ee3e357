package domain

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/google/uuid"
)

// Bounds of a decision, in bytes.
const (
	MaxRuleIDBytes         = 200
	MaxOverrideReasonBytes = 1000
)

// Outcome is what became of a rule's proposal.
type Outcome string

// The outcomes.
const (
	Followed   Outcome = "followed"
	Overridden Outcome = "overridden"
)

// Ruling is what was decided on a proposal of a rule, and when. It is made once and never changes.
type Ruling struct {
	DecisionID uuid.UUID
	RuleID     string
	Outcome    Outcome
	// OverrideReason is empty for a proposal that was followed.
	OverrideReason string
	DecidedAt      time.Time
}

// Validate reports what is wrong with a ruling that is known of at now.
func (r Ruling) Validate(now time.Time) error {
	faults := []error{checkID("decision_id", r.DecisionID), checkLine("rule_id", r.RuleID, MaxRuleIDBytes)}
	switch r.Outcome {
	case Followed:
		if r.OverrideReason != "" {
			faults = append(faults, errors.New("override_reason is given for a proposal that was followed: leave it out, or record it as overridden"))
		}
	case Overridden:
		faults = append(faults, checkLine("override_reason", r.OverrideReason, MaxOverrideReasonBytes))
	default:
		faults = append(faults, fmt.Errorf("outcome is %.40q, must be %s or %s", string(r.Outcome), Followed, Overridden))
	}
	return errors.Join(append(faults, checkTime("decided_at", r.DecidedAt, now))...)
}

// Decision is a ruling and who made it.
type Decision struct {
	Ruling
	DecidedBy string // a person or an agent
}

// Validate reports what is wrong with a decision that is to be recorded at now.
func (d Decision) Validate(now time.Time) error {
	return errors.Join(d.Ruling.Validate(now), checkPerson("decided_by", d.DecidedBy))
}

// Recordable is the decision as it is stored and told: times in UTC, to the microsecond.
func (d Decision) Recordable() Decision {
	d.DecidedAt = d.DecidedAt.UTC().Truncate(time.Microsecond)
	return d
}

// MustBe refuses to take other for the decision that is recorded under its id, with a
// [*DecisionConflictError].
func (d Decision) MustBe(other Decision) error {
	var fields []string
	for _, f := range []struct {
		name string
		same bool
	}{
		{"rule_id", d.RuleID == other.RuleID},
		{"outcome", d.Outcome == other.Outcome},
		{"override_reason", d.OverrideReason == other.OverrideReason},
		{"decided_by", d.DecidedBy == other.DecidedBy},
		{"decided_at", d.DecidedAt.Equal(other.DecidedAt)},
	} {
		if !f.same {
			fields = append(fields, f.name)
		}
	}
	if len(fields) > 0 {
		return &DecisionConflictError{DecisionID: d.DecisionID, Fields: fields}
	}
	return nil
}

// DecisionConflictError means that a decision is recorded already, and says something else.
type DecisionConflictError struct {
	DecisionID uuid.UUID
	Fields     []string // that differ
}

func (e *DecisionConflictError) Error() string {
	return fmt.Sprintf("decision %s is recorded already with another %s: a decision never changes, record a new one under an id of its own",
		e.DecisionID, strings.Join(e.Fields, ", "))
}
