package domain_test

import (
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"spectral/internal/worlds/domain"
)

var now = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func TestHealthFollowsFromTheShareOfOverrides(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		followed, overridden int64
		want                 domain.HealthState
	}{
		{4, 0, domain.Unrated}, {0, 4, domain.Unrated},
		{5, 0, domain.Healthy}, {76, 24, domain.Healthy},
		{75, 25, domain.Contested}, {501, 499, domain.Contested},
		{500, 500, domain.Failing}, {0, 5, domain.Failing},
	} {
		if got := (domain.RuleHealth{Followed: c.followed, Overridden: c.overridden}).State(); got != c.want {
			t.Errorf("%d followed, %d overridden: %s, want %s", c.followed, c.overridden, got, c.want)
		}
	}
}

func TestHealthDoesNotDependOnTheOrderOfDecisions(t *testing.T) {
	t.Parallel()
	at := func(minute int) time.Time { return now.Add(time.Duration(minute) * time.Minute) }
	decisions := []domain.RuleDecision{
		{RuleID: "b", Overridden: true, DecidedAt: at(9)},
		{RuleID: "a", DecidedAt: at(3)},
		{RuleID: "a", Overridden: true, DecidedAt: at(1)},
		{RuleID: "a", DecidedAt: at(2)},
	}
	want := []domain.RuleHealth{
		{RuleID: "a", Followed: 2, Overridden: 1, LastDecidedAt: at(3)},
		{RuleID: "b", Overridden: 1, LastDecidedAt: at(9)},
	}
	for range decisions {
		decisions = append(decisions[1:], decisions[0])
		if got := domain.HealthOf(decisions); !reflect.DeepEqual(got, want) {
			t.Errorf("%v\nadds up to %+v\nwant %+v", decisions, got, want)
		}
	}
}

func TestInvalidRuleDecisionsAreRefused(t *testing.T) {
	t.Parallel()
	if err := (domain.RuleDecision{DecisionID: uuid.New(), RuleID: "r", DecidedAt: now}).Validate(now); err != nil {
		t.Error(err)
	}
	const want = "decision_id is missing\nrule_id has 201 bytes, the limit is 200\ndecided_at is missing"
	if err := (domain.RuleDecision{RuleID: strings.Repeat("x", 201)}).Validate(now); err == nil || err.Error() != want {
		t.Errorf("%v, want %q", err, want)
	}
}
