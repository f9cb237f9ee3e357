package domain_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"spectral/internal/platform/domain"
)

func TestCurationOutcomeIsFinal(t *testing.T) {
	t.Parallel()
	rulings := []domain.CurationRuling{
		{Outcome: domain.CurationApplied, AppliedAt: noon}, {Outcome: domain.CurationRefused, Reason: "superseded", AppliedAt: noon},
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

func TestInvalidCurationIsRefused(t *testing.T) {
	t.Parallel()
	id := uuid.New()
	for want, err := range map[string]error{
		"candidate_id is missing\nnote has 2001 bytes, the limit is 2000\ndecided_by is missing\n" +
			"decided_at is missing\nverdict is \"maybe\", must be approve or reject": domain.CurationDecision{Verdict: "maybe",
			Note: strings.Repeat("x", 2001)}.Validate(noon),
		"decision_id is missing\napplied_at is missing\noutcome is \"pending\", must be applied or refused": domain.
			CurationRuling{Outcome: "pending"}.Validate(),
		"reason is missing": domain.CurationRuling{DecisionID: id, Outcome: "refused", AppliedAt: noon}.Validate(),
		"reason is given, but the decision was applied": domain.CurationRuling{DecisionID: id, Outcome: "applied",
			Reason: "superseded", AppliedAt: noon}.Validate(),
		"reason has 501 bytes, the limit is 500": domain.CurationRuling{DecisionID: id, Outcome: "refused",
			Reason: strings.Repeat("x", 501), AppliedAt: noon}.Validate(),
		"": errors.Join(domain.CurationRuling{DecisionID: id, Outcome: "applied", AppliedAt: noon}.Validate(),
			domain.CurationDecision{CandidateID: id, Verdict: "approve", DecidedBy: "ada", DecidedAt: noon}.Validate(noon)),
	} {
		if want == "" && err != nil || want != "" && (err == nil || err.Error() != want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}
