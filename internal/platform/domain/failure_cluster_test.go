package domain_test

import (
	"fmt"
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
		domain.MaxFailuresPerKind: "critical",
	} {
		cluster, err := domain.NewFailureCluster(uuid.New(), detection(noon, domain.FailureCount{Kind: "read", Count: n}),
			noon.Add(time.Hour))
		if err != nil || cluster.Severity() != want {
			t.Errorf("%d failures: %s, %v", n, cluster.Severity(), err)
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
	for _, f := range cluster.Failures {
		if want := int64(domain.MaxFailureKinds + 1); f.Kind == domain.OtherKind && f.Count != want {
			t.Errorf("%d are of other kinds, want %d", f.Count, want)
		}
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
