package maintenance

import (
	"math"
	"testing"
	"time"

	"spectral/internal/core/events/infrastructure/postgres/pgtx"
)

func TestWhenToAskAgainWhatIsToBeReaped(t *testing.T) {
	t.Parallel()
	r := NewReaper(nil, nil, nil, nil)
	for seconds, want := range map[float64]time.Duration{
		-1: pgtx.ProbeInterval, 1: time.Second + pgtx.RoundUp, 0.01: pgtx.MinProbe,
		300: pgtx.ProbeInterval + pgtx.RoundUp, math.Inf(1): pgtx.ProbeInterval + pgtx.RoundUp,
	} {
		if got := r.Expect(seconds, 0); got != want || len(r.due) > 0 {
			t.Errorf("%g s: %s, want %s", seconds, got, want)
		}
	}
	for range 2 {
		if got := r.Expect(0, 0); got != pgtx.ReapPause || len(r.due) != 1 {
			t.Errorf("run out: %s, %d", got, len(r.due))
		}
	}
}
