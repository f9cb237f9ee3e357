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
	rows := make([]coredb.ReapRow, 2*maxReapLines)
	for i := range rows {
		rows[i] = coredb.ReapRow{EventID: uuid.New(), Reason: "23514: it may not be"}
	}
	pass := func() (lines reapCounts) {
		for _, row := range rows {
			r.logRow(t.Context(), row, &lines)
		}
		return lines
	}
	if said := pass(); said.left != len(rows) || strings.Count(text.String(), "cannot be written") != maxReapLines {
		t.Fatalf("%+v: %s", said, text.String())
	}
	if text.Reset(); pass().left > 0 || text.Len() > 0 {
		t.Fatal(text.String())
	}
	rows[0].Reaped = true
	if said := pass(); said.reaped != 1 {
		t.Fatalf("%+v", said)
	}
	rows[0].Reaped = false
	if said := pass(); said.left != 1 {
		t.Fatalf("%+v", said)
	}
}
