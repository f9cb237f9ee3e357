package domain_test

import (
	"errors"
	"reflect"
	"slices"
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
			Outcome: domain.Followed, DecidedAt: now},
		DecidedBy: "the harbour master",
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

func TestChangedDecisionIsRefused(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		change func(*domain.Decision)
		want   []string
	}{
		"the same":             {nil, nil},
		"in another time zone": {func(d *domain.Decision) { d.DecidedAt = d.DecidedAt.In(time.FixedZone("", 3600)) }, nil},
		"another outcome":      {overridden("because"), []string{"outcome", "override_reason"}},
		"all of it": {func(d *domain.Decision) {
			overridden("because")(d)
			d.RuleID, d.DecidedBy, d.DecidedAt = "other", "other", d.DecidedAt.Add(time.Microsecond)
		}, []string{"decided_at", "decided_by", "outcome", "override_reason", "rule_id"}},
	} {
		err := decision(nil).CheckSame(decision(c.change))
		conflict, _ := errors.AsType[*domain.DecisionConflictError](err)
		if c.want == nil && err != nil || c.want != nil && (conflict == nil || !slices.Equal(conflict.Fields, c.want)) {
			t.Errorf("%s: %v, want a conflict about %v", name, err, c.want)
		}
	}
	const want = "decision 00000000-0000-4000-8000-000000000001 is recorded already with another rule_id: a decision " +
		"never changes, record a new one under another id"
	other := decision(func(d *domain.Decision) { d.RuleID = "x" })
	if err := decision(nil).CheckSame(other); err == nil || err.Error() != want {
		t.Errorf("%v", err)
	}
	odd := decision(func(d *domain.Decision) { d.DecidedAt = now.Add(1999).In(time.FixedZone("", 3600)) })
	if got := odd.Recordable().DecidedAt; got != now.Add(time.Microsecond) {
		t.Errorf("%s is recordable as %s", odd.DecidedAt, got)
	}
}

func TestPatternsDoNotDependOnTheOrderOfDecisions(t *testing.T) {
	t.Parallel()
	at := func(minute int) time.Time { return now.Add(time.Duration(minute) * time.Minute) }
	rulings := []domain.Ruling{
		{RuleID: "b", Outcome: domain.Followed, DecidedAt: at(9)},
		{RuleID: "a", Outcome: domain.Overridden, OverrideReason: "Too  slow", DecidedAt: at(3)},
		{RuleID: "a", Outcome: domain.Followed, DecidedAt: at(1)},
		{RuleID: "a", Outcome: domain.Overridden, OverrideReason: "too slow ", DecidedAt: at(2)},
		{RuleID: "a", Outcome: domain.Overridden, OverrideReason: "out of date", DecidedAt: at(5)},
	}
	want := []domain.OverridePattern{
		{
			RuleID: "a", Followed: 1, Overridden: 3, FirstDecidedAt: at(1), LastDecidedAt: at(5),
			Reasons: []domain.OverrideReason{
				{Reason: "out of date", Overridden: 1, FirstDecidedAt: at(5), LastDecidedAt: at(5)},
				{Reason: "too slow", Overridden: 2, FirstDecidedAt: at(2), LastDecidedAt: at(3)},
			},
		},
		{RuleID: "b", Followed: 1, FirstDecidedAt: at(9), LastDecidedAt: at(9)},
	}
	for range rulings {
		rulings = append(rulings[1:], rulings[0])
		if got := domain.PatternsOf(rulings); !reflect.DeepEqual(got, want) {
			t.Errorf("%v\nadds up to %+v\nwant %+v", rulings, got, want)
		}
	}
}
