package domain

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
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

// OverridePattern counts the decisions about the proposals of one rule. It does not depend on their order.
type OverridePattern struct {
	RuleID                        string
	Followed, Overridden          int64
	FirstDecidedAt, LastDecidedAt time.Time
	Reasons                       []OverrideReason
}

// OverrideReason counts the overrides of one rule with the same reason.
type OverrideReason struct {
	Reason                        string // see [SameReason]
	Overridden                    int64
	FirstDecidedAt, LastDecidedAt time.Time
}

// SameReason returns a reason in the form that is compared: lower case, single blanks.
func SameReason(reason string) string {
	return strings.ToLower(strings.Join(strings.Fields(reason), " "))
}

// PatternsOf counts rulings by rule, and within a rule by reason, both sorted.
func PatternsOf(rulings []Ruling) []OverridePattern {
	patterns := make(map[string]OverridePattern)
	reasons := make(map[string]map[string]OverrideReason)
	for _, r := range rulings {
		p, known := patterns[r.RuleID]
		if !known {
			reasons[r.RuleID] = make(map[string]OverrideReason)
		}
		p.RuleID = r.RuleID
		p.FirstDecidedAt, p.LastDecidedAt = earlier(p.FirstDecidedAt, r.DecidedAt), later(p.LastDecidedAt, r.DecidedAt)
		if r.Outcome == Overridden {
			p.Overridden++
			same := SameReason(r.OverrideReason)
			o := reasons[r.RuleID][same]
			o.Reason = same
			o.Overridden++
			o.FirstDecidedAt, o.LastDecidedAt = earlier(o.FirstDecidedAt, r.DecidedAt), later(o.LastDecidedAt, r.DecidedAt)
			reasons[r.RuleID][same] = o
		} else {
			p.Followed++
		}
		patterns[r.RuleID] = p
	}
	all := slices.SortedFunc(maps.Values(patterns),
		func(a, b OverridePattern) int { return cmp.Compare(a.RuleID, b.RuleID) })
	for i, p := range all {
		all[i].Reasons = slices.SortedFunc(maps.Values(reasons[p.RuleID]),
			func(a, b OverrideReason) int { return cmp.Compare(a.Reason, b.Reason) })
	}
	return all
}

// earlier returns the earlier of two times. A zero time is none.
func earlier(a, b time.Time) time.Time {
	if a.IsZero() || b.Before(a) {
		return b
	}
	return a
}

// later returns the later of two times.
func later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}
