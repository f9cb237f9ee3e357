package ledger

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"spectral/tests/pgtest"
)

// RecordLeases makes the database at url, a superuser's, record in faults.leases every committed lease and how it
// ended. Call it after Prepare.
func RecordLeases(t testing.TB, url string) {
	t.Helper()
	install(t, url, `
create table faults.leases (
  token uuid primary key, event_id uuid not null, worker uuid not null,
  leased_at timestamptz not null default clock_timestamp(), ends integer not null default 0, ended text not null
  	default '', over_by double precision not null default 0,
  refunded boolean not null default false);
create function faults.record_lease() returns trigger
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
begin
  if old.status = 'in_flight' then
    update faults.leases
    set ends = ends + 1,
        ended = case when new.status = 'delivered' then new.status
                     when new.status = 'failed' and new.last_error not like 'LeaseExpired: %' then new.status
                     when new.status = 'in_flight' then 'stolen'
                     when new.failure_history <> old.failure_history then 'reaped'
                     when new.handler_failures <> old.handler_failures then 'retried'
                     else 'released' end,
        over_by = extract(epoch from clock_timestamp() - old.claimed_at) - old.lease_seconds,
        refunded = new.attempts < old.attempts
    where token = old.claim_token;
  end if;
  if new.status = 'in_flight' then
    insert into faults.leases (token, event_id, worker)
    values (new.claim_token, new.id, split_part(new.claimed_by, ' ', 1)::uuid);
  end if;
  return null;
end
$$;
create trigger record_lease after update on core.outbox for each row
  when (old.status <> new.status or old.claim_token is distinct from new.claim_token)
  execute function faults.record_lease()`)
}

// The ways in which a lease ends. After the last three its event may be executed again.
const (
	delivered = "delivered"
	failed    = "failed"
	reaped    = "reaped"
	retried   = "retried"
	released  = "released"
)

// recordingDelay is how far past its end a lease may be when its settlement is recorded: the claim was checked
// earlier in the same transaction.
const recordingDelay = 250 * time.Millisecond

type lease struct {
	EventID  string
	Worker   string
	LeasedAt time.Time
	Ends     int
	Ended    string
	OverBy   float64 // seconds between its end and the time it was ended; negative if before
	Refunded bool    // its attempt does not count
}

type leasedRow struct {
	ID       string
	Key      string
	Status   string
	Attempts int
	Crashes  int
	ReapedOf []string // workers, from failure_history
}

// Totals are the counts of VerifyLeases.
type Totals struct {
	Events     int
	Leases     map[string]int // by how they ended
	Executions int
	// Repeats counts the executions of an event by a handler beyond the first, RepeatsAfter by how the lease before
	// ended.
	Repeats      int
	RepeatsAfter map[string]int
}

func (t Totals) String() string {
	return fmt.Sprintf("%d events, leases %v, %d executions, %d of them repeats, after leases that were %v",
		t.Events, t.Leases, t.Executions, t.Repeats, t.RepeatsAfter)
}

// VerifyLeases compares the execution log with the committed leases, and the leases with the rows. Call it after
// Verify, with the same url. It fails the test unless:
//
//   - each execution has its own lease, held by its worker and committed before it started, so that it repeats another
//     only after a lease that was reaped, retried or released;
//   - no execution runs under a lease that was given after its handler had handled the event;
//   - at most one worker holds a row; each lease ends once; none is reaped before it expired, or settled afterwards;
//   - the row's attempts are its leases that were not refunded, and each reaped lease is an entry of failure_history
//     and one of the row's crashes, unless the server was restarted in that time.
func (l *Ledger) VerifyLeases(t testing.TB, url string, executionLog ExecutionLog) Totals {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	conn := pgtest.Conn(t, url)
	executions, err := executionLog.Read()
	must(t, err)
	found := leasedState{executions: executions, handled: make(map[handlerKey]time.Time)}
	found.leases = collect[lease](ctx, t, conn, `select event_id::text, worker::text, leased_at, ends, ended,
		over_by, refunded from faults.leases order by leased_at`)
	found.rows = collect[leasedRow](ctx, t, conn, `select id::text, payload ->> $2, status, attempts,
		-- not every expired lease counts as a crash
		crashes + (select count(*)::int from jsonb_array_elements(failure_history) e
			where e ->> 'reason' like '%; not counted%'),
		array(select split_part(e ->> 'claimed_by', ' ', 1) from jsonb_array_elements(failure_history) e
			where e ? 'reaped_at') from core.outbox where event_type = $1`,
		l.kind.EventType, l.kind.KeyField)
	type handled struct {
		Handler, EventID string
		At               time.Time
	}
	for _, h := range collect[handled](ctx, t, conn,
		"select handler_name, event_id::text, handled_at from core.event_handled") {
		found.handled[handlerKey{h.Handler, h.EventID}] = h.At
	}
	totals, problems := found.check()
	if len(problems) > 0 {
		t.Errorf("leases and executions do not match (%v):\n%s", totals, joined(problems))
	}
	return totals
}

func collect[T any](ctx context.Context, t testing.TB, conn *pgx.Conn, sql string, args ...any) []T {
	t.Helper()
	rows, err := conn.Query(ctx, sql, args...)
	must(t, err)
	all, err := pgx.CollectRows(rows, pgx.RowToStructByPos[T])
	must(t, err)
	return all
}

// leasedState is what the log and the database hold once every event is settled.
type leasedState struct {
	leases     []lease // in the order they were given
	rows       []leasedRow
	executions []Execution              // in the order they began
	handled    map[handlerKey]time.Time // Key is the event's id
}

func (s leasedState) check() (Totals, []string) {
	totals := Totals{
		Events: len(s.rows), Executions: len(s.executions), Leases: make(map[string]int), RepeatsAfter: make(map[string]int),
	}
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
			fail("event %s: a lease of worker %s was reaped %s before it expired", l.EventID, l.Worker, -over)
		case l.Ended != reaped && over > recordingDelay:
			fail("event %s: a lease of worker %s was %s %s after it expired", l.EventID, l.Worker, l.Ended, over)
		case !slices.Contains([]string{delivered, failed, reaped, retried, released}, l.Ended):
			fail("event %s: a lease of worker %s was %s", l.EventID, l.Worker, l.Ended)
		}
	}
	for _, r := range s.rows {
		for _, problem := range r.compare(byEvent[r.ID]) {
			fail("key %s, event %s: %s", r.Key, r.ID, problem)
		}
	}
	used := make(map[handlerKey][]int) // Key is the event's id; the indexes of the leases used
	for _, e := range s.executions {
		k, leases := handlerKey{e.Handler, e.EventID}, byEvent[e.EventID]
		under := len(leases) - 1
		usable := func(i int) bool {
			return leases[i].Worker == e.Worker && !leases[i].LeasedAt.After(e.Started) && !slices.Contains(used[k], i)
		}
		for under >= 0 && !usable(under) {
			under--
		}
		if under < 0 {
			fail("key %s: %s was executed by worker %s (%d) without its own lease", e.Key, e.Handler, e.Worker, e.PID)
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
			totals.RepeatsAfter[end]++
			if end == delivered || end == failed {
				fail("event %s: %s was executed again after a lease that was %s", k.Key, k.Handler, end)
			}
		}
	}
	return totals, problems
}

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
		failedByReaper := l.Ended == reaped && r.Status == failed
		if last := i == len(leases)-1; settled != last && (!last || !failedByReaper) {
			fail("lease %d of %d was %s", i+1, len(leases), l.Ended)
		}
	}
	if ends[r.Status] != 1 && r.Status != failed {
		fail("it is %s, and so are %d of its leases", r.Status, ends[r.Status])
	}
	if r.Attempts != attempts {
		fail("it has %d attempts, and %d leases that were not refunded", r.Attempts, attempts)
	}
	if r.Crashes != len(reapedOf) || !slices.Equal(r.ReapedOf, reapedOf) {
		fail("it was reaped from %v, its failure_history says from %v, and it has %d crashes", reapedOf, r.ReapedOf,
			r.Crashes)
	}
	return problems
}

func joined(problems []string) string {
	if n := len(problems); n > mostProblems {
		problems = append(slices.Clone(problems[:mostProblems]), fmt.Sprintf("... and %d more", n-mostProblems))
	}
	return strings.Join(problems, "\n")
}
