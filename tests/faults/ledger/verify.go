package ledger

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"spectral/tests/pgtest"
)

// Expect is what a test allows beyond delivery at the first attempt.
type Expect struct {
	// Within limits the wait until no event is pending.
	Within time.Duration
	// Failed are the expected dead letters: attempts by key. None of their handlers has handled them.
	Failed map[string]int
	// MaxAttempts is the limit for a delivered event; 0 means 1.
	MaxAttempts int
}

// mostProblems is how many problems a failure lists.
const mostProblems = 20

// Verify waits until no event is pending, and compares the ledger with the database at url, a superuser's that leads
// past any fault.
func (l *Ledger) Verify(t testing.TB, url string, expect Expect) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), expect.Within+time.Minute)
	defer cancel()
	conn := pgtest.Conn(t, url)
	if l.Counts()[Committed] == 0 {
		t.Fatal("the ledger is empty: nothing was published")
	}
	if !l.awaitSettled(ctx, t, conn, expect.Within) {
		return
	}
	if problems := l.compare(l.read(ctx, t, conn), expect); len(problems) > 0 {
		t.Errorf("the ledger (%v) and the database differ:\n%s", l.Counts(), joined(problems))
	}
}

// awaitSettled waits until no publisher's transaction is open and no event is pending. On a timeout it fails the test
// with the rows that are pending.
func (l *Ledger) awaitSettled(ctx context.Context, t testing.TB, conn *pgx.Conn, within time.Duration) bool {
	t.Helper()
	var open int
	settled := pgtest.Eventually(within, func() bool {
		must(t, conn.QueryRow(ctx, `select
			(select count(*) from core.outbox where status in ('pending', 'in_flight', 'relayed')) +
			(select count(*) from pg_catalog.pg_stat_activity where application_name = $1 and state like 'idle in%')`,
			applicationName).Scan(&open))
		return open == 0
	})
	if !settled {
		rows := collect[struct{ Row string }](ctx, t, conn, `select o::text from (select id, status, attempts, created_at,
			available_at, last_error, handler_failures from core.outbox where status in ('pending', 'in_flight', 'relayed')
			order by created_at limit $1) o`, mostProblems)
		t.Errorf("%d events are still pending after %s (the ledger: %v):\n%v", open, within, l.Counts(), rows)
	}
	return settled
}

type event struct {
	ID       string
	Key      string
	Status   string
	Attempts int
	Row      string
}

type handlerKey struct{ Handler, Key string }

type state struct {
	byKey        map[string][]event
	effects      map[handlerKey]int
	handled      map[handlerKey]int // Key is the event's id
	staleContent []string
}

func (l *Ledger) read(ctx context.Context, t testing.TB, conn *pgx.Conn) state {
	t.Helper()
	s := state{byKey: make(map[string][]event)}
	for _, e := range collect[event](ctx, t, conn, `select id::text, coalesce(payload ->> $2, ''), status, attempts,
		o::text from core.outbox o where event_type = $1`, l.kind.EventType, l.kind.KeyField) {
		s.byKey[e.Key] = append(s.byKey[e.Key], e)
	}
	count := func(sql string) map[handlerKey]int {
		counts := make(map[handlerKey]int)
		for _, k := range collect[handlerKey](ctx, t, conn, sql) {
			counts[k]++
		}
		return counts
	}
	s.effects = count("select handler, key from faults.effects")
	s.handled = count("select handler_name, event_id::text from core.event_handled")
	if l.kind.StaleContent != "" {
		for _, stale := range collect[struct{ Key string }](ctx, t, conn, l.kind.StaleContent) {
			s.staleContent = append(s.staleContent, stale.Key)
		}
	}
	return s
}

func (l *Ledger) compare(s state, expect Expect) []string {
	var problems []string
	fail := func(format string, args ...any) { problems = append(problems, fmt.Sprintf(format, args...)) }
	l.mu.Lock()
	defer l.mu.Unlock()
	known := make(map[string]bool)
	for _, tx := range l.transactions {
		there := 0
		for _, key := range tx.keys {
			known[key] = true
			there += min(len(s.byKey[key]), 1)
		}
		switch {
		case tx.outcome == Committed && there < len(tx.keys):
			fail("lost: %d of the %d events of a committed transaction are there: %v", there, len(tx.keys), tx.keys)
		case tx.outcome == Aborted && there > 0:
			fail("visible: %d of the %d events of an aborted transaction are there: %v", there, len(tx.keys), tx.keys)
		case there != 0 && there != len(tx.keys):
			fail("partial: %d of the %d events of one transaction are there: %v", there, len(tx.keys), tx.keys)
		}
	}
	ids := make(map[string]bool)
	for _, key := range slices.Sorted(maps.Keys(s.byKey)) {
		found := s.byKey[key]
		if !known[key] || len(found) > 1 {
			fail("unexpected: %d rows of key %q; the last is %s", len(found), key, found[len(found)-1].Row)
		}
		for _, e := range found {
			ids[e.ID] = true
			for _, problem := range l.compareEvent(s, expect, e) {
				fail("%s: %s", problem, e.Row)
			}
		}
	}
	for _, k := range slices.SortedFunc(maps.Keys(s.effects), byHandler) {
		if len(s.byKey[k.Key]) == 0 {
			fail("effect without event: %d of %s for key %q", s.effects[k], k.Handler, k.Key)
		}
	}
	for _, k := range slices.SortedFunc(maps.Keys(s.handled), byHandler) {
		if slices.Contains(l.kind.Handlers, k.Handler) && !ids[k.Key] {
			fail("handled without event: event %s by %s", k.Key, k.Handler)
		}
	}
	for _, key := range s.staleContent {
		fail("stale: the projection of %q does not have its content", key)
	}
	return problems
}

func byHandler(a, b handlerKey) int { return strings.Compare(a.Handler+" "+a.Key, b.Handler+" "+b.Key) }

func (l *Ledger) compareEvent(s state, expect Expect, e event) []string {
	var problems []string
	fail := func(format string, args ...any) { problems = append(problems, fmt.Sprintf(format, args...)) }
	status := "delivered"
	effects := 1
	attempts, fails := expect.Failed[e.Key]
	if fails {
		status, effects = "failed", 0
		if e.Attempts != attempts {
			fail("failed after %d attempts, want %d", e.Attempts, attempts)
		}
	} else if most := max(expect.MaxAttempts, 1); e.Attempts < 1 || e.Attempts > most {
		fail("%d attempts, want 1 to %d", e.Attempts, most)
	}
	if e.Status != status {
		fail("%s, want %s", e.Status, status)
	}
	for _, handler := range l.kind.Handlers {
		if n := s.effects[handlerKey{handler, e.Key}]; n != effects {
			fail("%s wrote its effect %d times, want %d", handler, n, effects)
		}
		if n := s.handled[handlerKey{handler, e.ID}]; n != effects {
			fail("core.event_handled has %d rows of %s, want %d", n, handler, effects)
		}
	}
	return problems
}
