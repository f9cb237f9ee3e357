package integration_test

import (
	"cmp"
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgerrcode"
	"github.com/jackc/pgx/v5/pgconn"

	"spectral/internal/core/events"
	"spectral/internal/core/events/infrastructure/postgres/dispatch"
	"spectral/internal/core/events/infrastructure/postgres/pgtx"
	"spectral/tests/pgtest"
)

func (b *bundle) runs(sql string) bool {
	return one[bool](b, `select exists (select from pg_stat_activity
		where datname = current_database() and query = $1 and state = 'active')`, sql)
}

func TestDispatch(t *testing.T) {
	setup(t).cases(aLostConnectionAffectsOnlyItsOwnEvent, anOutageOfTheServerCostsNoAttempt,
		aTxIsRevokedWhenItsHandlerReturns, failuresAreClassified, workersShareOneRetrySchedule,
		rowsOfABackendThatOutlivesItsConnectionAreClaimed, aSlowRetryHoldsUpNoOther,
		aRowThatIsAlwaysLockedHoldsUpNoOther)
}

// Rows that have failed before are due together, and one of them is slow now.
func aSlowRetryHoldsUpNoOther(b *bundle) {
	slow := b.newGate()
	var calls atomic.Int32
	s := subscription(handler("platform.one", func(ctx context.Context, tx events.Tx, e events.Envelope) error {
		if calls.Add(1) == 1 {
			return slow.wait(ctx)
		}
		return writeEffect("platform.one")(ctx, tx, e)
	}))
	s.Concurrency = 2
	b.publishMany(10)
	b.exec(`update core.outbox set attempts = 1, handler_failures = '{"platform.one": {"failures": 1}}'`)
	l := b.startWorker(noPoll, s)
	l.awaitDelivered(9)
	slow.release()
	l.awaitDelivered(1)
}

// It is the first of the queue, and there is one runner.
func aRowThatIsAlwaysLockedHoldsUpNoOther(b *bundle) {
	b.ofRowLocks()
	b.exec(`create function public.lock_out() returns trigger language plpgsql
			as $$ begin raise 'too busy' using errcode = '55P03'; end $$;
		create trigger lock_out before update on core.outbox for each row when (old.payload ->> 'n' = '0')
			execute function public.lock_out()`)
	b.publishMany(10)
	l := b.startWorker(noPoll, subscription(effectHandler("platform.one")))
	for outcomes := map[dispatch.Outcome]int{}; outcomes[dispatch.Delivered] < 9 || outcomes[dispatch.Quarantined] < 1; {
		outcomes[l.nextSettlement().Outcome]++
	}
	b.exec("drop trigger lock_out on core.outbox; drop function public.lock_out")
}

// A backend may hold the rows of a batch after its connection was lost. Claims that find nothing in that time must
// not be the last ones.
func rowsOfABackendThatOutlivesItsConnectionAreClaimed(b *bundle) {
	b.sockets = &sockets{}
	var closed atomic.Bool
	s := subscription(handler("platform.one", func(ctx context.Context, tx events.Tx, e events.Envelope) error {
		if closed.Swap(true) {
			return writeEffect("platform.one")(ctx, tx, e)
		}
		ended := make(chan error, 1)
		go func() {
			_, err := tx.Exec(ctx, "select platform.linger()")
			ended <- err
		}()
		b.eventually("the handler's statement", func() bool { return b.runs("select platform.linger()") })
		b.sockets.closeAll()
		return <-ended
	}))
	b.publish(event(1), event(2), event(3))
	b.startWorker(noPoll, s).awaitDelivered(3)
	b.wantEffects(map[string]int{"platform.one": 3})
}

// Events whose handlers fail because the server has no space wait, and are delivered soon after.
func anOutageOfTheServerCostsNoAttempt(b *bundle) {
	b.outage(func(full func() error) events.Subscription {
		return subscription(handler("platform.one", func(ctx context.Context, tx events.Tx, e events.Envelope) error {
			return cmp.Or(full(), writeEffect("platform.one")(ctx, tx, e))
		}))
	})
	b.wantEffects(map[string]int{"platform.one": 5})
}

// outage delivers five events, the first tries of which fail with full. Their free failures are used up before.
func (b *bundle) outage(with func(full func() error) events.Subscription) {
	log := &logBuffer{}
	b.log = logTo(log)
	var over atomic.Bool
	failed := make(chan time.Time, 1000)
	s := with(func() error {
		if over.Load() {
			return nil
		}
		failed <- time.Now()
		return &pgconn.PgError{Severity: "ERROR", Code: pgerrcode.DiskFull, Message: "could not extend file"}
	})
	s.Concurrency = 1 // one event in a claim
	batch := b.publishMany(5)
	b.exec(`update core.outbox set handler_failures = jsonb_build_object($1::text, jsonb_build_object('failures', 0,
		'free', 20, 'class', 'DeadlockError', 'error', ''))`, s.Primary.Name)
	l := b.startWorker(noPoll, s)
	last := receive(b.T, failed)
	for range 2 {
		next := receive(b.T, failed)
		if pause := next.Sub(last); pause < pgtx.FirstBackoff/2 { // with the most jitter
			b.Errorf("the next claim began after %s", pause)
		}
		last = next
	}
	over.Store(true)
	for delivered := 0; delivered < len(batch); {
		if l.nextSettlement().Outcome == dispatch.Delivered {
			delivered++
		}
	}
	for _, e := range batch {
		b.wantRow(e.EventID, "delivered", 1)
	}
	for _, once := range []string{"Postgres has no space", "Postgres works again"} {
		if n := log.count(`"msg":"` + once); n != 1 {
			b.Errorf("%d log entries %q, want one", n, once)
		}
	}
}

// A handler that loses its connection delays no other event, and it costs no attempt.
func aLostConnectionAffectsOnlyItsOwnEvent(b *bundle) {
	batch := b.publishMany(12)
	calls := 0
	l := b.startWorker(noPoll, subscription(handler("platform.one",
		func(ctx context.Context, tx events.Tx, e events.Envelope) error {
			if e.EventID == batch[0].EventID {
				if calls++; calls <= 3 {
					_, err := tx.Exec(ctx, "select platform.die()")
					return err
				}
			}
			return writeEffect("platform.one")(ctx, tx, e)
		})))
	for delivered := 0; delivered < len(batch); {
		s := l.nextSettlement()
		if s.Outcome == dispatch.Delivered {
			delivered++
		}
		if s.Envelope.EventID == batch[0].EventID && (s.Outcome == dispatch.Delivered) != (delivered == len(batch)) {
			b.Fatalf("after %d others its event is %s: %s", delivered, s.Outcome, s.LastError)
		}
	}
	b.wantRow(batch[0].EventID, "delivered", 1)
	b.wantEffects(map[string]int{"platform.one": len(batch)})
}

// CAP#1797: three workers together try a failing event as often as one would.
func workersShareOneRetrySchedule(b *bundle) {
	var calls atomic.Int32
	s := subscription(handler("platform.one", func(context.Context, events.Tx, events.Envelope) error {
		calls.Add(1)
		return errOnPurpose
	}))
	for range 3 {
		b.startWorker(noPoll, s)
	}
	e := event(1)
	b.publish(e)
	b.eventually("the failure", func() bool { return b.row(e.EventID).Status == "failed" })
	b.wantRow(e.EventID, "failed", 1+fastRetry.MaxRetries)
	if n := int(calls.Load()); n != 1+fastRetry.MaxRetries {
		b.Errorf("its handler was called %d times", n)
	}
}

// Each kind of failure has a class and is retried or not.
func failuresAreClassified(b *bundle) {
	b.exec("insert into platform.parents values (1); insert into platform.numbers values (1)")
	stuck := b.newGate()
	run := func(sql string) func(context.Context, events.Tx, events.Envelope) error {
		return func(ctx context.Context, tx events.Tx, _ events.Envelope) error {
			_, err := tx.Exec(ctx, sql)
			return err
		}
	}
	type do = func(context.Context, events.Tx, events.Envelope) error
	cases := []struct {
		name     string
		do       do
		attempts int
		want     string // the start of last_error, without the handler's name
	}{
		{"text that cannot be stored", func(context.Context, events.Tx, events.Envelope) error {
			return errors.New("refusing \x00 \xff")
		}, 4, "HandlerError: refusing \uFFFD \uFFFD"},
		{"unique", run("insert into platform.parents values (1)"), 3, "IntegrityError: "},
		{"missing parent", run("insert into platform.children values (99)"), 3, "IntegrityError: "},
		{"deferred constraint", run("insert into platform.numbers values (1)"), 3, "IntegrityError: "},
		{"another context's table", run("insert into worlds.effects values ('x', 'x', null, 1)"), 4, "DatabaseError: "},
		{"unqualified table", run("insert into effects values ('x', 'x', null, 1)"), 4, "DatabaseError: "},
		{"statement past the timeout", run("select pg_catalog.pg_sleep(3600)"), 4, "TimeoutError: "},
		{"forgotten error", func(ctx context.Context, tx events.Tx, _ events.Envelope) error {
			_, _ = tx.Exec(ctx, "select 1/0")
			return nil
		}, 4, "AbortedTransaction: "},
		// each time the connection and the other handler's work is lost, which costs one more
		{"rows left open", func(ctx context.Context, tx events.Tx, _ events.Envelope) error {
			_, err := tx.Query(ctx, "select generate_series(1, 100000)")
			return err
		}, 5, "HandlerError: handler returned nil but left its transaction unusable"},
		{"goroutine left behind with the Tx", func(_ context.Context, tx events.Tx, _ events.Envelope) error {
			go func() { _, _ = tx.Exec(b.ctx, "select pg_catalog.pg_sleep(3601)") }()
			b.eventually("the goroutine's statement", func() bool { return b.runs("select pg_catalog.pg_sleep(3601)") })
			return nil
		}, 5, "HandlerError: returned while one of its goroutines"},
		{"a handler with savepoints", func(ctx context.Context, tx events.Tx, _ events.Envelope) error {
			for _, sql := range []string{"savepoint handler", "savepoint spectral",
				"set local role spectral_platform", "set local search_path = public"} {
				if _, err := tx.Exec(ctx, sql); err != nil {
					return err
				}
			}
			return errOnPurpose
		}, 4, "HandlerError: "},
		{"context ignored", func(context.Context, events.Tx, events.Envelope) error { <-stuck.open; return nil },
			5, "TimeoutError: "},
		{"refused event", func(ctx context.Context, tx events.Tx, _ events.Envelope) error {
			return b.publishing.Publisher(tx).Publish(ctx, ofType("Nonsense", event(1)))
		}, 1, "RefusedEvent: "},
	}
	h := handler("platform.case", func(ctx context.Context, tx events.Tx, e events.Envelope) error {
		return cases[payloadN(e)].do(ctx, tx, e)
	})
	h.Timeout = 200 * time.Millisecond
	h.Retry = &events.RetryPolicy{MaxRetries: 3, Base: time.Millisecond, Multiplier: 1, Cap: time.Millisecond}
	l := b.startWorker(noPoll, subscription(h, effectHandler("platform.neighbour")))
	for i, c := range cases {
		e := event(i)
		b.publish(e)
		l.awaitOutcome(dispatch.Failed)
		b.awaitRelayed(e.EventID)
		r := b.row(e.EventID)
		if pgtest.Relayed() { // a second dispatch may find what became of the other handler
			r.Attempts = min(r.Attempts, c.attempts)
		}
		if got := strings.Replace(r.LastError, "platform.case: ", "", 1); r.Attempts != c.attempts ||
			!strings.HasPrefix(got, c.want) {
			b.Errorf("%s: %d attempts, %q; want %d, %q", c.name, r.Attempts, r.LastError, c.attempts, c.want)
		}
	}
	b.wantEffects(map[string]int{"platform.neighbour": len(cases)})
}

func aTxIsRevokedWhenItsHandlerReturns(b *bundle) {
	revoked := make(chan events.Tx, 1)
	l := b.startWorker(noPoll, subscription(handler("platform.one",
		func(_ context.Context, tx events.Tx, _ events.Envelope) error {
			if _, ok := tx.(interface{ Commit(context.Context) error }); ok {
				return events.Terminal(errors.New("the Tx can be committed"))
			}
			revoked <- tx
			return nil
		})))
	b.publish(event(1))
	l.awaitDelivered(1)
	if _, err := (<-revoked).Exec(b.ctx, "select 1"); !errors.Is(err, pgtx.ErrTxOver) {
		b.Fatalf("the Tx still works: %v", err)
	}
}

// Rows that cannot be read or written, whatever the reason, keep no other row of their type waiting. They end as
// failed, or, where a trigger lets nothing write them, in quarantine, until an operator takes them out.
func TestUnusableRows(t *testing.T) {
	t.Run("row-locked", func(t *testing.T) {
		unusableRows(setup(t), subscription(handler("platform.one", func(ctx context.Context, tx events.Tx,
			e events.Envelope) error {
			if err := asMarked(e); err != nil {
				return err
			}
			return writeEffect("platform.one")(ctx, tx, e)
		})))
	})
	t.Run("leased", func(t *testing.T) {
		unusableRows(setup(t), leasedSubscription(time.Hour, executor(executor1, func(_ context.Context,
			e events.Envelope) (events.Completion, error) {
			return effectCompletion(executor1, e), asMarked(e)
		})))
	})
}

// asMarked is the error of a handler of an event whose mark names the status that it then gets.
func asMarked(e events.Envelope) error {
	switch _, status, _ := strings.Cut(e.TraceContext, ": "); status {
	case "pending":
		return errOnPurpose
	case "failed":
		return events.Terminal(errOnPurpose)
	default:
		return nil
	}
}

func unusableRows(b *bundle, s events.Subscription) {
	leased := s.Mode == events.Leased
	delivered := map[bool]string{false: "failed", true: "delivered"}[leased] // a lease does not count beyond the limit
	cases := []struct{ forge, mark, status, reason string }{
		{`payload = ('{"n": [' || repeat('1e131071,', 8999) || '0]}')::jsonb`,
			"", "failed", "more than 16777216 bytes"},
		{`handler_failures = ('{"a": [' || repeat('-1e131071,', 8999) || '0]}')::jsonb`,
			"", "failed", "more than 16777216 bytes"},
		{`crashes = 1, payload = ('{"n": [' || repeat('1e131071,', 8999) || '0]}')::jsonb`,
			"", "failed", "more than 16777216 bytes"},
		{"attempts = 2147483647", "", delivered, "integer out of range"},
		{"", "rejected", "quarantined", "may not"},
		{"", "rejected: delivered", "failed", "may not"},
		{"", "suppressed", "quarantined", "keeps the row"},
		{"", "suppressed: delivered", "failed", "keeps the row"},
		{"", "kept", "quarantined", "keeps the row"},
		{"", "kept: delivered", "failed", "keeps the row"},
		{"", "suppressed: pending", "failed", "keeps the row"},
		{"", "kept: pending", "failed", "keeps the row"},
		{"", "suppressed: failed", "quarantined", "keeps the row"},
		{"", "kept: failed", "quarantined", "keeps the row"},
		{"", "conflicting", "quarantined", "too busy"},
		{"", "locked", "quarantined", "too busy"},
		{"", "rejected at commit", "quarantined", "not now"},
		{"", "rejected at commit: delivered", "failed", "not now"},
	}
	b.exec("alter table core.outbox disable trigger outbox_notify") // no event is claimed before the updates
	all := b.publishMany(2 * len(cases))
	for i, c := range cases {
		// they come first: a row with a lock's error is given up once others have been settled in spite of it
		b.exec("update core.outbox set available_at = available_at - interval '1 second', "+
			cmp.Or(c.forge, "trace_context = '"+c.mark+"'")+" where id = $1", all[i].EventID)
	}
	b.exec(`create function public.meddle() returns trigger language plpgsql as $$
	begin
		if split_part(old.trace_context, ': ', 2) in ('', new.status) then
			case split_part(old.trace_context, ':', 1)
				when 'rejected' then raise 'it may not be';
				when 'suppressed' then return null;
				when 'kept' then return old;
				when 'conflicting' then raise 'too busy' using errcode = '40001';
				when 'locked' then raise 'too busy' using errcode = '55P03';
				when 'rejected at commit' then
					if tg_when = 'AFTER' then raise 'not now'; end if;
				else
			end case;
		end if;
		return new;
	end $$;
	create trigger meddle before update on core.outbox for each row when (old.trace_context <> '')
		execute function public.meddle();
	create constraint trigger meddle_late after update on core.outbox deferrable initially deferred for each row
		when (old.trace_context <> '') execute function public.meddle()`)
	l := b.startWorker(noPoll, s)
	b.exec("alter table core.outbox enable trigger outbox_notify")
	outcome := func(id uuid.UUID) (status, reason string) {
		must(b.T, b.pool.QueryRow(b.ctx, `select case when q.id is null then o.status else 'quarantined' end,
			coalesce(q.reason, o.last_error, '') from core.outbox o left join core.quarantined_events q using (id)
			where o.id = $1`, id).Scan(&status, &reason))
		return status, reason
	}
	final := make(map[uuid.UUID]bool)
	for len(final) < len(all) {
		if s := l.nextSettlement(); s.Outcome != dispatch.Retried {
			final[s.Envelope.EventID] = true
		}
	}
	for i, c := range cases {
		status, reason := outcome(all[i].EventID)
		if status != c.status || status != "delivered" && !strings.Contains(reason, c.reason) {
			b.Errorf("%s%s: %s, want %s: %s", c.forge, c.mark, status, c.status, reason)
		}
		if status, reason := outcome(all[len(cases)+i].EventID); status != "delivered" {
			b.Errorf("event %d beside them: %s: %s", i, status, reason)
		}
	}
	b.exec("drop trigger meddle on core.outbox; drop trigger meddle_late on core.outbox; " +
		"update core.outbox set trace_context = null")
	freed := 0
	for i, c := range cases {
		if c.status == "quarantined" {
			b.exec("select core.outbox_retry_now($1)", all[i].EventID)
			freed++
		}
	}
	b.exec("update core.outbox set claimed_at = '2020-01-01' where status = 'in_flight'") // the leases run out
	for freed > 0 {
		switch s := l.nextSettlement(); s.Outcome {
		case dispatch.Delivered:
			freed--
		case dispatch.Retried: // reported late: by another goroutine than the one that then failed the event
		default:
			b.Fatalf("event %s is %s: %s", s.Envelope.EventID, s.Outcome, s.LastError)
		}
	}
}

// Rows that can never be settled are given up together, although each of them could be claimed.
func TestManyUnusableRowsAreGivenUpTogether(t *testing.T) {
	b := setup(t)
	const n = 300
	b.exec("alter table core.outbox disable trigger outbox_notify") // no event is claimed before the trigger is there
	b.publishMany(n)
	b.exec("update core.outbox set trace_context = 'rejected'")
	b.publishMany(1)
	b.exec(`create function public.reject() returns trigger language plpgsql as $$ begin raise 'it may not be'; end $$;
		create trigger reject before update on core.outbox for each row when (old.trace_context = 'rejected')
			execute function public.reject()`)
	l := b.startWorker(noPoll, subscription(effectHandler("platform.one")))
	b.exec("alter table core.outbox enable trigger outbox_notify")
	for l.nextSettlement().Outcome != dispatch.Delivered {
	}
	const quarantined = "select count(*) from core.quarantined_events"
	if all, singly := one[int](b, quarantined), one[int](b, quarantined+" where reason like 'settle%'"); all != n ||
		singly > n/2 {
		t.Errorf("%d of %d rows are quarantined before the good one is delivered, %d of them singly", all, n, singly)
	}
}

// Go and SQL agree on which errors may be those of a row.
func TestRowFaults(t *testing.T) {
	b := setup(t)
	for _, code := range []string{
		pgerrcode.CheckViolation, pgerrcode.RaiseException, pgerrcode.DataCorrupted, pgerrcode.InternalError,
		pgerrcode.ProgramLimitExceeded, pgerrcode.TriggeredActionException, pgerrcode.ReadOnlySQLTransaction,
		pgerrcode.IdleInTransactionSessionTimeout, pgerrcode.DeadlockDetected, pgerrcode.LockNotAvailable,
		pgerrcode.ConfigurationLimitExceeded, pgerrcode.QueryCanceled, pgerrcode.IOError, pgerrcode.ConnectionFailure,
		pgerrcode.ObjectNotInPrerequisiteState, pgerrcode.SnapshotTooOld, pgerrcode.InvalidSQLStatementName,
	} {
		have := pgtx.RowFault(&pgconn.PgError{Code: code, Where: "a trigger"})
		if want := one[bool](b, "select core.row_fault($1)", code); have != want {
			t.Errorf("%s: %t in Go, %t in SQL", code, have, want)
		}
	}
	if pgtx.RowFault(&pgconn.PgError{Code: pgerrcode.InsufficientPrivilege}) {
		t.Error("a function that may not be called is a row's fault")
	}
}
