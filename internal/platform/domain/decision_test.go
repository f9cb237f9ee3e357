package domain_test

import (
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"spectral/internal/platform/domain"
)

var now = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func decision(change func(*domain.Decision)) domain.Decision {
	d := domain.Decision{
		Ruling: domain.Ruling{DecisionID: uuid.MustParse("00000000-0000-4000-8000-000000000001"), RuleID: "berth-depth",
			Outcome: domain.Followed},
		DecidedBy: "the harbour master", DecidedAt: now,
	}
	if change != nil {
		change(&d)
	}
	return d
}

func overridden(reason string) func(*domain.Decision) {
	return func(d *domain.Decision) { d.Outcome, d.OverrideReason = domain.Overridden, reason }
}

func TestInvalidDecisionsAreRefused(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		change func(*domain.Decision)
		want   string // empty: valid
	}{
		"followed":              {nil, ""},
		"overridden":            {overridden("surveyed last week"), ""},
		"no reason to override": {overridden(" \t"), "override_reason is missing"},
		"a long reason":         {overridden(strings.Repeat("x", 1001)), "override_reason has 1001 bytes, the limit is 1000"},
		"a reason to follow": {func(d *domain.Decision) { d.OverrideReason = "good" }, "override_reason is given for a " +
			"followed proposal: leave it out, or record it as overridden"},
		"a long rule": {func(d *domain.Decision) { d.RuleID = strings.Repeat("é", 101) },
			"rule_id has 202 bytes, the limit is 200"},
		"nothing": {func(d *domain.Decision) { *d = domain.Decision{} }, "decision_id is missing\nrule_id is missing\n" +
			"outcome is \"\", must be followed or overridden\ndecided_at is missing\ndecided_by is missing"},
	} {
		err := decision(c.change).Validate(now)
		if c.want == "" && err != nil || c.want != "" && (err == nil || err.Error() != c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
}

func TestPatternsDoNotDependOnTheOrderOfDecisions(t *testing.T) {
	t.Parallel()
	rulings := []domain.Ruling{
		{RuleID: "b", Outcome: domain.Followed},
		{RuleID: "a", Outcome: domain.Overridden, OverrideReason: "Too  slow"},
		{RuleID: "a", Outcome: domain.Followed},
		{RuleID: "a", Outcome: domain.Overridden, OverrideReason: "too slow "},
		{RuleID: "a", Outcome: domain.Overridden, OverrideReason: "out of date"},
	}
	want := []domain.OverridePattern{
		{RuleID: "a", Followed: 1, Overridden: 3,
			Reasons: []domain.OverrideReason{{Reason: "out of date", Overridden: 1}, {Reason: "too slow", Overridden: 2}}},
		{RuleID: "b", Followed: 1},
	}
	for range rulings {
		rulings = append(rulings[1:], rulings[0])
		if got := domain.PatternsOf(rulings); !reflect.DeepEqual(got, want) {
			t.Errorf("%v\nadds up to %+v\nwant %+v", rulings, got, want)
		}
	}
}
