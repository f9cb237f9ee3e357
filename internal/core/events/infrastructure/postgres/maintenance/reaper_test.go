package maintenance

import (
	"log/slog"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"spectral/internal/core/events/infrastructure/postgres/coredb"
	"spectral/internal/core/events/infrastructure/postgres/pgtx"
)

func TestWhenToAskAgainWhatIsToBeReaped(t *testing.T) {
	t.Parallel()
	r := NewReaper(nil, nil)
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

// A row that cannot be written is logged once, and again only after it was reaped.
func TestUnwritableRowsAreLoggedOnce(t *testing.T) {
	t.Parallel()
	var text strings.Builder
	r := NewReaper(nil, slog.New(slog.NewTextHandler(&text, nil)))
	row := coredb.ReapRow{EventID: uuid.New(), Reason: "23514: it may not be"}
	for _, c := range []struct {
		reaped bool
		lines  int // so far
	}{{false, 1}, {false, 1}, {true, 1}, {false, 2}} {
		row.Reaped = c.reaped
		r.logRow(t.Context(), row)
		if n := strings.Count(text.String(), "cannot be written"); n != c.lines {
			t.Fatalf("%d lines, want %d: %s", n, c.lines, text.String())
		}
	}
}
