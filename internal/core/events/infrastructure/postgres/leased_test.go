package postgres

import (
	"log/slog"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"spectral/internal/core/events"
	"spectral/internal/core/events/infrastructure/postgres/coredb"
)

func TestWhenLeasesAreAskedAbout(t *testing.T) {
	t.Parallel()
	r := newReaper(nil, nil)
	for seconds, want := range map[float64]time.Duration{
		-1: probeEvery, 1: time.Second + time.Millisecond, 0.01: minProbe, 300: probeEvery + time.Millisecond, math.Inf(1): probeEvery + time.Millisecond,
	} {
		if got := r.expect(seconds, 0); got != want || len(r.due) > 0 {
			t.Errorf("%g s: %s, want %s", seconds, got, want)
		}
	}
	for range 2 {
		if got := r.expect(0, 0); got != reapPause || len(r.due) != 1 {
			t.Errorf("run out: %s, %d", got, len(r.due))
		}
	}
}

// A row that cannot be written is logged once, and again only after it was reaped meanwhile.
func TestUnwritableRowsAreLoggedOnce(t *testing.T) {
	t.Parallel()
	var text strings.Builder
	r := newReaper(nil, slog.New(slog.NewTextHandler(&text, nil)))
	rows := make([]coredb.ReapRow, 2*maxReapLines)
	for i := range rows {
		rows[i] = coredb.ReapRow{EventID: uuid.New(), Reason: "23514: it may not be"}
	}
	pass := func() (lines reapLines) {
		for _, row := range rows {
			r.say(t.Context(), row, &lines)
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

// Rows with crashes have every second turn, also where there is one place only, and a process runs one of them at a time.
func TestLeasedClaimsTakeTurns(t *testing.T) {
	t.Parallel()
	l := newLeased(&consumer{subscription: events.Subscription{Concurrency: 1, BatchSize: 1}, journal: &journal{}})
	for n := range 6 {
		l.again, l.crashed = true, true // there is more of both
		limit, crashed := l.next(t.Context())
		if limit != 1 || crashed != (n%2 == 0) {
			t.Fatalf("claim %d takes %d crashed %t", n, limit, crashed)
		}
		if crashed {
			l.journal.turn.giveBack()
		}
	}
	l.again, l.crashed = false, true
	if _, crashed := l.next(t.Context()); !crashed {
		t.Fatal("with nothing else to claim there are no turns")
	}
	l.crashed = true
	if limit, _ := l.next(t.Context()); limit != 0 {
		t.Fatal("two rows with crashes run at once")
	}
	l.stopped = true
	l.journal.turn.giveBack() // wakes it
	if limit, _ := l.next(t.Context()); limit != 0 {
		t.Fatal("halted, it goes on claiming")
	}
}

func TestSettlingEndsBeforeLeasesMustBeRenewed(t *testing.T) {
	t.Parallel()
	for _, lease := range []time.Duration{events.MinLease, time.Second, 30 * time.Second, events.DefaultLease, events.MaxLease} {
		c := newCompleter(&consumer{subscription: events.Subscription{Lease: lease}})
		if first, later := c.limit(1), c.limit(2); first > quickLimit || first > later || later > maxLimit || later >= lease/3 {
			t.Errorf("lease of %s: %s, then %s", lease, first, later)
		}
	}
}
