package domain_test

import (
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"spectral/internal/core/check"
	"spectral/internal/platform/domain"
)

func TestCurationOutcomeIsFinal(t *testing.T) {
	t.Parallel()
	rulings := []domain.CurationRuling{
		{Outcome: domain.CurationApplied, At: noon}, {Outcome: domain.CurationRefused, Reason: "superseded", At: noon},
	}
	for i, ruling := range rulings {
		pending := domain.CurationDecision{ID: uuid.New(), Outcome: domain.CurationPending}
		settled, changed, err := pending.Settle(ruling)
		if err != nil || !changed || settled.Outcome != ruling.Outcome ||
			settled.Reason != ruling.Reason || !settled.RuledAt.Equal(noon) {
			t.Fatalf("settled as %+v, %t, %v", settled, changed, err)
		}
		ruling.At = noon.Add(time.Hour)
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
	for _, good := range []error{
		domain.CurationDecision{CandidateID: uuid.New(), Verdict: "approve", DecidedBy: "ada",
			DecidedAt: noon.Add(check.MaxClockLead)}.Validate(noon),
		domain.CurationDecision{CandidateID: uuid.New(), Verdict: "reject", DecidedBy: "ada", Note: strings.Repeat("x", 2000),
			DecidedAt: noon}.Validate(noon),
		domain.CurationRuling{DecisionID: uuid.New(), Outcome: "applied", At: noon}.Validate(),
		domain.CurationRuling{DecisionID: uuid.New(), Outcome: "refused", Reason: "superseded", At: noon}.Validate(),
	} {
		if good != nil {
			t.Error(good)
		}
	}
	bad := domain.CurationDecision{Verdict: "maybe", Note: strings.Repeat("x", 2001)}.Validate(noon)
	for _, want := range []string{"candidate_id is missing", `verdict is "maybe"`, "decided_by is missing",
		"note has 2001 bytes", "decided_at is missing"} {
		if bad == nil || !strings.Contains(bad.Error(), want) {
			t.Errorf("%v, want %q", bad, want)
		}
	}
	id := uuid.New()
	for want, ruling := range map[string]domain.CurationRuling{
		"decision_id is missing": {Outcome: "applied", At: noon},
		`outcome is "pending"`:   {DecisionID: id, Outcome: "pending", At: noon},
		"reason is missing":      {DecisionID: id, Outcome: "refused", At: noon},
		"reason is given":        {DecisionID: id, Outcome: "applied", Reason: "superseded", At: noon},
		"reason has 501 bytes":   {DecisionID: id, Outcome: "refused", Reason: strings.Repeat("x", 501), At: noon},
		"applied_at is missing":  {DecisionID: id, Outcome: "applied"},
	} {
		if err := ruling.Validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}
