package domain_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"spectral/internal/core/check"
	"spectral/internal/platform/domain"
)

var noon = time.Date(2026, time.July, 1, 12, 0, 0, 0, time.UTC)

func detection(at time.Time, failures ...domain.FailureCount) domain.FailureDetection {
	return domain.FailureDetection{
		Signature: domain.FailureSignature{Component: "loader", Operation: "fetch", ErrorClass: "Timeout"},
		Failures:  failures, SeenAt: at,
	}
}

func TestClusterCountsEachDetection(t *testing.T) {
	t.Parallel()
	cluster, err := domain.NewFailureCluster(uuid.New(),
		detection(noon, domain.FailureCount{Kind: "read", Count: 3, Example: "first"}), noon.Add(time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	if cluster.Revision != 1 || cluster.Count() != 3 || cluster.Severity() != domain.LowSeverity {
		t.Fatalf("it begins as %+v", cluster)
	}
	before := fmt.Sprint(cluster)
	raised, err := cluster.Raise(detection(noon.Add(time.Hour),
		domain.FailureCount{Kind: "connect", Count: 90}, domain.FailureCount{Kind: "read",
			Count: 7}, domain.FailureCount{Kind: "connect", Count: 10, Example: "refused"}), noon.Add(time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	if raised.Revision != 2 || raised.Count() != 110 || raised.Severity() != domain.HighSeverity ||
		fmt.Sprint(raised.Failures) != "[{connect 100 refused} {read 10 first}]" {
		t.Errorf("raised to %+v", raised)
	}
	if !raised.FirstSeenAt.Equal(noon) || !raised.LastSeenAt.Equal(noon.Add(time.Hour)) {
		t.Errorf("seen from %s to %s", raised.FirstSeenAt, raised.LastSeenAt)
	}
	if fmt.Sprint(cluster) != before {
		t.Errorf("raising changed the cluster it began with: %+v", cluster)
	}
	earlier, err := raised.Raise(detection(noon.Add(-time.Hour), domain.FailureCount{Kind: "read", Count: 1}),
		noon.Add(time.Hour))
	if err != nil || !earlier.FirstSeenAt.Equal(noon.Add(-time.Hour)) || !earlier.LastSeenAt.Equal(noon.Add(time.Hour)) {
		t.Errorf("a detection that comes late: %+v, %v", earlier, err)
	}
	other := detection(noon, domain.FailureCount{Kind: "read", Count: 1})
	other.Signature.Operation = "store"
	if _, err := raised.Raise(other, noon.Add(time.Hour)); err == nil {
		t.Error("a cluster takes failures of another signature")
	}
}

func TestSeverityFollowsFromTheNumberOfFailures(t *testing.T) {
	t.Parallel()
	for n, want := range map[int64]domain.Severity{
		1: "low", 9: "low", 10: "medium", 99: "medium", 100: "high", 999: "high", 1000: "critical",
	} {
		if got := (domain.FailureCluster{Failures: []domain.FailureCount{{Count: n}}}).Severity(); got != want {
			t.Errorf("%d failures: %s, want %s", n, got, want)
		}
	}
}

func TestClusterCountsFurtherKindsAsOther(t *testing.T) {
	t.Parallel()
	cluster, err := domain.NewFailureCluster(uuid.New(), detection(noon, domain.FailureCount{Kind: "kind 0", Count: 1}),
		noon.Add(time.Hour))
	for i := 1; i < 2*domain.MaxFailureKinds && err == nil; i++ {
		cluster, err = cluster.Raise(detection(noon, domain.FailureCount{Kind: fmt.Sprintf("kind %d", i), Count: 1}),
			noon.Add(time.Hour))
	}
	if err != nil {
		t.Fatal(err)
	}
	if len(cluster.Failures) != domain.MaxFailureKinds || cluster.Count() != 2*domain.MaxFailureKinds {
		t.Fatalf("%d kinds, %d failures", len(cluster.Failures), cluster.Count())
	}
	other := domain.FailureCount{Kind: domain.OtherKind, Count: domain.MaxFailureKinds + 1}
	if !slices.Contains(cluster.Failures, other) {
		t.Errorf("%+v, want %+v", cluster.Failures, other)
	}
}

func TestInvalidDetectionsAreRefused(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", 2001)
	for want, d := range map[string]domain.FailureDetection{
		"component is missing\noperation is missing\nerror_class is missing\nseen_at is missing\n" +
			"number of kinds of failures is 0, must be from 1 to 50": {},
		"kind has 2001 bytes, the limit is 200\nexample has 2001 bytes, the limit is 2000\n" +
			"count is 0, must be from 1 to 1000000000": detection(noon, domain.FailureCount{Kind: long, Example: long}),
		"count is 1000000001, must be from 1 to 1000000000": detection(noon,
			domain.FailureCount{Kind: "read", Count: domain.MaxFailuresPerKind + 1}),
		"seen_at is 2026-07-01T12:05:00Z, which is in the future": detection(noon.Add(check.MaxClockLead+1),
			domain.FailureCount{Kind: "read", Count: 1}),
	} {
		if err := d.Validate(noon); err == nil || err.Error() != want {
			t.Errorf("%v, want %q", err, want)
		}
		if _, err := domain.NewFailureCluster(uuid.New(), d, noon); err == nil {
			t.Errorf("a cluster begins with what has the fault %q", want)
		}
	}
}

func TestMemoryStates(t *testing.T) {
	t.Parallel()
	working := domain.Memory{Version: 3}
	promoted, changed, err := working.Promote(noon)
	if want := (domain.Memory{Version: 4, PromotedAt: noon}); err != nil || !changed ||
		promoted != want {
		t.Fatalf("promoted to %+v, %t, %v", promoted, changed, err)
	}
	if again, changed, err := promoted.Promote(noon.Add(time.Hour)); err != nil || changed || again != promoted {
		t.Errorf("promoted again to %+v, %t, %v", again, changed, err)
	}
	for _, m := range []domain.Memory{working, promoted} {
		want := domain.Memory{Version: m.Version + 1, PromotedAt: m.PromotedAt, RetiredAt: noon}
		retired, changed := m.Retire(noon)
		if !changed || retired != want {
			t.Errorf("retired to %+v, want %+v", retired, want)
		}
		if again, changed := retired.Retire(noon.Add(time.Hour)); changed || again != retired {
			t.Errorf("retired again to %+v", again)
		}
		if _, changed, err := retired.Promote(noon); changed || !errors.Is(err, domain.ErrMemoryRetired) {
			t.Errorf("promoted though retired: %t, %v", changed, err)
		}
	}
}

func TestCurationOutcomeIsFinal(t *testing.T) {
	t.Parallel()
	rulings := []domain.CurationRuling{
		{Outcome: domain.CurationApplied, AppliedAt: noon},
		{Outcome: domain.CurationRefused, Reason: "superseded", AppliedAt: noon},
	}
	for i, ruling := range rulings {
		pending := domain.CurationDecision{ID: uuid.New(), Outcome: domain.CurationPending}
		settled, changed, err := pending.Settle(ruling)
		if err != nil || !changed || settled.Outcome != ruling.Outcome ||
			settled.Reason != ruling.Reason || !settled.RuledAt.Equal(noon) {
			t.Fatalf("settled as %+v, %t, %v", settled, changed, err)
		}
		ruling.AppliedAt = noon.Add(time.Hour)
		if again, changed, err := settled.Settle(ruling); err != nil || changed || again != settled {
			t.Errorf("settled again as %+v, %t, %v", again, changed, err)
		}
		if other, changed, err := settled.Settle(rulings[1-i]); err == nil || changed || other != settled {
			t.Errorf("settled otherwise as %+v, %t, %v", other, changed, err)
		}
	}
}

func TestInvalidMemoriesAndCurationAreRefused(t *testing.T) {
	t.Parallel()
	id := uuid.New()
	for want, err := range map[string]error{
		"candidate_id is missing\nnote has 2001 bytes, the limit is 2000\ndecided_by is missing\n" +
			"decided_at is missing\nverdict is \"maybe\", must be approve or reject": domain.CurationDecision{Verdict: "maybe",
			Note: strings.Repeat("x", 2001)}.Validate(noon),
		"decision_id is missing\napplied_at is missing\noutcome is \"pending\", must be applied or refused": domain.
			CurationRuling{Outcome: "pending"}.Validate(),
		"statement has 2001 bytes, the limit is 2000\nscope is \"galaxy\", must be agent or workspace": domain.
			ValidateMemory("galaxy", strings.Repeat("x", 2001)),
		"reason is missing": domain.CurationRuling{DecisionID: id, Outcome: "refused", AppliedAt: noon}.Validate(),
		"reason is given, but the decision was applied": domain.CurationRuling{DecisionID: id, Outcome: "applied",
			Reason: "superseded", AppliedAt: noon}.Validate(),
		"reason has 501 bytes, the limit is 500": domain.CurationRuling{DecisionID: id, Outcome: "refused",
			Reason: strings.Repeat("x", 501), AppliedAt: noon}.Validate(),
		"": errors.Join(domain.CurationRuling{DecisionID: id, Outcome: "applied", AppliedAt: noon}.Validate(),
			domain.ValidateMemory(domain.AgentMemory, strings.Repeat("x", domain.MaxMemoryBytes)),
			domain.CurationDecision{CandidateID: id, Verdict: "approve", DecidedBy: "ada", DecidedAt: noon}.Validate(noon)),
	} {
		if want == "" && err != nil || want != "" && (err == nil || err.Error() != want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}
