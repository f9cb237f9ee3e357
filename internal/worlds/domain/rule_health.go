package domain

import (
	"cmp"
	"errors"
	"maps"
	"slices"

	"spectral/internal/core/check"

	"github.com/google/uuid"
)

// MaxRuleIDBytes bounds the id of a rule.
const MaxRuleIDBytes = 200

// The thresholds of a rule's health.
const (
	// MinRatedDecisions is how many decisions a rating needs.
	MinRatedDecisions = 5
	// ContestedShare is the share of overrides from which a rule is contested.
	ContestedShare = 0.25
	// FailingShare is the share of overrides from which a rule is failing.
	FailingShare = 0.5
)

// HealthState rates a rule by the decisions about its proposals.
type HealthState string

// The states of a rule's health.
const (
	Unrated   HealthState = "unrated" // too few decisions
	Healthy   HealthState = "healthy"
	Contested HealthState = "contested"
	Failing   HealthState = "failing"
)

// RuleDecision is the part of a decision about a rule's proposal that worlds uses.
type RuleDecision struct {
	DecisionID uuid.UUID
	RuleID     string
	Overridden bool // otherwise followed
}

// Validate returns an error for a decision that is invalid.
func (d RuleDecision) Validate() error {
	return errors.Join(check.ID("decision_id", d.DecisionID), check.Line("rule_id", d.RuleID, MaxRuleIDBytes))
}

// RuleHealth counts the decisions about the proposals of one rule. It does not depend on their order.
type RuleHealth struct {
	RuleID               string
	Followed, Overridden int64
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

// HealthOf counts decisions by rule, in the order of the rules.
func HealthOf(decisions []RuleDecision) []RuleHealth {
	rules := make(map[string]RuleHealth)
	for _, d := range decisions {
		h := rules[d.RuleID]
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
