package integration_test

import (
	"context"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"spectral/internal/core/events"
	"spectral/internal/core/events/infrastructure/postgres/dispatch"
)

// deadWorker inserts the rows of a worker that was killed while it held events.
func (b *bundle) deadWorker(ids ...uuid.UUID) (worker uuid.UUID) {
	b.Helper()
	worker = uuid.New()
	b.exec(`insert into core.workers (worker_id, session_id, generation, name, handlers)
		values ($1, $1, 1, 'killed', '{}')`, worker)
	b.exec(`insert into core.claim_journal (worker_id, event_type, runner, ids)
		values ($1, $2, 1, $3)`, worker, happenedType, ids)
	return worker
}

func (b *bundle) wantNothingHeld() {
	b.Helper()
	b.eventually("an empty claim journal", func() bool {
		return one[bool](b, `select not exists (select from core.claim_journal j, unnest(j.ids) as i(id) join core.outbox o
			on o.id = i.id
			where o.status = 'pending' and o.available_at <= j.claimed_at)`)
	})
}

func TestDeadWorkers(t *testing.T) {
	setup(t).cases(map[string]func(*bundle){
		"another set of handlers is refused": anotherSetOfHandlersIsRefused,
		"another set of handlers is refused without a listen " +
			"connection": anotherSetOfHandlersIsRefusedWithoutAListenConnection,
		"crashed rows run one at a time":                            crashedRowsRunOneAtATime,
		"a crash is charged to the row that ran":                    aCrashIsChargedToTheRowThatRan,
		"a stop notifies about released rows":                       aStopNotifiesAboutReleasedRows,
		"rows of dead workers are released beside an open producer": rowsOfDeadWorkersAreReleasedBesideAnOpenProducer,
		"the journal follows a live worker":                         theJournalFollowsALiveWorker,
		"an interrupted dispatch holds nothing":                     anInterruptedDispatchHoldsNothing,
	})
}

// One crash costs an attempt, the fifth fails the event. A worker that holds its session lock is alive.
func aCrashIsChargedToTheRowThatRan(b *bundle) {
	log := &logBuffer{}
	b.log = logTo(log)
	cases := []struct {
		name            string
		crashes         int
		alive           bool
		status          string
		attempts, after int
	}{
		{"first crash", 0, false, "delivered", 2, 1},
		{"fifth crash", 4, false, "failed", 1, 5},
		{"live worker", 0, true, "delivered", 1, 0},
	}
	all := b.publishMany(len(cases))
	for i, c := range cases {
		b.exec("update core.outbox set crashes = $2 where id = $1", all[i].EventID, c.crashes)
		worker := b.deadWorker(all[i].EventID)
		if c.alive {
			_, err := b.conn().Exec(b.ctx, "select pg_advisory_lock(core.worker_lock($1))", worker)
			must(b.T, err)
		}
	}
	b.startWorker(noPoll, subscription(effectHandler("platform.one"), effectHandler("worlds.two")))
	for i, c := range cases {
		id := all[i].EventID
		b.eventually(c.name+": status "+c.status, func() bool { return b.row(id).Status == c.status })
		r := b.wantRow(id, c.status, c.attempts)
		if charged := strings.HasPrefix(r.LastError, "WorkerDied: outbox: worker killed "); charged == c.alive {
			b.Errorf("%s: last_error %q", c.name, r.LastError)
		}
		if n := one[int](b, "select crashes from core.outbox where id = $1", id); n != c.after {
			b.Errorf("%s: %d crashes, want %d", c.name, n, c.after)
		}
	}
	b.eventually("the log entry", func() bool { return log.count("event failed: its workers crashed") == 1 })
}

// If the process crashes again, only the row that ran is charged.
func crashedRowsRunOneAtATime(b *bundle) {
	b.publish(event(1), event(2))
	b.exec("update core.outbox set crashes = 1")
	g := newGate()
	slow := subscription(handler("platform.one", func(ctx context.Context, _ events.Tx, _ events.Envelope) error {
		return g.wait(ctx)
	}))
	slow.Concurrency = 2
	l := b.newWorker(noPoll, slow)
	s := subscription(effectHandler("platform.other"))
	s.EventType = otherType
	must(b.T, l.Listen(b.ctx, s))
	l.start()
	g.awaitEntered(b.T)
	for n := range 20 { // events of another type run in that time
		b.publish(ofType(otherType, event(n)))
		if s := l.nextSettlement(); s.Envelope.EventType != otherType {
			b.Fatalf("settled first: %+v", s)
		}
	}
	held := one[int](b, "select count(*)::int from core.claim_journal where event_type = $1 and cardinality(ids) > 0",
		happenedType)
	if len(g.entered) > 0 || held != 1 {
		b.Fatal("two crashed rows are held at the same time")
	}
	g.release()
	l.awaitDelivered(2)
}

// Other workers do not have to poll for what a stopping worker releases.
func aStopNotifiesAboutReleasedRows(b *bundle) {
	g := newGate()
	s := subscription(handler("platform.one", func(ctx context.Context, _ events.Tx, _ events.Envelope) error {
		return g.wait(ctx)
	}))
	s.Concurrency = 1
	first := b.startWorker(noPoll, s)
	b.publish(event(1))
	g.awaitEntered(b.T)
	second := b.startWorker(noPoll, subscription(effectHandler("platform.one")))
	b.publish(event(2))
	second.awaitDelivered(1)
	b.awaitNotifierIdle()
	ctx, cancel := context.WithCancel(b.ctx)
	cancel() // no grace at all
	if err := first.Stop(ctx); err == nil {
		b.Fatal("Stop did not say that a handler was cancelled")
	}
	second.awaitDelivered(1)
}

// An open transaction of a producer keeps the notifier from its barrier, but not from releasing rows.
func rowsOfDeadWorkersAreReleasedBesideAnOpenProducer(b *bundle) {
	e := event(1)
	b.publish(e)
	b.producerOf(happenedType)
	b.deadWorker(e.EventID)
	b.startWorker(noPoll, subscription(effectHandler("platform.one"))).awaitOutcome(dispatch.Delivered)
	b.wantRow(e.EventID, "delivered", 2)
}

// The journal names an event before its handler starts, and does not name it after the worker released it.
func theJournalFollowsALiveWorker(b *bundle) {
	b.sockets = &sockets{}
	calls := 0
	s := subscription(handler("platform.one", func(ctx context.Context, tx events.Tx, e events.Envelope) error {
		if n := one[int](b, "select count(*)::int from core.claim_journal where $1 = any (ids)", e.EventID); n != 1 {
			b.Errorf("the journal names it %d times when the handler starts", n)
		}
		calls++
		switch calls {
		case 1:
			return errOnPurpose // rolls the batch back
		case 2:
			b.sockets.closeAll()
		case 3:
			panic("no")
		}
		return writeEffect("platform.one")(ctx, tx, e)
	}))
	s.Concurrency = 1
	b.publish(event(1), event(2), event(3))
	l := b.startWorker(noPoll, s)
	l.awaitSettled(3, 0)
	b.wantNothingHeld()
	l.stop()
	const left = "select (select count(*) from core.workers)::int + (select count(*) from core.claim_journal)::int"
	if n := one[int](b, left); n != 0 {
		b.Fatalf("the stopped worker left %d rows", n)
	}
}

// A worker that releases a row without settling it updates the journal before it pauses. A crash in that pause must
// not be charged to the row.
func anInterruptedDispatchHoldsNothing(b *bundle) {
	log := &logBuffer{}
	b.log = logTo(log)
	b.exec("revoke execute on function core.outbox_deliver(uuid[], timestamptz[]) from spectral_worker")
	b.publish(event(1))
	l := b.startWorker(noPoll, subscription(effectHandler("platform.one")))
	b.eventually("an interrupted dispatch", func() bool { return log.count("interrupted, no attempt counted") > 0 })
	b.wantNothingHeld()
	b.exec("grant execute on function core.outbox_deliver(uuid[], timestamptz[]) to spectral_worker")
	l.awaitDelivered(1)
}

// wantRefused starts a worker beside a live one and waits until it ends with an error that contains the given parts.
func (b *bundle) wantRefused(l *testWorker, parts ...string) {
	b.Helper()
	must(b.T, l.Start(b.ctx))
	b.Cleanup(l.stop)
	select {
	case <-l.Done():
	case <-time.After(testTimeout):
		state, reason := l.Health().Now()
		b.Fatalf("the worker was not refused: %s %s", state, reason)
	}
	err := l.Err()
	if err == nil {
		b.Fatal("the worker ended without an error")
	}
	for _, part := range parts {
		if !strings.Contains(err.Error(), part) {
			b.Errorf("the error does not contain %q: %v", part, err)
		}
	}
}

// Workers with different handlers for an event type would starve each other.
func anotherSetOfHandlersIsRefused(b *bundle) {
	first := b.startWorker(noPoll, subscription(effectHandler("platform.one"), effectHandler("worlds.two")))
	b.wantRefused(b.newWorker(noPoll, subscription(effectHandler("platform.one"))),
		b.Name(), happenedType, `["platform.one", "worlds.two"]`, `not by ["platform.one"]`, "new generation")
	b.publish(event(1))
	first.awaitDelivered(1)
	b.wantEffects(map[string]int{"platform.one": 1, "worlds.two": 1})

	// The same set in another order is a replica.
	b.startWorker(noPoll, subscription(effectHandler("worlds.two"), effectHandler("platform.one")))
}

func anotherSetOfHandlersIsRefusedWithoutAListenConnection(b *bundle) {
	first := b.startWorker(noPoll, subscription(effectHandler("platform.one"), effectHandler("worlds.two")))
	b.exec("alter table core.outbox disable trigger outbox_notify")
	b.publish(event(1))
	b.wantRefused(b.newWorker(50*time.Millisecond, subscription(effectHandler("platform.one")), func(c *pgx.ConnConfig) {
		c.DialFunc = func(context.Context, string, string) (net.Conn, error) { return nil, errOnPurpose }
	}), "worlds.two")
	b.exec("select pg_notify('outbox_gen_1', '')")
	first.awaitDelivered(1)
	b.wantEffects(map[string]int{"platform.one": 1, "worlds.two": 1})
}
