package domain

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
)

// MaxStatementBytes bounds the statement of a rule candidate.
const MaxStatementBytes = 4000

// CandidateOrigin is what a rule candidate was made of.
type CandidateOrigin string

// The origins.
const (
	FromFailureCluster CandidateOrigin = "failure_cluster"
	FromMemory         CandidateOrigin = "memory"
)

// CandidateFacts is what is known of a rule candidate from its origin, as of one revision of that. Make it with
// [ClusterFacts] or [MemoryFacts].
type CandidateFacts struct {
	Origin   CandidateOrigin
	OriginID uuid.UUID
	// Revision of the origin; 0 for a fact that came without one.
	Revision    int64
	Statement   string
	Occurrences int64 // failures of the cluster, or observations of the memory
	Kinds       int64 // different ones among them
	Confidence  float64
}

// How many occurrences make it as likely as not that there is a rule: a failure says less than what somebody
// has thought about.
const (
	evenFailures     = 20
	evenObservations = 2
)

// SumOf adds up the counts of a cluster's failures, each of which is at least 1.
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

// ClusterFacts is what a failure cluster suggests: that its failures are to be kept from happening again.
// Revision is 0 if it is not known.
func ClusterFacts(clusterID uuid.UUID, revision int64, signature string, failures, kinds int64) (CandidateFacts, error) {
	err := checkID("cluster_id", clusterID)
	if revision < 0 {
		err = errors.Join(err, fmt.Errorf("revision is %d, must not be negative", revision))
	}
	if strings.TrimSpace(signature) == "" {
		err = errors.Join(err, errors.New("signature is missing"))
	}
	return newFacts(err, CandidateFacts{
		Origin: FromFailureCluster, OriginID: clusterID, Revision: revision, Statement: "Keep this from failing again: " + signature,
		Occurrences: failures, Kinds: kinds, Confidence: confidence(failures, evenFailures),
	})
}

// MemoryFacts is what a memory suggests: its statement.
func MemoryFacts(memoryID uuid.UUID, version int64, statement string, observations int64) (CandidateFacts, error) {
	err := checkID("memory_id", memoryID)
	if version < 1 {
		err = errors.Join(err, fmt.Errorf("version is %d, must be at least 1", version))
	}
	return newFacts(err, CandidateFacts{
		Origin: FromMemory, OriginID: memoryID, Revision: version, Statement: statement,
		Occurrences: observations, Kinds: 1, Confidence: confidence(observations, evenObservations),
	})
}

func newFacts(err error, f CandidateFacts) (CandidateFacts, error) {
	err = errors.Join(err, textWithin("statement", f.Statement, 1, MaxStatementBytes))
	if f.Occurrences < 1 {
		err = errors.Join(err, fmt.Errorf("there are %d occurrences, must be at least 1", f.Occurrences))
	}
	if f.Kinds < 1 {
		err = errors.Join(err, fmt.Errorf("there are %d kinds, must be at least 1", f.Kinds))
	}
	if err != nil {
		return CandidateFacts{}, err
	}
	return f, nil
}

// confidence is 1/2 at even occurrences and nears 1 with more.
func confidence(occurrences, even int64) float64 {
	return float64(occurrences) / (float64(occurrences) + float64(even))
}

// newerThan reports whether f says more than g, of the same origin. Of facts without a revision the one with more
// occurrences is newer, for they only grow; beside one that has a revision they are not.
func (f CandidateFacts) newerThan(g CandidateFacts) bool {
	if f.Revision == 0 && g.Revision == 0 {
		return f.Occurrences > g.Occurrences
	}
	return f.Revision > g.Revision
}

// NewestFacts are the newest of each origin, in the order of origins. Who takes candidates in that order waits for nobody who
// waits for them.
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

// CandidateState is where a rule candidate is:
//
//	proposed ──> approved <──> rejected
//	    └─────────────────────────^
//
// Only decisions of curators move it. New facts never do: what was decided stays decided.
type CandidateState string

// The states.
const (
	ProposedCandidate CandidateState = "proposed"
	ApprovedCandidate CandidateState = "approved"
	RejectedCandidate CandidateState = "rejected"
)

// RuleCandidate is a rule that something suggests, for curators to decide on.
type RuleCandidate struct {
	ID uuid.UUID
	CandidateFacts
	State CandidateState
	// DecisionID and DecidedAt are of the newest decision that was applied; absent while proposed.
	DecisionID uuid.NullUUID
	DecidedAt  time.Time
}

// ProposeRule makes a candidate of facts.
func ProposeRule(id uuid.UUID, f CandidateFacts) RuleCandidate {
	return RuleCandidate{ID: id, CandidateFacts: f, State: ProposedCandidate}
}

// Observe takes in facts of the candidate's origin, and reports whether they are newer than what it has. Once it is
// decided on, its statement stays what the curator has read.
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

// CurationVerdict is what a curator wants of a candidate.
type CurationVerdict string

// The verdicts.
const (
	Approve CurationVerdict = "approve"
	Reject  CurationVerdict = "reject"
)

// CurationDecision is a curator's decision on a candidate, as worlds needs it.
type CurationDecision struct {
	ID          uuid.UUID
	CandidateID uuid.UUID
	Verdict     CurationVerdict
	DecidedAt   time.Time
}

// Validate reports what is wrong with a decision that is known of at now.
func (d CurationDecision) Validate(now time.Time) error {
	err := errors.Join(checkID("decision_id", d.ID), checkID("candidate_id", d.CandidateID), checkTime("decided_at", d.DecidedAt, now))
	if d.Verdict != Approve && d.Verdict != Reject {
		err = errors.Join(err, fmt.Errorf("verdict is %q, must be approve or reject", d.Verdict))
	}
	return err
}

// Compare orders decisions by their time, then by their id.
func (d CurationDecision) Compare(other CurationDecision) int {
	return cmp.Or(d.DecidedAt.Compare(other.DecidedAt), bytes.Compare(d.ID[:], other.ID[:]))
}

// wants is the state that the decision asks for.
func (d CurationDecision) wants() CandidateState {
	if d.Verdict == Approve {
		return ApprovedCandidate
	}
	return RejectedCandidate
}

// CurationOutcome is what became of a decision.
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

// CurationRuling says what became of a decision, and why if it was refused.
type CurationRuling struct {
	Outcome CurationOutcome
	Reason  string
}

// RefuseUnknown rules on a decision whose candidate there is not.
//
// That is an outcome, and final. A candidate's id is made in the transaction that stores it, so that nobody can
// have learned it before it was there for all to see: waiting would not bring it. What such a decision names is
// mistaken, or of another workspace, and whoever took it should be told now.
func RefuseUnknown() CurationRuling {
	return CurationRuling{Outcome: CurationRefused, Reason: ReasonUnknownCandidate}
}

// Decide rules on a decision and follows it, whichever of several comes first: of two that contradict each other
// the later one stands. An earlier one that says the same changes nothing, and counts as applied.
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
