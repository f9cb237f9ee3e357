package domain

import (
	"cmp"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"spectral/internal/core/check"
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

// Ruling is what was decided about a rule's proposal. It never changes.
type Ruling struct {
	DecisionID uuid.UUID
	RuleID     string
	Outcome    Outcome
	// OverrideReason is empty for a proposal that was followed.
	OverrideReason string
}

// Validate returns an error for a ruling that is invalid.
func (r Ruling) Validate() error {
	var reason error
	switch {
	case r.Outcome == Overridden:
		reason = check.Line("override_reason", r.OverrideReason, MaxOverrideReasonBytes)
	case r.Outcome == Followed && r.OverrideReason != "":
		reason = errors.New("override_reason is given for a followed proposal: leave it out, or record it as overridden")
	}
	return errors.Join(check.ID("decision_id", r.DecisionID), check.Line("rule_id", r.RuleID, MaxRuleIDBytes),
		check.OneOf("outcome", r.Outcome, Followed, Overridden), reason)
}

// Decision is a ruling, the person or agent who made it, and when.
type Decision struct {
	Ruling
	DecidedBy string
	DecidedAt time.Time
}

// Validate returns an error for a decision that cannot be recorded at the time now.
func (d Decision) Validate(now time.Time) error {
	return errors.Join(d.Ruling.Validate(), check.Time("decided_at", d.DecidedAt, now),
		checkPerson("decided_by", d.DecidedBy))
}

// ErrDecisionRecorded means that another decision is recorded under the id.
var ErrDecisionRecorded = errors.New("the id has another decision already: record a new one under another id")

// OverridePattern counts the decisions about the proposals of one rule. It does not depend on their order.
type OverridePattern struct {
	RuleID               string
	Followed, Overridden int64
	Reasons              []OverrideReason
}

// OverrideReason counts the overrides of one rule with the same reason.
type OverrideReason struct {
	Reason     string // see [SameReason]
	Overridden int64
}

// SameReason returns a reason in the form that is compared: lower case, single blanks.
func SameReason(reason string) string {
	return strings.ToLower(strings.Join(strings.Fields(reason), " "))
}

// PatternsOf counts rulings by rule, and within a rule by reason, both sorted.
func PatternsOf(rulings []Ruling) (patterns []OverridePattern) {
	ofRule := func(p OverridePattern, id string) int { return cmp.Compare(p.RuleID, id) }
	ofReason := func(o OverrideReason, reason string) int { return cmp.Compare(o.Reason, reason) }
	for _, r := range rulings {
		i, known := slices.BinarySearchFunc(patterns, r.RuleID, ofRule)
		if !known {
			patterns = slices.Insert(patterns, i, OverridePattern{RuleID: r.RuleID})
		}
		p := &patterns[i]
		if r.Outcome != Overridden {
			p.Followed++
			continue
		}
		p.Overridden++
		reason := SameReason(r.OverrideReason)
		i, known = slices.BinarySearchFunc(p.Reasons, reason, ofReason)
		if !known {
			p.Reasons = slices.Insert(p.Reasons, i, OverrideReason{Reason: reason})
		}
		p.Reasons[i].Overridden++
	}
	return patterns
}
