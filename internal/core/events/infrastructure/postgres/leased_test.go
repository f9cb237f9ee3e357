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

// A row that workers died of has the fewer such rows beside it the more it were, until it is alone.
func TestWhatWorkersDiedOfIsTriedInEverSmallerCompany(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		concurrency int
		running     []int // by how many workers died of each
		want        int32
	}{
		{8, nil, math.MaxInt32},
		{8, []int{0, 0, 0}, math.MaxInt32}, // others do not matter
		{8, []int{1}, 2},                   // a third would be one of two at most
		{8, []int{1, 1}, 1},
		{8, []int{1, 1, 1}, 1},
		{8, []int{1, 1, 1, 1}, 0},
		{8, []int{2}, 2},
		{8, []int{2, 2}, 0},
		{8, []int{1, 2}, 0},
		{8, []int{3}, 0},
		{8, []int{1000}, 0},
		{2, []int{1}, 0},
		{1, nil, math.MaxInt32},
		{1000, []int{1}, 8},
	} {
		l := newLeased(&consumer{subscription: events.Subscription{Concurrency: c.concurrency}})
		for _, crashes := range c.running {
			l.leases[uuid.New()] = &lease{claimed: claimed{crashes: crashes}}
		}
		if got := l.admitted(); got != c.want {
			t.Errorf("%d at once, beside %v: %d, want %d", c.concurrency, c.running, got, c.want)
		}
	}
}

func TestWhenLeasesAreAskedAbout(t *testing.T) {
	t.Parallel()
	r := newReaper(nil, nil)
	for seconds, want := range map[float64]time.Duration{
		-1: probeEvery, 1: time.Second + time.Millisecond, 0.01: minProbe, 300: probeEvery + time.Millisecond, math.Inf(1): probeEvery + time.Millisecond,
	} {
		if got := r.expiry(seconds); got != want || len(r.due) > 0 {
			t.Errorf("%g s: %s, want %s", seconds, got, want)
		}
	}
	for range 2 {
		if got := r.expiry(0); got != reapPause || len(r.due) != 1 {
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

// Rows that a worker died of have every second turn, also where there is one place only.
func TestLeasedClaimsTakeTurns(t *testing.T) {
	t.Parallel()
	l := newLeased(&consumer{subscription: events.Subscription{Concurrency: 1, BatchSize: 1}})
	for n := range 6 {
		l.again, l.crashed = true, true // there is more of both
		if limit, crashes := l.next(); limit != 1 || (crashes == anyCrashed) != (n%2 == 0) {
			t.Fatalf("claim %d takes %d of at most %d deaths", n, limit, crashes)
		}
	}
	l.again, l.crashed = false, true
	for range 2 {
		l.crashed = true
		if _, crashes := l.next(); crashes != anyCrashed {
			t.Fatal("with nothing else to claim there are no turns")
		}
	}
	l.halt()
	if limit, _ := l.next(); limit != 0 {
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
