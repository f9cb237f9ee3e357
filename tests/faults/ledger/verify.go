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
)

// Expect is what a test allows beyond delivery at the first attempt.
type Expect struct {
	// Within limits the wait until no event is pending.
	Within time.Duration
	// Failed are the expected dead letters by key.
	Failed map[string]DeadLetter
	// MaxAttempts is the limit for a delivered event; 0 means 1.
	MaxAttempts int
}

// DeadLetter is an expected dead letter.
type DeadLetter struct {
	Attempts int
	Handled  []string // the handlers that handled it; the others failed
}

// mostProblems is how many problems a failure lists.
const mostProblems = 20

// Verify waits until no event is pending, and compares the ledger with the database at url, a superuser's that leads
// past any fault.
func (l *Ledger) Verify(t testing.TB, url string, expect Expect) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), expect.Within+time.Minute)
	defer cancel()
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(ctx) }()
	if l.Events() == 0 {
		t.Fatal("the ledger is empty: nothing was published")
	}
	if !l.awaitSettled(ctx, t, conn, expect.Within) {
		return
	}
	found, err := l.read(ctx, conn)
	if err != nil {
		t.Fatal(err)
	}
	problems := l.compare(found, expect)
	if len(problems) > 0 {
		t.Errorf("the ledger (%v) and the database differ:\n%s", l.Counts(), joined(problems))
	}
}

// awaitSettled waits until no publisher's transaction is open and no event is pending. On a timeout it fails the test
// with the rows that are pending.
func (l *Ledger) awaitSettled(ctx context.Context, t testing.TB, conn *pgx.Conn, within time.Duration) bool {
	t.Helper()
	deadline := time.NewTimer(within)
	defer deadline.Stop()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		var open int
		err := conn.QueryRow(ctx, `select
			(select count(*) from core.outbox where status in ('pending', 'in_flight')) +
			(select count(*) from pg_catalog.pg_stat_activity where application_name = $1 and state like 'idle in%')`,
			applicationName).Scan(&open)
		if err != nil {
			t.Fatal(err)
		}
		if open == 0 {
			return true
		}
		select {
		case <-tick.C:
		case <-deadline.C:
			t.Errorf("%d events are still pending after %s (the ledger: %v):\n%s", open, within, l.Counts(), pending(ctx, conn))
			return false
		}
	}
}

func pending(ctx context.Context, conn *pgx.Conn) string {
	rows, err := conn.Query(ctx, `select o::text from (
		select id, status, attempts, created_at, available_at, last_error, handler_failures
		from core.outbox where status in ('pending', 'in_flight') order by created_at limit $1) o`, mostProblems)
	if err != nil {
		return err.Error()
	}
	lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return err.Error()
	}
	return strings.Join(lines, "\n")
}

// event is a row of core.outbox.
type event struct {
	ID        string
	Key       string
	Status    string
	Attempts  int
	LastError string
	Row       string
}

type handlerKey struct{ Handler, Key string }

// state is what the database holds.
type state struct {
	byKey        map[string][]event
	effects      map[handlerKey]int
	handled      map[handlerKey]int // Key is the event's id
	staleContent []string
}

func (l *Ledger) read(ctx context.Context, conn *pgx.Conn) (state, error) {
	s := state{byKey: make(map[string][]event), effects: make(map[handlerKey]int), handled: make(map[handlerKey]int)}
	rows, err := conn.Query(ctx, `select id::text, coalesce(payload ->> $2, ''), status, attempts,
		coalesce(last_error, ''), o::text from core.outbox o where event_type = $1`, l.kind.EventType, l.kind.KeyField)
	if err != nil {
		return s, err
	}
	found, err := pgx.CollectRows(rows, pgx.RowToStructByPos[event])
	if err != nil {
		return s, err
	}
	for _, e := range found {
		s.byKey[e.Key] = append(s.byKey[e.Key], e)
	}
	if s.effects, err = count(ctx, conn, "select handler, key from faults.effects"); err != nil {
		return s, err
	}
	if s.handled, err = count(ctx, conn, "select handler_name, event_id::text from core.event_handled"); err != nil {
		return s, err
	}
	if l.kind.StaleContent != "" {
		rows, err := conn.Query(ctx, l.kind.StaleContent)
		if err != nil {
			return s, err
		}
		if s.staleContent, err = pgx.CollectRows(rows, pgx.RowTo[string]); err != nil {
			return s, err
		}
	}
	return s, nil
}

func count(ctx context.Context, conn *pgx.Conn, sql string) (map[handlerKey]int, error) {
	rows, err := conn.Query(ctx, sql)
	if err != nil {
		return nil, err
	}
	all, err := pgx.CollectRows(rows, pgx.RowToStructByPos[handlerKey])
	if err != nil {
		return nil, err
	}
	counts := make(map[handlerKey]int)
	for _, k := range all {
		counts[k]++
	}
	return counts, nil
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

// compareEvent returns what is wrong with one event.
func (l *Ledger) compareEvent(s state, expect Expect, e event) []string {
	var problems []string
	fail := func(format string, args ...any) { problems = append(problems, fmt.Sprintf(format, args...)) }
	status := "delivered"
	dead, fails := expect.Failed[e.Key]
	if fails {
		status = "failed"
		if e.Attempts != dead.Attempts {
			fail("failed after %d attempts, want %d", e.Attempts, dead.Attempts)
		}
	} else if most := max(expect.MaxAttempts, 1); e.Attempts < 1 || e.Attempts > most {
		fail("%d attempts, want 1 to %d", e.Attempts, most)
	}
	if e.Status != status {
		fail("%s, want %s", e.Status, status)
	}
	for _, handler := range l.kind.Handlers {
		effects := 1
		if fails && !slices.Contains(dead.Handled, handler) {
			effects = 0
		}
		if n := s.effects[handlerKey{handler, e.Key}]; n != effects {
			fail("%s wrote its effect %d times, want %d", handler, n, effects)
		}
		if n := s.handled[handlerKey{handler, e.ID}]; n != effects {
			fail("core.event_handled has %d rows of %s, want %d", n, handler, effects)
		}
	}
	return problems
}
