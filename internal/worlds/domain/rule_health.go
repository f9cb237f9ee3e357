package domain

import (
	"cmp"
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/google/uuid"
)

// MaxRuleIDBytes bounds the id of a rule.
const MaxRuleIDBytes = 200

// The thresholds of a rule's health.
const (
	// MinRatedDecisions is how many decisions it takes to tell.
	MinRatedDecisions = 5
	// ContestedShare of overrides, or more, makes a rule contested.
	ContestedShare = 0.25
	// FailingShare of overrides, or more, makes it failing.
	FailingShare = 0.5
)

// HealthState is how the decisions on a rule's proposals speak for it.
type HealthState string

// The states of a rule's health.
const (
	Unrated   HealthState = "unrated" // too few decisions to tell
	Healthy   HealthState = "healthy"
	Contested HealthState = "contested"
	Failing   HealthState = "failing"
)

// RuleDecision is what worlds takes of a decision on a rule's proposal.
type RuleDecision struct {
	DecisionID uuid.UUID
	RuleID     string
	Overridden bool // or else followed
	DecidedAt  time.Time
}

// Validate reports what is wrong with a decision that is known of at now.
func (d RuleDecision) Validate(now time.Time) error {
	return errors.Join(
		checkID("decision_id", d.DecisionID), checkLine("rule_id", d.RuleID, MaxRuleIDBytes), checkTime("decided_at", d.DecidedAt, now))
}

// RuleHealth sums up the decisions on the proposals of one rule. It depends on the set of decisions, not on the order
// in which they became known.
type RuleHealth struct {
	RuleID               string
	Followed, Overridden int64
	LastDecidedAt        time.Time
}

// State rates the rule by the share of decisions that overrode it.
func (h RuleHealth) State() HealthState {
	decisions := h.Followed + h.Overridden
	if decisions < MinRatedDecisions {
		return Unrated
	}
	switch share := float64(h.Overridden) / float64(decisions); {
	case share >= FailingShare:
		return Failing
	case share >= ContestedShare:
		return Contested
	default:
		return Healthy
	}
}

// HealthOf sums up decisions by rule, in order.
func HealthOf(decisions []RuleDecision) []RuleHealth {
	rules := make(map[string]RuleHealth)
	for _, d := range decisions {
		h, known := rules[d.RuleID]
		if !known || d.DecidedAt.After(h.LastDecidedAt) {
			h.LastDecidedAt = d.DecidedAt
		}
		h.RuleID = d.RuleID
		if d.Overridden {
			h.Overridden++
		} else {
			h.Followed++
		}
		rules[d.RuleID] = h
	}
	return slices.SortedFunc(maps.Values(rules), func(a, b RuleHealth) int { return cmp.Compare(a.RuleID, b.RuleID) })
}
