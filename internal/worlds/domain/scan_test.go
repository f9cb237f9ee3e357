package domain_test

import (
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"spectral/internal/worlds/domain"
)

func TestScanIsCompletedOnce(t *testing.T) {
	t.Parallel()
	broken := domain.Findings{{Kind: "broken_link", Occurrences: 2}}
	running := func() domain.Scan {
		s, err := domain.StartScan(uuid.New(), "card:harbour", now)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	scan := running()
	if changed, err := scan.Complete(broken, now.Add(time.Hour)); !changed || err != nil {
		t.Errorf("completed: %t, %v", changed, err)
	}
	before := fmt.Sprint(scan)
	for want, findings := range map[error]domain.Findings{nil: broken, domain.ErrScanCompleted: nil} {
		changed, err := scan.Complete(findings, now.Add(2*time.Hour))
		if changed || !errors.Is(err, want) || fmt.Sprint(scan) != before {
			t.Errorf("completed again with %v: %t, %v, %+v", findings, changed, err, scan)
		}
	}
	if scan.FinishedAt != now.Add(time.Hour) {
		t.Errorf("finished at %s", scan.FinishedAt)
	}

	early := running()
	if _, err := early.Complete(nil, now.Add(-time.Hour)); err != nil || early.FinishedAt != now {
		t.Errorf("by a clock behind it finished at %s: %v", early.FinishedAt, err)
	}
	odd := running()
	finished := now.Add(1999).In(time.FixedZone("", 3600))
	if _, err := odd.Complete(nil, finished); err != nil || odd.FinishedAt != now.Add(time.Microsecond) {
		t.Errorf("finished at %s: %v", odd.FinishedAt, err)
	}
	if _, err := domain.StartScan(uuid.New(), "", now); err == nil || err.Error() != "subject is missing" {
		t.Errorf("a scan without a subject: %v", err)
	}
}

func TestFindingsHaveOneEntryPerKind(t *testing.T) {
	t.Parallel()
	ordered, err := domain.NewFindings(domain.Finding{Kind: "b", Occurrences: 2},
		domain.Finding{Kind: "a", Occurrences: 1})
	if got := fmt.Sprint(ordered); got != "[{a 1} {b 2}]" || ordered.Occurrences() != 3 {
		t.Errorf("%s, %d occurrences: %v", got, ordered.Occurrences(), err)
	}
	many := make([]domain.Finding, domain.MaxFindings+1)
	for i := range many {
		many[i] = domain.Finding{Kind: fmt.Sprintf("k%d", i), Occurrences: 1}
	}
	if _, err := domain.NewFindings(many[1:]...); err != nil {
		t.Error(err)
	}
	for want, of := range map[string][]domain.Finding{
		`finding kind is "Broken Link", must be lower-case words of at most 64 bytes`: {{Kind: "Broken Link"}},
		`finding kind is "` + strings.Repeat("x", 65) + `", must be`:                  {{Kind: strings.Repeat("x", 65)}},
		"finding a has 0 occurrences, must be from 1 to 1000000000":                   {{Kind: "a"}},
		"finding a has 1000000001 occurrences":                                        {{Kind: "a", Occurrences: 1e9 + 1}},
		"finding a is there twice: add its occurrences up": {{Kind: "a", Occurrences: 1},
			{Kind: "b", Occurrences: 1}, {Kind: "a", Occurrences: 1}},
		"findings are of 201 kinds, the limit is 200": many,
	} {
		if _, err := domain.NewFindings(of...); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}

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
	decisions := []domain.RuleDecision{{RuleID: "b", Overridden: true}, {RuleID: "a"}, {RuleID: "a", Overridden: true},
		{RuleID: "a"}}
	want := []domain.RuleHealth{{RuleID: "a", Followed: 2, Overridden: 1}, {RuleID: "b", Overridden: 1}}
	for range decisions {
		decisions = append(decisions[1:], decisions[0])
		if got := domain.HealthOf(decisions); !reflect.DeepEqual(got, want) {
			t.Errorf("%v\nadds up to %+v\nwant %+v", decisions, got, want)
		}
	}
}
