package domain

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"time"
)

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
