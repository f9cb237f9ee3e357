package ledger

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// WatchLeases lets the database at url keep a record of its own, in faults.leases, of every lease that was
// committed and of how it ended. As its superuser, after Prepare.
func WatchLeases(t testing.TB, url string) {
	t.Helper()
	install(t, url, `
create table faults.leases (
  token uuid primary key, event_id uuid not null, worker uuid not null, leased_at timestamptz not null default clock_timestamp(),
  ends integer not null default 0, ended text not null default '', over_by double precision not null default 0,
  refunded boolean not null default false);
create function faults.watch_leases() returns trigger
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
begin
  if old.status = 'in_flight' then
    update faults.leases
    set ends = ends + 1,
        ended = case when new.status = 'delivered' or new.status = 'failed' and new.last_error not like 'LeaseExpired: %' then new.status
                     when new.status = 'in_flight' then 'stolen'
                     when new.failure_history <> old.failure_history then 'reaped'
                     when new.handler_failures <> old.handler_failures then 'retried'
                     else 'released' end,
        over_by = extract(epoch from clock_timestamp() - old.claimed_at) - old.lease_seconds,
        refunded = new.attempts < old.attempts
    where token = old.claim_token;
  end if;
  if new.status = 'in_flight' then
    insert into faults.leases (token, event_id, worker) values (new.claim_token, new.id, split_part(new.claimed_by, ' ', 1)::uuid);
  end if;
  return null;
end
$$;
create trigger watch_leases after update on core.outbox for each row
  when (old.status <> new.status or old.claim_token is distinct from new.claim_token)
  execute function faults.watch_leases()`)
}

// The ways in which a lease ends. All but the first two, with which the row ends, explain that its event is
// executed once more.
const (
	delivered = "delivered"
	failed    = "failed"
	reaped    = "reaped"
	retried   = "retried"
	released  = "released"
)

// boundary is how far past its end a lease may be when the record of its settlement is written: it was looked
// at a moment before.
const boundary = 250 * time.Millisecond

// lease is a committed lease.
type lease struct {
	EventID  string
	Worker   string
	LeasedAt time.Time
	Ends     int
	Ended    string
	OverBy   float64 // seconds past its end when it was ended; negative: before
	Refunded bool    // the attempt was taken back
}

// leasedRow is what the product itself has written down of an event.
type leasedRow struct {
	ID       string
	Key      string
	Status   string
	Attempts int
	Crashes  int
	ReapedOf []string // the workers that its failure_history says it was reaped of
}

// Totals are what leased work came to.
type Totals struct {
	Events     int
	Leases     map[string]int // by how they ended
	Executions int
	// Repeats are executions of an event by a handler beyond the first, Because the ends of the leases for
	// which they were needed.
	Repeats int
	Because map[string]int
}

func (t Totals) String() string {
	return fmt.Sprintf("%d events, leases %v, %d executions, %d of them repeats, after leases that were %v",
		t.Events, t.Leases, t.Executions, t.Repeats, t.Because)
}

// VerifyLeases compares, after Verify, what the executors wrote into the diary with the leases that were
// committed, and those with what the rows tell of themselves. Every repeat of an effect outside the
// database must be explained:
//
//   - each execution has a lease of its own, of its worker, committed before it began: so it repeats
//     another only where a lease was reaped, retried or released;
//   - no execution runs under a lease that was given when its handler had handled the event;
//   - a row is leased by one at a time; each lease ends once; none is reaped before it has run
//     out, or settled after;
//   - an event has one lease that ended with its settlement, as many attempts as leases that were not
//     refunded, and for each that was reaped an entry in failure_history and one of its crashes, unless the server was started
//     since.
func (l *Ledger) VerifyLeases(t testing.TB, url string, diary Diary) Totals {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(ctx) }()
	var found leasedState
	if found.executions, err = diary.Read(); err != nil {
		t.Fatal(err)
	}
	found.leases = collect[lease](ctx, t, conn, `select event_id::text, worker::text, leased_at, ends, ended, over_by, refunded
		from faults.leases order by leased_at`)
	found.rows = collect[leasedRow](ctx, t, conn, `select id::text, payload ->> $2, status, attempts,
		-- not every lease that ran out counts as a crash
		crashes + (select count(*)::int from jsonb_array_elements(failure_history) e where e ->> 'reason' like '%; not counted: %'),
		array(select split_part(e ->> 'claimed_by', ' ', 1) from jsonb_array_elements(failure_history) e where e ? 'reaped_at') from core.outbox where event_type = $1`,
		l.kind.EventType, l.kind.KeyField)
	found.handled = make(map[handlerKey]time.Time)
	type handled struct {
		Handler, EventID string
		At               time.Time
	}
	for _, h := range collect[handled](ctx, t, conn, "select handler_name, event_id::text, handled_at from core.event_handled") {
		found.handled[handlerKey{h.Handler, h.EventID}] = h.At
	}
	totals, problems := found.explain()
	if len(problems) > 0 {
		t.Errorf("not explained (%v):\n%s", totals, listed(problems))
	}
	return totals
}

func collect[T any](ctx context.Context, t testing.TB, conn *pgx.Conn, sql string, args ...any) []T {
	t.Helper()
	rows, err := conn.Query(ctx, sql, args...)
	if err != nil {
		t.Fatal(err)
	}
	all, err := pgx.CollectRows(rows, pgx.RowToStructByPos[T])
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// leasedState is what was found of leased work, at quiet.
type leasedState struct {
	leases     []lease // in the order they were given
	rows       []leasedRow
	executions []Execution              // in the order they began
	handled    map[handlerKey]time.Time // by the event's id
}

func (s leasedState) explain() (Totals, []string) {
	totals := Totals{Leases: make(map[string]int), Because: make(map[string]int), Events: len(s.rows), Executions: len(s.executions)}
	var problems []string
	fail := func(format string, args ...any) { problems = append(problems, fmt.Sprintf(format, args...)) }
	byEvent := make(map[string][]lease)
	for _, l := range s.leases {
		totals.Leases[l.Ended]++
		byEvent[l.EventID] = append(byEvent[l.EventID], l)
		over := time.Duration(l.OverBy * float64(time.Second))
		switch {
		case l.Ends != 1:
			fail("event %s: a lease of worker %s ended %d times", l.EventID, l.Worker, l.Ends)
		case l.Ended == reaped && over < 0:
			fail("event %s: a lease of worker %s was reaped %s before it ran out", l.EventID, l.Worker, -over)
		case l.Ended != reaped && over > boundary:
			fail("event %s: a lease of worker %s was %s %s after it ran out", l.EventID, l.Worker, l.Ended, over)
		case !slices.Contains([]string{delivered, failed, reaped, retried, released}, l.Ended):
			fail("event %s: a lease of worker %s was %s", l.EventID, l.Worker, l.Ended)
		}
	}
	for _, r := range s.rows {
		for _, problem := range r.compare(byEvent[r.ID]) {
			fail("key %s, event %s: %s", r.Key, r.ID, problem)
		}
	}
	used := make(map[handlerKey][]int) // by the event's id, the leases under which it was executed
	for _, e := range s.executions {
		k, leases := handlerKey{e.Handler, e.EventID}, byEvent[e.EventID]
		under := len(leases) - 1
		for under >= 0 && (leases[under].Worker != e.Worker || leases[under].LeasedAt.After(e.Begun) || slices.Contains(used[k], under)) {
			under--
		}
		if under < 0 {
			fail("key %s: %s was executed by worker %s (%d) without a lease of its own", e.Key, e.Handler, e.Worker, e.PID)
			continue
		}
		used[k] = append(used[k], under)
		if at, ok := s.handled[k]; ok && leases[under].LeasedAt.After(at) {
			fail("key %s: %s was executed under a lease given after it had handled the event", e.Key, e.Handler)
		}
	}
	for k, all := range used {
		slices.Sort(all)
		for _, under := range all[:len(all)-1] {
			totals.Repeats++
			end := byEvent[k.Key][under].Ended
			totals.Because[end]++
			if end == delivered || end == failed {
				fail("event %s: %s was executed again after a lease that was %s", k.Key, k.Handler, end)
			}
		}
	}
	return totals, problems
}

// compare says where what a row tells of itself differs from its leases.
func (r leasedRow) compare(leases []lease) []string {
	var problems []string
	fail := func(format string, args ...any) { problems = append(problems, fmt.Sprintf(format, args...)) }
	ends := make(map[string]int)
	attempts := 0
	var reapedOf []string
	for i, l := range leases {
		ends[l.Ended]++
		if !l.Refunded {
			attempts++
		}
		if l.Ended == reaped {
			reapedOf = append(reapedOf, l.Worker)
		}
		settled := l.Ended == delivered || l.Ended == failed
		if last := i == len(leases)-1; settled != last && (!last || l.Ended != reaped || r.Status != failed) { // the reaper fails it
			fail("lease %d of %d was %s", i+1, len(leases), l.Ended)
		}
	}
	if ends[r.Status] != 1 && r.Status != failed {
		fail("it is %s, of its leases %d were", r.Status, ends[r.Status])
	}
	if r.Attempts != attempts {
		fail("it has %d attempts, and %d leases that were not refunded", r.Attempts, attempts)
	}
	if r.Crashes != len(reapedOf) || !slices.Equal(r.ReapedOf, reapedOf) {
		fail("it was reaped of %v, its failure_history says of %v, and its crashes %d", reapedOf, r.ReapedOf, r.Crashes)
	}
	return problems
}

// listed is problems as text, not too many.
func listed(problems []string) string {
	if n := len(problems); n > mostProblems {
		problems = append(slices.Clone(problems[:mostProblems]), fmt.Sprintf("... and %d more", n-mostProblems))
	}
	return strings.Join(problems, "\n")
}
