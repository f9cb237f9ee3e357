package postgres

import (
	"context"
	"errors"
	"log/slog"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgconn"

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

// What was undone beside others is settled by itself, the rest together and in bounds.
func TestEndingsGather(t *testing.T) {
	t.Parallel()
	l := newLeased(&consumer{})
	q := &settling{settlers: 1, most: maxEndings}
	for n := range 2*maxEndings + 3 {
		q.endings = append(q.endings, &ending{alone: n == 2 || n == 3})
	}
	var sizes []int
	for batch := l.gathered(q); len(batch) > 0; batch = l.gathered(q) {
		sizes = append(sizes, len(batch))
	}
	if want := []int{2, 1, 1, maxEndings, maxEndings - 1}; len(sizes) != len(want) || sizes[0] != 2 || sizes[1] != 1 || sizes[2] != 1 || sizes[3] != maxEndings {
		t.Fatalf("%v, want %v", sizes, want)
	}
	if q.settlers != 0 {
		t.Fatal("the settler that found nothing still counts as at work")
	}
}

// As many are settled together as take a second: their rows are locked meanwhile.
func TestEndingsTogetherAreBoundedInTime(t *testing.T) {
	t.Parallel()
	l := newLeased(&consumer{subscription: events.Subscription{Lease: time.Minute}})
	for _, c := range []struct {
		endings int
		took    time.Duration
		want    int
	}{
		{10, 10 * time.Millisecond, 20}, {20, 20 * time.Millisecond, 40}, {2, time.Millisecond, 40}, {40, 0, 80}, {80, 80 * time.Millisecond, maxEndings},
		{100, 10 * time.Second, 10}, {10, 40 * time.Second, 1}, {1, 4 * time.Second, 1}, {1, time.Millisecond, 2},
	} {
		if l.measured(&l.completing, c.endings, c.took); l.completing.most != c.want {
			t.Errorf("after %d in %s: %d, want %d", c.endings, c.took, l.completing.most, c.want)
		}
	}
	l.subscription.Lease = 300 * time.Millisecond
	if l.measured(&l.completing, 10, time.Second); l.completing.most != 1 {
		t.Errorf("%d together are longer than a third of their lease", l.completing.most)
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

// What a completion meets is the handler's failure, unless it is free: then it is tried again, a few times.
func TestWhatFollowsFromAnErrorOfSettling(t *testing.T) {
	t.Parallel()
	deadlock := &pgconn.PgError{Code: "40P01", Severity: "ERROR"}
	refused := &pgconn.PgError{Code: "42501", Severity: "ERROR"}
	of := ending{handler: events.Registration{Name: "platform.worker"}}
	working := t.Context()
	ended := func(cause error) context.Context {
		ctx, end := context.WithCancelCause(working)
		end(cause)
		return ctx
	}
	stopping, late, lost := ended(events.ErrStopping), ended(events.ErrStopping), ended(events.ErrLeaseLost)
	keeping, over := newLeased(&consumer{}), newLeased(&consumer{}) // whose time for what handlers have done is over, too
	keeping.keeping, over.keeping = working, late
	for _, c := range []struct {
		name string
		ctx  context.Context
		e    ending
		err  error
		try  int
		want consequence
	}{
		{"an error", working, of, &completionError{errors.New("no")}, 1, failsHandler},
		{"an error while stopping", stopping, of, &completionError{errors.New("no")}, 1, failsHandler},
		{"a deadlock", working, of, &completionError{deadlock}, 1, triesAgain},
		{"deadlocks", working, of, &completionError{deadlock}, maxCompletions, failsHandler},
		{"a lost connection", working, of, &completionError{&lostConnectionError{context.Canceled}}, 1, triesAgain},
		{"no connection", working, of, &beginError{errors.New("dial")}, 1000, waitsOn},
		{"no connection while stopping", stopping, of, &beginError{errors.New("dial")}, 1000, waitsOn},
		{"none for long", late, of, &beginError{errors.New("dial")}, triesWhenStopping - 1, triesSoon},
		{"none at last", late, of, &beginError{errors.New("dial")}, triesWhenStopping, givesUp},
		{"a locked row while stopping", stopping, of, errRowLocked, 1000, waitsOn},
		{"a row that stays locked", late, of, errRowLocked, triesWhenStopping, givesUp},
		{"a lease that is lost", lost, of, &beginError{errors.New("dial")}, 1, givesUp},
		{"a lost connection around it", working, of, context.Canceled, maxTries - 1, triesAgain},
		{"lost connections around it", working, of, context.Canceled, maxTries, failsHandler},
		{"our own heartbeat", working, of, errRowLocked, 1000, waitsOn},
		{"our own commit", working, of, errUndecided, 1000, waitsOn},
		{"a refusal around it", working, of, refused, 1, triesAgain},
		{"refusals around it", working, of, refused, maxTries, failsHandler},
		{"refusals without a handler", working, ending{}, refused, maxTries, givesUp},
	} {
		l := keeping
		if c.ctx == late {
			l = over
		}
		if got := l.after(c.ctx, &c.e, c.err, c.try); got != c.want {
			t.Errorf("%s: %d", c.name, got)
		}
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

// Once there is no time left to keep what handlers have done, what waits to be settled, or is to wait, is told at once,
// though all settlers are stuck; what claims no key is settled as ever.
func TestNothingWaitsPastTheTimeToKeepIt(t *testing.T) {
	t.Parallel()
	l := newLeased(&consumer{})
	keeping, end := context.WithCancel(t.Context())
	l.keeping = keeping
	l.completing.settlers, l.lone.settlers, l.recording.settlers = completers, loners, recorders // all of them at work
	work := func(handler string, alone bool) *ending {
		return &ending{handler: events.Registration{Name: handler}, alone: alone, answer: make(chan answer, 1)}
	}
	queue := func(e *ending) *ending {
		l.queue(t.Context(), l.settlersOf(e), e)
		return e
	}
	waiting := []*ending{queue(work("platform.one", false)), queue(work("platform.one", true))}
	recorded := queue(work("", false))
	end()
	l.keepNothing()
	for _, e := range append(waiting, queue(work("platform.one", false)), queue(work("platform.one", true))) {
		select {
		case a := <-e.answer:
			if !errors.Is(a.err, errNoTime) {
				t.Errorf("it is told %v", a.err)
			}
		default:
			t.Errorf("one that is settled alone: %t is told nothing", e.alone)
		}
	}
	if later := queue(work("", false)); len(later.answer)+len(recorded.answer) > 0 || len(l.recording.endings) != 2 {
		t.Error("what claims no key is not settled")
	}
}
