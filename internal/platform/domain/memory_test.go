package domain_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"spectral/internal/platform/domain"
)

func TestMemoryStates(t *testing.T) {
	t.Parallel()
	working := domain.Memory{State: domain.WorkingMemory, Version: 3}
	promoted, changed, err := working.Promote(noon)
	if err != nil || !changed || promoted.State != domain.PromotedMemory || promoted.Version != 4 ||
		!promoted.PromotedAt.Equal(noon) {
		t.Fatalf("promoted to %+v, %t, %v", promoted, changed, err)
	}
	if again, changed, err := promoted.Promote(noon.Add(time.Hour)); err != nil || changed || again != promoted {
		t.Errorf("promoted again to %+v, %t, %v", again, changed, err)
	}
	for name, m := range map[string]domain.Memory{"working": working, "promoted": promoted} {
		retired, changed := m.Retire(noon)
		if !changed || retired.State != domain.RetiredMemory ||
			retired.Version != m.Version+1 || !retired.RetiredAt.Equal(noon) ||
			!retired.PromotedAt.Equal(m.PromotedAt) {
			t.Errorf("%s, retired to %+v", name, retired)
		}
		if again, changed := retired.Retire(noon.Add(time.Hour)); changed || again != retired {
			t.Errorf("retired again to %+v", again)
		}
		if _, changed, err := retired.Promote(noon); changed || !errors.Is(err, domain.ErrMemoryRetired) {
			t.Errorf("promoted though retired: %t, %v", changed, err)
		}
	}
}

func TestInvalidMemoriesAreRefused(t *testing.T) {
	t.Parallel()
	const want = "statement has 2001 bytes, the limit is 2000\nscope is \"galaxy\", must be agent or workspace"
	if err := domain.ValidateMemory("galaxy", strings.Repeat("x", 2001)); err == nil || err.Error() != want {
		t.Errorf("%v, want %q", err, want)
	}
	if err := domain.ValidateMemory(domain.AgentMemory, strings.Repeat("x", domain.MaxMemoryBytes)); err != nil {
		t.Error(err)
	}
}
