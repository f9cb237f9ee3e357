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
	"spectral/tests/pgtest"
)

// died leaves what a worker leaves that was killed while it held rows.
func (b *bundle) died(ids ...uuid.UUID) (worker uuid.UUID) {
	b.Helper()
	worker = uuid.New()
	b.exec("insert into core.workers (worker_id, session_id, generation, name, handlers) values ($1, $1, 1, 'killed', '{}')", worker)
	b.exec("insert into core.claim_journal (worker_id, event_type, runner, ids) values ($1, $2, 1, $3)", worker, happenedType, ids)
	return worker
}

func (b *bundle) wantNothingHeld() {
	b.Helper()
	b.eventually("nothing is held", func() bool {
		return one[bool](b, `select not exists (select from core.claim_journal j, unnest(j.ids) as i(id) join core.outbox o on o.id = i.id
			where o.status = 'pending' and o.available_at <= j.claimed_at)`)
	})
}

// TestDeadWorkers runs cases that share a database: what dead workers held, what live ones leave, and who is refused.
func TestDeadWorkers(t *testing.T) {
	setup(t).cases(map[string]func(*bundle){
		"another set of handlers is refused":                             anotherSetOfHandlersIsRefused,
		"another set of handlers is refused without a listen connection": anotherSetOfHandlersIsRefusedWithoutAListenConnection,
		"rows that a worker died of run one at a time":                   rowsThatAWorkerDiedOfRunOneAtATime,
		"a death counts":                                           aDeathCounts,
		"a stop notifies of what it releases":                      aStopNotifiesOfWhatItReleases,
		"what dead workers held is freed beside a silent producer": whatDeadWorkersHeldIsFreedBesideASilentProducer,
		"the journal keeps up with a live worker":                  theJournalKeepsUpWithALiveWorker,
		"an interrupted dispatch holds nothing":                    anInterruptedDispatchHoldsNothing,
	})
}

// A death counts for what the worker ran: once it is an attempt, five times the event is failed. A worker that has its session
// is alive, whatever its journal says.
func aDeathCounts(b *bundle) {
	log := &notes{}
	b.log = logTo(log)
	cases := []struct {
		name            string
		crashes         int
		alive           bool
		status          string
		attempts, after int
	}{
		{"once", 0, false, "delivered", 2, 1},
		{"five times", 4, false, "failed", 1, 5},
		{"not while it lives", 0, true, "delivered", 1, 0},
	}
	all := b.publishMany(len(cases))
	for i, c := range cases {
		b.exec("update core.outbox set crashes = $2 where id = $1", all[i].EventID, c.crashes)
		worker := b.died(all[i].EventID)
		if c.alive {
			_, err := b.conn().Exec(b.ctx, "select pg_advisory_lock(core.worker_lock($1))", worker)
			must(b.T, err)
		}
	}
	b.listen(noPoll, subscription(leaving("platform.one"), leaving("worlds.two")))
	for i, c := range cases {
		id := all[i].EventID
		b.eventually(c.name+", it is "+c.status, func() bool { return b.row(id).Status == c.status })
		r := b.wantRow(id, c.status, c.attempts)
		if died := strings.HasPrefix(r.LastError, "WorkerDied: outbox: worker killed "); died == c.alive {
			b.Errorf("%s: last_error %q", c.name, r.LastError)
		}
		if n := one[int](b, "select crashes from core.outbox where id = $1", id); n != c.after {
			b.Errorf("%s: %d crashes, want %d", c.name, n, c.after)
		}
	}
	b.eventually("it is logged", func() bool { return log.count("event failed: its workers died of it") == 1 })
}

// Should the process die again, the one row that it ran is to blame.
func rowsThatAWorkerDiedOfRunOneAtATime(b *bundle) {
	b.publish(event(1), event(2))
	b.exec("update core.outbox set crashes = 1")
	g := newGate()
	slow := subscription(handler("platform.one", func(ctx context.Context, _ events.Tx, _ events.Envelope) error {
		return g.pass(ctx)
	}))
	slow.Concurrency = 2
	l := b.newWorker(noPoll, pgtest.Generation, slow)
	s := subscription(leaving("platform.other"))
	s.EventType = otherType
	must(b.T, l.Listen(b.ctx, s))
	l.start()
	g.awaitEntered(b.T)
	for n := range 20 { // others go on
		b.publish(ofType(otherType, event(n)))
		if s := l.next(); s.Envelope.EventType != otherType {
			b.Fatalf("settled first: %+v", s)
		}
	}
	if len(g.entered) > 0 || one[int](b, "select count(*)::int from core.claim_journal where event_type = $1 and cardinality(ids) > 0", happenedType) != 1 {
		b.Fatal("two rows that workers died of are held at once")
	}
	g.letOn()
	l.delivered(2)
}

// What a worker lets go of as it is stopped is not left to the others' poll.
func aStopNotifiesOfWhatItReleases(b *bundle) {
	g := newGate()
	s := subscription(handler("platform.one", func(ctx context.Context, _ events.Tx, _ events.Envelope) error {
		return g.pass(ctx)
	}))
	s.Concurrency = 1
	first := b.listen(noPoll, s)
	b.publish(event(1))
	g.awaitEntered(b.T)
	second := b.listen(noPoll, subscription(leaving("platform.one")))
	b.publish(event(2))
	second.delivered(1)
	b.waiting()
	ctx, cancel := context.WithCancel(b.ctx)
	cancel() // no grace at all
	if err := first.Stop(ctx); err == nil {
		b.Fatal("Stop did not say that a handler was cancelled")
	}
	second.delivered(1)
}

// Who cannot listen frees what dead workers held all the same, and so does one whose listener is
// kept from rest by a producer that has decided and is not done.
func whatDeadWorkersHeldIsFreedBesideASilentProducer(b *bundle) {
	e := event(1)
	b.publish(e)
	b.producerOf(happenedType) // and is never done
	b.died(e.EventID)
	b.listen(noPoll, subscription(leaving("platform.one"))).until(dispatch.Delivered)
	b.wantRow(e.EventID, "delivered", 2)
}

// Handlers begin after what they are about is noted, and a live worker's notes are void once it has
// let go, whichever way.
func theJournalKeepsUpWithALiveWorker(b *bundle) {
	b.sockets = &sockets{}
	calls := 0
	s := subscription(handler("platform.one", func(ctx context.Context, tx events.Tx, e events.Envelope) error {
		if n := one[int](b, "select count(*)::int from core.claim_journal where $1 = any (ids)", e.EventID); n != 1 {
			b.Errorf("noted %d times as the handler begins", n)
		}
		calls++
		switch calls {
		case 1:
			return errRefusing // undoes the batch
		case 2:
			b.sockets.cut()
		case 3:
			panic("no")
		}
		return effect("platform.one")(ctx, tx, e)
	}))
	s.Concurrency = 1
	b.publish(event(1), event(2), event(3))
	l := b.listen(noPoll, s)
	for delivered := 0; delivered < 3; {
		if l.next().Outcome == dispatch.Delivered {
			delivered++
		}
	}
	b.wantNothingHeld()
	l.stop()
	if n := one[int](b, "select (select count(*) from core.workers)::int + (select count(*) from core.claim_journal)::int"); n != 0 {
		b.Fatalf("%d rows are left of a worker that has stopped", n)
	}
}

// A worker that lets go of a row without settling it says so before it pauses: should it lose its
// session now, no worker must think that it died of that row.
func anInterruptedDispatchHoldsNothing(b *bundle) {
	log := &notes{}
	b.log = logTo(log)
	b.exec("revoke execute on function core.outbox_deliver(uuid[], timestamptz[]) from spectral_worker")
	b.publish(event(1))
	l := b.listen(noPoll, subscription(leaving("platform.one")))
	b.eventually("a dispatch is interrupted", func() bool { return log.count("interrupted, no attempt counted") > 0 })
	b.wantNothingHeld()
	b.exec("grant execute on function core.outbox_deliver(uuid[], timestamptz[]) to spectral_worker")
	l.delivered(1)
}

// wantRefused starts a listener beside a live one and awaits its refusal.
func (b *bundle) wantRefused(l *listening, difference ...string) {
	b.Helper()
	must(b.T, l.Start(b.ctx))
	b.Cleanup(l.stop)
	select {
	case <-l.Done():
	case <-time.After(testTimeout):
		state, reason := l.Health().Now()
		b.Fatalf("it did not refuse: %s %s", state, reason)
	}
	err := l.Err()
	if err == nil {
		b.Fatal("it ended without a reason")
	}
	for _, part := range difference {
		if !strings.Contains(err.Error(), part) {
			b.Errorf("the refusal does not say %q: %v", part, err)
		}
	}
}

// Two sets of handlers on one claim would starve each other.
func anotherSetOfHandlersIsRefused(b *bundle) {
	first := b.listen(noPoll, subscription(leaving("platform.one"), leaving("worlds.two")))
	b.wantRefused(b.newWorker(noPoll, pgtest.Generation, subscription(leaving("platform.one"))),
		b.Name(), happenedType, `["platform.one", "worlds.two"]`, `not by ["platform.one"]`, "new generation")
	b.publish(event(1))
	first.delivered(1)
	b.wantEffects(map[string]int{"platform.one": 1, "worlds.two": 1})

	// the same set, in whichever order, is a replica
	b.listen(noPoll, subscription(leaving("worlds.two"), leaving("platform.one")))
}

// Nor may it work through the poll, where it cannot listen.
func anotherSetOfHandlersIsRefusedWithoutAListenConnection(b *bundle) {
	first := b.listen(noPoll, subscription(leaving("platform.one"), leaving("worlds.two")))
	b.exec("alter table core.outbox disable trigger outbox_notify")
	b.publish(event(1))
	b.wantRefused(b.newWorker(50*time.Millisecond, pgtest.Generation, subscription(leaving("platform.one")), func(c *pgx.ConnConfig) {
		c.DialFunc = func(context.Context, string, string) (net.Conn, error) { return nil, errRefusing }
	}), "worlds.two")
	b.exec("select pg_notify('outbox_gen_1', '')")
	first.delivered(1)
	b.wantEffects(map[string]int{"platform.one": 1, "worlds.two": 1})
}
