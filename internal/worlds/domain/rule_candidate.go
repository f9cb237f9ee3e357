package domain

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"spectral/internal/core/check"

	"github.com/google/uuid"
)

// MaxStatementBytes bounds the statement of a rule candidate.
const MaxStatementBytes = 4000

// CandidateOrigin is what led to a rule candidate.
type CandidateOrigin string

// The origins.
const (
	FromFailureCluster CandidateOrigin = "failure_cluster"
	FromMemory         CandidateOrigin = "memory"
)

// CandidateFacts is what one revision of the origin tells about a rule candidate. Make it with [ClusterFacts] or
// [MemoryFacts].
type CandidateFacts struct {
	Origin   CandidateOrigin
	OriginID uuid.UUID
	// Revision is the origin's revision, or 0 if it is not known.
	Revision    int64
	Statement   string
	Occurrences int64 // failures of the cluster, or observations of the memory
	Confidence  float64
}

// These are the occurrences at which the confidence is 1/2. One failure says less than one observation.
const (
	evenFailures     = 20
	evenObservations = 2
)

// SumOf adds the counts of a cluster's failures, each of which must be at least 1.
func SumOf(counts []int64) (sum int64, err error) {
	for _, n := range counts {
		switch {
		case n < 1:
			return 0, fmt.Errorf("count is %d, must be at least 1", n)
		case n > math.MaxInt64-sum:
			return 0, errors.New("counts are of more failures than can be counted")
		}
		sum += n
	}
	return sum, nil
}

// ClusterFacts returns the facts of a failure cluster: a rule that prevents its failures. Revision is 0 if it is not
// known.
func ClusterFacts(clusterID uuid.UUID, revision int64, signature string, failures int64) (CandidateFacts, error) {
	err := errors.Join(check.ID("cluster_id", clusterID), check.AtLeast("revision", revision, 0),
		check.Text("signature", signature, true, MaxStatementBytes))
	return newFacts(err, CandidateFacts{
		Origin: FromFailureCluster, OriginID: clusterID, Revision: revision,
		Statement:   "Keep this from failing again: " + signature,
		Occurrences: failures, Confidence: confidence(failures, evenFailures),
	})
}

// MemoryFacts returns the facts of a memory: its statement as a rule.
func MemoryFacts(memoryID uuid.UUID, version int64, statement string, observations int64) (CandidateFacts, error) {
	err := errors.Join(check.ID("memory_id", memoryID), check.AtLeast("version", version, 1))
	return newFacts(err, CandidateFacts{
		Origin: FromMemory, OriginID: memoryID, Revision: version, Statement: statement,
		Occurrences: observations, Confidence: confidence(observations, evenObservations),
	})
}

func newFacts(err error, f CandidateFacts) (CandidateFacts, error) {
	return f, errors.Join(err, check.Text("statement", f.Statement, true, MaxStatementBytes),
		check.AtLeast("number of occurrences", f.Occurrences, 1))
}

// confidence is 1/2 at even occurrences and approaches 1 with more.
func confidence(occurrences, even int64) float64 {
	return float64(occurrences) / (float64(occurrences) + float64(even))
}

// newerThan reports whether f is newer than g, of the same origin. Without revisions the one with more occurrences is
// newer, because they only grow. Facts without a revision are never newer than facts with one.
func (f CandidateFacts) newerThan(g CandidateFacts) bool {
	if f.Revision == 0 && g.Revision == 0 {
		return f.Occurrences > g.Occurrences
	}
	return f.Revision > g.Revision
}

// NewestFacts returns the newest facts of each origin, in the order of origins. Transactions that lock candidates in
// that order do not deadlock.
func NewestFacts(facts []CandidateFacts) []CandidateFacts {
	ordered := slices.SortedStableFunc(slices.Values(facts), func(f, g CandidateFacts) int {
		return cmp.Or(cmp.Compare(f.Origin, g.Origin), bytes.Compare(f.OriginID[:], g.OriginID[:]))
	})
	newest := ordered[:0]
	for _, f := range ordered {
		switch last := len(newest) - 1; {
		case last < 0 || newest[last].Origin != f.Origin || newest[last].OriginID != f.OriginID:
			newest = append(newest, f)
		case f.newerThan(newest[last]):
			newest[last] = f
		}
	}
	return newest
}

// CandidateState is the state of a rule candidate:
//
//	proposed ──> approved <──> rejected
//	    └─────────────────────────^
//
// Only decisions of curators change it. New facts do not.
type CandidateState string

// The states.
const (
	ProposedCandidate CandidateState = "proposed"
	ApprovedCandidate CandidateState = "approved"
	RejectedCandidate CandidateState = "rejected"
)

// RuleCandidate is a suggested rule that curators decide about.
type RuleCandidate struct {
	ID uuid.UUID
	CandidateFacts
	State CandidateState
	// DecisionID and DecidedAt belong to the newest applied decision; they are absent while proposed.
	DecisionID uuid.NullUUID
	DecidedAt  time.Time
}

// ProposeRule returns a new candidate from facts.
func ProposeRule(id uuid.UUID, f CandidateFacts) RuleCandidate {
	return RuleCandidate{ID: id, CandidateFacts: f, State: ProposedCandidate}
}

// Observe updates the candidate with facts of its origin, and reports whether they are newer. After a decision the
// statement does not change any more.
func (c *RuleCandidate) Observe(f CandidateFacts) bool {
	if !f.newerThan(c.CandidateFacts) {
		return false
	}
	statement := c.Statement
	c.CandidateFacts = f
	if c.State != ProposedCandidate {
		c.Statement = statement
	}
	return true
}

// CurationVerdict is a curator's answer.
type CurationVerdict string

// The verdicts.
const (
	Approve CurationVerdict = "approve"
	Reject  CurationVerdict = "reject"
)

// CurationDecision is the part of a curator's decision that worlds uses.
type CurationDecision struct {
	ID          uuid.UUID
	CandidateID uuid.UUID
	Verdict     CurationVerdict
	DecidedAt   time.Time
}

// Validate returns an error for a decision that is invalid at the time now.
func (d CurationDecision) Validate(now time.Time) error {
	return errors.Join(check.ID("decision_id", d.ID), check.ID("candidate_id", d.CandidateID),
		check.Time("decided_at", d.DecidedAt, now), check.OneOf("verdict", d.Verdict, Approve, Reject))
}

// Compare orders decisions by their time, then by their id.
func (d CurationDecision) Compare(other CurationDecision) int {
	return cmp.Or(d.DecidedAt.Compare(other.DecidedAt), bytes.Compare(d.ID[:], other.ID[:]))
}

// wants returns the state that the decision asks for.
func (d CurationDecision) wants() CandidateState {
	if d.Verdict == Approve {
		return ApprovedCandidate
	}
	return RejectedCandidate
}

// CurationOutcome is the outcome of a decision.
type CurationOutcome string

// The outcomes.
const (
	CurationApplied CurationOutcome = "applied"
	CurationRefused CurationOutcome = "refused"
)

// The reasons of a refusal.
const (
	ReasonUnknownCandidate = "unknown_candidate"
	ReasonSuperseded       = "superseded" // a later decision says otherwise
)

// CurationRuling is the outcome of a decision, with the reason if it was refused.
type CurationRuling struct {
	Outcome CurationOutcome
	Reason  string
}

// RefuseUnknown returns the ruling on a decision whose candidate does not exist. It is final: a candidate's id is made
// in the transaction that stores it, so a retry would not find it (docs/decisions/0013).
func RefuseUnknown() CurationRuling {
	return CurationRuling{Outcome: CurationRefused, Reason: ReasonUnknownCandidate}
}

// Decide applies a decision and returns the ruling. Of two contradicting decisions the one with the later time wins, in
// any order. An earlier one that says the same changes nothing and counts as applied.
func (c *RuleCandidate) Decide(d CurationDecision) CurationRuling {
	standing := CurationDecision{ID: c.DecisionID.UUID, DecidedAt: c.DecidedAt}
	if c.State != ProposedCandidate && standing.Compare(d) > 0 {
		if d.wants() != c.State {
			return CurationRuling{Outcome: CurationRefused, Reason: ReasonSuperseded}
		}
		return CurationRuling{Outcome: CurationApplied}
	}
	c.State = d.wants()
	c.DecisionID, c.DecidedAt = uuid.NullUUID{UUID: d.ID, Valid: true}, d.DecidedAt
	return CurationRuling{Outcome: CurationApplied}
}
