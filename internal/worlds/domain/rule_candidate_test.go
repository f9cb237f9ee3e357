package domain_test

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"spectral/internal/core/check"
	"spectral/internal/worlds/domain"
)

var (
	clusterID = uuid.MustParse("0197a0b0-0000-7000-8000-000000000001")
	noon      = time.Date(2026, time.July, 1, 12, 0, 0, 0, time.UTC)
)

func clusterFacts(t *testing.T, revision, failures int64) domain.CandidateFacts {
	t.Helper()
	facts, err := domain.ClusterFacts(clusterID, revision, "loader/fetch: Timeout", failures)
	if err != nil {
		t.Fatal(err)
	}
	return facts
}

func TestInvalidValuesAreRefused(t *testing.T) {
	t.Parallel()
	id := uuid.New()
	_, cluster := domain.ClusterFacts(uuid.Nil, -1, " ", 0)
	_, memory := domain.MemoryFacts(uuid.Nil, 0, strings.Repeat("x", domain.MaxStatementBytes+1), 0)
	_, unknownRevision := domain.ClusterFacts(clusterID, 0, "s", 1)
	_, longest := domain.MemoryFacts(clusterID, 1, strings.Repeat("x", domain.MaxStatementBytes), 1)
	for want, err := range map[string]error{
		"cluster_id is missing\nrevision is -1, must be at least 0\nsignature is missing\n" +
			"number of occurrences is 0, must be at least 1": cluster,
		"memory_id is missing\nversion is 0, must be at least 1\nstatement has 4001 bytes, the limit is 4000\n" +
			"number of occurrences is 0, must be at least 1": memory,
		"decision_id is missing\ncandidate_id is missing\ndecided_at is missing\n" +
			`verdict is "maybe", must be approve or reject`: domain.CurationDecision{Verdict: "maybe"}.Validate(noon),
		"scan_id is missing\nsubject is missing\nfinished_at is missing": domain.IndexedScan{}.Validate(noon),
		"decision_id is missing\nrule_id has 201 bytes, the limit is 200": domain.RuleDecision{
			RuleID: strings.Repeat("x", 201)}.Validate(),
		"": errors.Join(unknownRevision, longest,
			domain.CurationDecision{ID: id, CandidateID: id, Verdict: domain.Approve, DecidedAt: noon}.
				Validate(noon.Add(-check.MaxClockLead)),
			domain.IndexedScan{ScanID: id, Subject: "card:a", FinishedAt: noon}.Validate(noon),
			domain.RuleDecision{DecisionID: id, RuleID: "r"}.Validate()),
	} {
		if want == "" && err != nil || want != "" && (err == nil || err.Error() != want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}

func TestConfidenceGrowsWithOccurrences(t *testing.T) {
	t.Parallel()
	last := 0.0
	for _, n := range []int64{1, 2, 20, 1000, 1 << 60} {
		facts := clusterFacts(t, 1, n)
		if facts.Confidence <= last || facts.Confidence > 1 {
			t.Errorf("%d failures: %g after %g", n, facts.Confidence, last)
		}
		last = facts.Confidence
	}
	if c := clusterFacts(t, 1, 20).Confidence; c != 0.5 {
		t.Errorf("20 failures: %g", c)
	}
	memory, err := domain.MemoryFacts(clusterID, 1, "s", 2)
	if err != nil || memory.Confidence != 0.5 {
		t.Errorf("2 observations: %g, %v", memory.Confidence, err)
	}
}

func TestObserveTakesNewerFacts(t *testing.T) {
	t.Parallel()
	type fact struct{ revision, failures int64 }
	for name, c := range map[string]struct {
		has, comes fact
		newer      bool
	}{
		"a higher revision with fewer":     {fact{1, 5}, fact{2, 4}, true},
		"the same revision with more":      {fact{2, 5}, fact{2, 9}, false},
		"an older revision":                {fact{3, 5}, fact{2, 9}, false},
		"no revision after one":            {fact{1, 5}, fact{0, 50}, false},
		"a revision after none":            {fact{0, 50}, fact{1, 5}, true},
		"more, neither with a revision":    {fact{0, 5}, fact{0, 6}, true},
		"as many, neither with a revision": {fact{0, 5}, fact{0, 5}, false},
	} {
		candidate := domain.ProposeRule(uuid.New(), clusterFacts(t, c.has.revision, c.has.failures))
		if newer := candidate.Observe(clusterFacts(t, c.comes.revision, c.comes.failures)); newer != c.newer {
			t.Errorf("%s: newer is %t", name, newer)
		}
		want := c.has
		if c.newer {
			want = c.comes
		}
		if got := (fact{candidate.Revision, candidate.Occurrences}); got != want {
			t.Errorf("%s: it is now %v", name, got)
		}
	}
}

func TestNewestFactsAreSortedByOrigin(t *testing.T) {
	t.Parallel()
	facts := func(origin domain.CandidateOrigin, id byte, revision, occurrences int64) domain.CandidateFacts {
		return domain.CandidateFacts{Origin: origin, OriginID: uuid.UUID{15: id}, Revision: revision,
			Occurrences: occurrences}
	}
	const cluster, memory = domain.FromFailureCluster, domain.FromMemory
	told := []domain.CandidateFacts{
		facts(memory, 1, 2, 7), facts(cluster, 2, 0, 3), facts(cluster, 1, 2, 1), facts(cluster, 2, 0, 9),
		facts(cluster, 1, 3, 2),
		facts(memory, 1, 1, 8), facts(cluster, 1, 3, 5), facts(cluster, 2, 0, 4),
	}
	want := []domain.CandidateFacts{facts(cluster, 1, 3, 2), facts(cluster, 2, 0, 9), facts(memory, 1, 2, 7)}
	before := slices.Clone(told)
	if got := domain.NewestFacts(told); !slices.Equal(got, want) || !slices.Equal(told, before) {
		t.Errorf("%+v, want %+v", got, want)
	}
	if got := domain.NewestFacts(nil); len(got) != 0 {
		t.Errorf("%+v", got)
	}
}

func TestSumOfAddsCounts(t *testing.T) {
	t.Parallel()
	for want, counts := range map[string][]int64{
		"0 <nil>":                   nil,
		"9223372036854775807 <nil>": {math.MaxInt64 - 1, 1},
		"0 counts are of more failures than can be counted": {math.MaxInt64, math.MaxInt64},
		"0 count is -1, must be at least 1":                 {1, -1},
	} {
		if sum, err := domain.SumOf(counts); fmt.Sprintf("%d %v", sum, err) != want {
			t.Errorf("%v: %d %v, want %s", counts, sum, err, want)
		}
	}
}

func TestNewFactsDoNotChangeADecision(t *testing.T) {
	t.Parallel()
	renamed, err := domain.ClusterFacts(clusterID, 2, "loader/get: Timeout", 30)
	if err != nil {
		t.Fatal(err)
	}
	for verdict, state := range map[domain.CurationVerdict]domain.CandidateState{
		domain.Approve: domain.ApprovedCandidate, domain.Reject: domain.RejectedCandidate,
	} {
		candidate := domain.ProposeRule(uuid.New(), clusterFacts(t, 1, 5))
		decision := domain.CurationDecision{ID: uuid.New(), CandidateID: candidate.ID, Verdict: verdict, DecidedAt: noon}
		candidate.Decide(decision)
		statement := candidate.Statement
		if !candidate.Observe(renamed) {
			t.Fatal("not newer")
		}
		if candidate.State != state || candidate.DecisionID.UUID != decision.ID || candidate.Statement != statement {
			t.Errorf("%s: %+v", verdict, candidate)
		}
		if candidate.Occurrences != 30 || candidate.Revision != 2 {
			t.Errorf("the evidence stands still: %+v", candidate)
		}
	}
	candidate := domain.ProposeRule(uuid.New(), clusterFacts(t, 1, 5))
	if candidate.Observe(renamed); candidate.Statement != renamed.Statement {
		t.Errorf("a proposed candidate says %q", candidate.Statement)
	}
}

func TestLaterDecisionWins(t *testing.T) {
	t.Parallel()
	type decision struct {
		minute  int
		id      byte
		verdict domain.CurationVerdict
	}
	const applied = domain.CurationApplied
	for name, c := range map[string]struct {
		decisions []decision
		outcome   domain.CurationOutcome // of the last decision
		state     domain.CandidateState
		stands    byte
	}{
		"approved":             {[]decision{{1, 1, "approve"}}, applied, "approved", 1},
		"rejected":             {[]decision{{1, 1, "reject"}}, applied, "rejected", 1},
		"the other way, later": {[]decision{{1, 1, "approve"}, {2, 2, "reject"}}, applied, "rejected", 2},
		"back again":           {[]decision{{1, 1, "approve"}, {2, 2, "reject"}, {3, 3, "approve"}}, applied, "approved", 3},
		"the other way, earlier": {[]decision{{2, 2, "reject"}, {1, 1, "approve"}}, domain.CurationRefused, "rejected",
			2},
		"the same, later":            {[]decision{{1, 1, "approve"}, {2, 2, "approve"}}, applied, "approved", 2},
		"the same, earlier":          {[]decision{{2, 2, "approve"}, {1, 1, "approve"}}, applied, "approved", 2},
		"itself":                     {[]decision{{1, 1, "approve"}, {1, 1, "approve"}}, applied, "approved", 1},
		"at one time, the higher id": {[]decision{{1, 1, "approve"}, {1, 2, "reject"}}, applied, "rejected", 2},
		"at one time, the lower id": {[]decision{{1, 2, "reject"}, {1, 1, "approve"}}, domain.CurationRefused, "rejected",
			2},
		"between two that say another": {[]decision{{3, 3, "approve"}, {1, 1, "approve"}, {2, 2, "reject"}},
			domain.CurationRefused, "approved", 3},
		"after a later one that agrees": {[]decision{{1, 1, "approve"}, {3, 3, "approve"}, {2, 2, "reject"}},
			domain.CurationRefused, "approved", 3},
	} {
		candidate := domain.ProposeRule(uuid.New(), clusterFacts(t, 1, 5))
		var ruling domain.CurationRuling
		for _, d := range c.decisions {
			ruling = candidate.Decide(domain.CurationDecision{
				ID: uuid.UUID{15: d.id}, CandidateID: candidate.ID, Verdict: d.verdict,
				DecidedAt: noon.Add(time.Duration(d.minute) * time.Minute),
			})
		}
		superseded := ruling.Reason == domain.ReasonSuperseded
		if ruling.Outcome != c.outcome || superseded != (c.outcome == domain.CurationRefused) {
			t.Errorf("%s: %+v", name, ruling)
		}
		if candidate.State != c.state || candidate.DecisionID.UUID != (uuid.UUID{15: c.stands}) {
			t.Errorf("%s: the candidate is %s by %s", name, candidate.State, candidate.DecisionID.UUID)
		}
	}
}
