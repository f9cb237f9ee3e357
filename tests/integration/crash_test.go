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
	"spectral/internal/core/telemetry"
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
	setup(t).cases(aRefusedStatementIsRetried, aStopIsNoCrash, aStopWithoutGraceCancelsHandlers,
		anotherSetOfHandlersIsRefused, anotherSetOfHandlersIsRefusedWithoutAListenConnection, crashedRowsRunOneAtATime,
		rowsOfDeadWorkersAreReaped, theJournalFollowsALiveWorker)
}

// If the process crashes again, only the row that ran is charged.
func crashedRowsRunOneAtATime(b *bundle) {
	b.ofRowLocks()
	b.publish(event(1), event(2))
	b.exec("update core.outbox set crashes = 1")
	g := b.newGate()
	slow, s := subscription(gatedHandler("platform.one", g)), subscription(effectHandler("platform.other"))
	slow.Concurrency, s.EventType = 2, otherType
	l := b.startWorker(noPoll, slow, s)
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

// An open transaction of a producer keeps the notifier from its barrier, but not from reaping. A crash costs an
// attempt, and the fifth fails the event.
func rowsOfDeadWorkersAreReaped(b *bundle) {
	b.ofRowLocks()
	log := &logBuffer{}
	b.log = logTo(log)
	failed := make(chan telemetry.FailedEvent, 10)
	var err error
	b.telemetry, err = telemetry.New(telemetry.Config{
		OnFailed: func(_ context.Context, e telemetry.FailedEvent) { failed <- e },
	})
	must(b.T, err)
	first, fifth := event(1), event(2)
	b.publish(first, fifth)
	b.producerOf(happenedType)
	b.exec("update core.outbox set crashes = 4 where id = $1", fifth.EventID)
	b.deadWorker(first.EventID)
	b.deadWorker(fifth.EventID)
	b.startWorker(noPoll, subscription(effectHandler("platform.one"))).awaitOutcome(dispatch.Delivered)
	b.wantRow(first.EventID, "delivered", 2)
	b.eventually("the log entry", func() bool { return log.count("event failed: its workers crashed") == 1 })
	if r := b.wantRow(fifth.EventID, "failed", 1); !strings.HasPrefix(r.LastError, "WorkerDied: outbox: worker killed ") {
		b.Errorf("last_error %q", r.LastError)
	}
	if e := receive(b.T, failed); e.EventID != fifth.EventID || e.Source != fifth.Source || e.Attempts != 1 ||
		e.Classes["outbox"] != "WorkerDied" {
		b.Errorf("the report is of %+v", e)
	}
}

// A refused statement of a dispatch counts no attempt, and the journal holds nothing while the worker pauses.
func aRefusedStatementIsRetried(b *bundle) {
	b.ofRowLocks()
	for _, function := range []string{"outbox_claim(bigint, text, integer, timestamptz, uuid, boolean, timestamptz, text)",
		"outbox_deliver(uuid[], timestamptz[])"} {
		log := &logBuffer{}
		b.log = logTo(log)
		b.exec("revoke execute on function core." + function + " from spectral_worker")
		e := event(1)
		b.publish(e)
		l := b.startWorker(noPoll, subscription(effectHandler("platform.one")))
		b.eventually("two refusals", func() bool { return log.count("claim failed and is retried") >= 2 })
		b.wantNothingHeld()
		b.exec("grant execute on function core." + function + " to spectral_worker")
		l.awaitDelivered(1)
		b.wantRow(e.EventID, "delivered", 1)
		l.stop()
	}
}

// Other workers are notified of what the stopped worker releases.
func aStopWithoutGraceCancelsHandlers(b *bundle) {
	b.ofRowLocks()
	g := b.newGate()
	first := b.startWorker(noPoll, subscription(gatedHandler("platform.one", g)))
	e := event(1)
	b.publish(e)
	g.awaitEntered(b.T)
	second := b.startWorker(noPoll, subscription(effectHandler("platform.one")))
	b.publish(event(2))
	second.awaitDelivered(1)
	b.awaitNotifierIdle()
	first.stopWithoutGrace()
	first.stop() // a second stop does nothing
	second.awaitDelivered(1)
	b.wantRow(e.EventID, "delivered", 1)
	b.wantEffects(map[string]int{"platform.one": 2})
}

// Whatever goes wrong once a worker has begun to stop: what it held is charged to no event, and nothing says that it
// was killed.
func aStopIsNoCrash(b *bundle) {
	b.ofRowLocks()
	const refused = "function core.claim_journal_write, core.outbox_release, core.worker_unregister "
	for _, c := range []struct {
		name           string
		leased, locked bool
	}{
		{"row-locked, connections ended and statements refused", false, false},
		{"leased, connections ended and statements refused", true, false}, {"leased, row locked", true, true},
	} {
		b.run(c.name, func(b *bundle) {
			b.exec("truncate core.outbox, core.event_handled, core.workers, core.claim_journal")
			g := b.newGate()
			s := subscription(gatedHandler("platform.one", g))
			if c.leased {
				s = leasedSubscription(time.Minute, gatedExecutor("platform.one", g))
			}
			l := b.startWorker(noPoll, s)
			e := event(1)
			b.publish(e)
			g.awaitEntered(b.T)
			grace, end := context.WithCancel(b.ctx)
			stopped := make(chan error, 1)
			go func() { stopped <- l.Stop(grace) }()
			b.eventually("record of the stop", func() bool { return one[bool](b, "select stopping from core.workers") })
			lock := b.beginTx("select")
			if c.locked {
				_, err := lock.Exec(b.ctx, "select from core.outbox for update")
				must(b.T, err)
			} else {
				b.exec("revoke execute on " + refused + "from spectral_worker")
				b.endSessions()
			}
			end()
			if err := receive(b.T, stopped); err == nil {
				b.Error("the stop cancelled no handler")
			}
			b.rollback(lock)
			b.exec("grant execute on " + refused + "to spectral_worker")
			b.exec("update core.outbox set lease_seconds = 1e-6 where status = 'in_flight'")
			b.eventually("end of its session", func() bool {
				b.exec("select core.workers_probe(gen_random_uuid(), 0)")
				return one[bool](b, "select not exists (select from core.workers where gone_at is null)")
			})
			b.exec("select core.outbox_reap(p_grace => 0)")
			r := b.wantRow(e.EventID, "pending", 0)
			history := one[string](b, "select crashes || ' ' || failure_history from core.outbox")
			if !strings.HasPrefix(history, "0 ") || strings.Contains(history+r.LastError, "killed") {
				b.Errorf("%s; %s", history, r.LastError)
			}
			if n := one[int](b, left); n != 0 {
				b.Errorf("the stopped worker left %d rows", n)
			}
			b.startWorker(noPoll, subscription(effectHandler("platform.one"))).awaitDelivered(1)
		})
	}
}

// left counts what workers leave in the tables of workers.
const left = "select (select count(*) from core.workers)::int + (select count(*) from core.claim_journal)::int"

// endSessions ends every connection of the workers.
func (b *bundle) endSessions() {
	b.Helper()
	b.exec(`select pg_terminate_backend(pid, 10000) from pg_stat_activity
		where datname = current_database() and application_name in ('workers', 'notifier')`)
}

// The journal names an event before its handler starts, and does not name it after the worker released it.
func theJournalFollowsALiveWorker(b *bundle) {
	b.ofRowLocks()
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
	b.publish(event(1), event(2), event(3))
	l := b.startWorker(noPoll, s)
	l.awaitSettled(3, 0)
	b.wantNothingHeld()
	l.stop()
	if n := one[int](b, left); n != 0 {
		b.Fatalf("the stopped worker left %d rows", n)
	}
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
