package integration_test

import (
	"context"
	"log/slog"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"spectral/internal/core/events"
	"spectral/internal/core/events/infrastructure/postgres"
	"spectral/tests/pgtest"
)

// died leaves what a worker leaves that was killed with rows in hand.
func (b *bundle) died(alone bool, handler string, ids ...uuid.UUID) (worker uuid.UUID) {
	b.Helper()
	worker = uuid.New()
	b.exec("insert into core.workers (worker_id, session_id, generation, name, handlers) values ($1, $1, 1, 'killed', '{}')", worker)
	b.exec(`insert into core.claim_journal (worker_id, event_type, runner, generation, ids, alone, handler)
		values ($1, $2, 1, 1, $3, $4, nullif($5, ''))`, worker, happenedType, ids, alone, handler)
	return worker
}

func (b *bundle) wantNothingInHand() {
	b.Helper()
	b.eventually("nothing is in hand", func() bool {
		return one[bool](b, `select not exists (select from core.claim_journal j, unnest(j.ids) as i(id) join core.outbox o on o.id = i.id
			where o.status = 'pending' and o.available_at <= j.claimed_at)`)
	})
}

// What a dead worker had in a batch runs alone, at no attempt's cost; whatever comes beside it runs
// as ever.
func TestABatchThatAWorkerDiedOfRunsAlone(t *testing.T) {
	b := setup(t)
	first, second := event(1), event(2)
	b.publish(first, second)
	dead := b.died(false, "", first.EventID, second.EventID)
	seen := make(chan []events.Envelope, 100)
	l := b.listen(never, subscription(events.Registration{
		Name: "platform.batched", Batch: func(tx events.Tx) events.BatchHandler { return batches{tx, seen} },
	}))
	others := []events.Envelope{event(3), event(4), event(5)}
	b.publish(others...)
	l.delivered(5)
	// two runners may have shared the others
	alone, came := 0, 0
	for came < 5 {
		batch := <-seen
		came += len(batch)
		if !slices.ContainsFunc(batch, func(e events.Envelope) bool { return e.EventID == first.EventID || e.EventID == second.EventID }) {
			continue
		}
		if alone++; len(batch) != 1 {
			t.Fatalf("a row that a worker died of came in a batch of %d", len(batch))
		}
	}
	if alone != 2 {
		t.Fatalf("%d rows that a worker died of came", alone)
	}
	b.wantRow(first.EventID, "delivered", 1)
	b.eventually("the dead one is forgotten", func() bool {
		return !one[bool](b, "select exists (select from core.workers where worker_id = $1)", dead)
	})
}

// Dying alone costs an attempt, like any other failure.
func TestDyingAloneCostsAnAttempt(t *testing.T) {
	b := setup(t)
	log := &notes{}
	b.log = logTo(log)
	e := event(1)
	b.publish(e)
	b.died(true, "", e.EventID)
	l := b.listen(never, subscription(leaving("platform.one")))
	s := l.next()
	if n := log.count(`"lost_worker":"killed"`); n != 1 || log.count(`"in_hand":["`+e.EventID.String()) != 1 {
		t.Errorf("the log says %d times who died", n)
	}
	if s.Outcome != postgres.Retried || s.Attempts != 1 || !strings.HasPrefix(s.LastError, "WorkerDied: platform.one: ") {
		t.Fatalf("%+v", s)
	}
	l.delivered(1)
	b.wantRow(e.EventID, "delivered", 2)
}

func TestAnEventThatKillsItsWorkersFails(t *testing.T) {
	b := setup(t)
	e := event(1)
	b.publish(e)
	b.exec(`update core.outbox set handler_failures = '{"platform.one": {"failures": 5, "class": "WorkerDied"}}', attempts = 5, crashes = 6`)
	b.died(true, "platform.one", e.EventID)
	l := b.listen(never, subscription(leaving("platform.one"), leaving("worlds.two")))
	// the one that kills is out of retries; the other is not charged with it
	s := l.next()
	if s.Outcome != postgres.Retried || s.Attempts != 6 {
		t.Fatalf("%+v", s)
	}
	s = l.next()
	if s.Outcome != postgres.Failed || !strings.HasPrefix(s.LastError, "WorkerDied: platform.one: ") || strings.Contains(s.LastError, "worlds.two") {
		t.Fatalf("%+v", s)
	}
	b.wantEffects(map[string]int{"worlds.two": 1})
}

// A worker that has its session is alive, whatever its journal says.
func TestALiveWorkersRowsAreNoConcernOfOthers(t *testing.T) {
	b := setup(t)
	e := event(1)
	b.publish(e)
	worker := b.died(true, "", e.EventID)
	_, err := pgtest.Conn(t, b.url).Exec(b.ctx, "select pg_advisory_lock(core.worker_lock($1))", worker)
	must(t, err)
	b.listen(never, subscription(leaving("platform.one"))).delivered(1)
	b.wantRow(e.EventID, "delivered", 1)
}

// Of several rows that a process had in hand it cannot be told which it died of: none is charged,
// unless a worker died of one of them before.
func TestOfSeveralRowsInHandNoneIsCharged(t *testing.T) {
	b := setup(t)
	es := []events.Envelope{event(1), event(2), event(3), event(4)}
	b.publish(es...)
	b.exec("update core.outbox set crashes = 1 where id = $1", es[2].EventID)
	second := func(worker, id uuid.UUID) {
		b.exec(`insert into core.claim_journal (worker_id, event_type, runner, generation, ids, alone)
			values ($1, $2, 2, 1, array[$3::uuid], true)`, worker, happenedType, id)
	}
	second(b.died(true, "", es[0].EventID), es[1].EventID)
	second(b.died(true, "", es[2].EventID), es[3].EventID)
	l := b.listen(never, subscription(leaving("platform.one")))
	for delivered := 0; delivered < len(es); {
		if s := l.next(); s.Outcome == postgres.Delivered {
			delivered++
		} else if s.Envelope.EventID != es[2].EventID {
			t.Errorf("%+v", s)
		}
	}
	for i, want := range []struct{ attempts, crashes int }{{1, 1}, {1, 1}, {2, 2}, {1, 1}} {
		b.wantRow(es[i].EventID, "delivered", want.attempts)
		if n := one[int](b, "select crashes from core.outbox where id = $1", es[i].EventID); n != want.crashes {
			t.Errorf("event %d has %d crashes", i, n)
		}
	}
}

// Should the process die again, the one row that it ran is to blame.
func TestRowsThatAWorkerDiedOfRunOneAtATime(t *testing.T) {
	other := happenedContract()
	other.Type = "worlds.test.other"
	b := setup(t, other)
	b.publish(event(1), event(2))
	b.exec("update core.outbox set crashes = 1")
	g := newGate()
	slow := subscription(handler("platform.one", func(ctx context.Context, _ events.Tx, _ events.Envelope) error {
		return g.pass(ctx)
	}))
	l := b.newListener(never, pgtest.Generation, slow)
	s := subscription(leaving("platform.other"))
	s.EventType = other.Type
	must(t, l.Listen(b.ctx, s))
	l.start()
	g.awaitEntered(t)
	for n := range 20 { // others go on meanwhile
		e := event(n)
		e.EventType = other.Type
		b.publish(e)
		if s := l.next(); s.Envelope.EventType != other.Type {
			t.Fatalf("settled first: %+v", s)
		}
	}
	if len(g.entered) > 0 || one[int](b, "select count(*)::int from core.claim_journal where event_type = $1 and cardinality(ids) > 0", happenedType) != 1 {
		t.Fatal("two rows that workers died of are in hand at once")
	}
	g.letOn()
	l.delivered(2)
}

// What a worker lets go of as it is stopped is not left to the others' poll.
func TestAStopRingsForWhatItLetsGoOf(t *testing.T) {
	b := setup(t)
	g := newGate()
	s := subscription(handler("platform.one", func(ctx context.Context, _ events.Tx, _ events.Envelope) error {
		return g.pass(ctx)
	}))
	s.Concurrency = 1
	first := b.listen(never, s)
	b.publish(event(1))
	g.awaitEntered(t)
	second := b.listen(never, subscription(leaving("platform.one")))
	b.publish(event(2))
	second.delivered(1)
	b.waiting()
	ctx, cancel := context.WithCancel(b.ctx)
	cancel() // no grace at all
	if err := first.Stop(ctx); err == nil {
		t.Fatal("Stop did not say that a handler was cancelled")
	}
	second.delivered(1)
}

// Who cannot listen frees what the dead had in hand all the same, and so does one whose listener is
// kept from rest by a producer that has decided and is not done.
func TestWhatTheDeadHadInHandIsFreedBesideASilentProducer(t *testing.T) {
	b := setup(t)
	e := event(1)
	b.publish(e)
	b.producerOf(happenedType) // and is never done
	b.died(true, "", e.EventID)
	b.listen(never, subscription(leaving("platform.one"))).until(postgres.Delivered)
	b.wantRow(e.EventID, "delivered", 2)
}

// Rows must not wait for a verdict that nobody gives.
func TestSuspicionEnds(t *testing.T) {
	b := setup(t)
	e := event(1)
	b.publish(e)
	dead := b.died(true, "", e.EventID)
	b.exec("update core.workers set gone_at = clock_timestamp() - interval '119 seconds' where worker_id = $1", dead)
	claimed := func() bool {
		return one[bool](b, "select exists (select from core.outbox_claim(1, $1, 10, '-infinity', gen_random_uuid(), false))", happenedType)
	}
	if claimed() {
		t.Fatal("claimed before the verdict")
	}
	b.eventually("it is claimed all the same", claimed)
}

// A server that has started since explains a lost session: nobody died.
func TestARestartOfTheServerIsFree(t *testing.T) {
	b := setup(t)
	e := event(1)
	b.publish(e)
	b.died(true, "", e.EventID)
	b.exec("update core.claim_journal set server_started_at = server_started_at - interval '1 hour'")
	l := b.listen(never, subscription(leaving("platform.one")))
	s := l.next()
	if s.Outcome != postgres.Retried || s.Attempts != 0 || !strings.HasPrefix(s.LastError, "ConnectionError: ") {
		t.Fatalf("%+v", s)
	}
	l.delivered(1)
	b.wantRow(e.EventID, "delivered", 1)
}

// A backend may outlive its worker's session: its rows wait for it, and nobody counts anything.
func TestAVerdictWaitsForTheRowsLock(t *testing.T) {
	b := setup(t)
	held, free := event(1), event(2)
	b.publish(held, free)
	dead := b.died(false, "", held.EventID, free.EventID)
	holder := pgtest.Conn(t, b.url)
	_, err := holder.Exec(b.ctx, "begin; select from core.outbox where id = '"+held.EventID.String()+"' for update")
	must(t, err)
	l := b.listen(never, subscription(leaving("platform.one")))
	l.delivered(1)
	if in := one[[]uuid.UUID](b, "select ids from core.claim_journal where worker_id = $1", dead); len(in) != 1 || in[0] != held.EventID {
		t.Fatalf("left to be judged: %v", in)
	}
	_, err = holder.Exec(b.ctx, "commit")
	must(t, err)
	l.delivered(1)
	if n := one[int](b, "select crashes from core.outbox where id = $1", held.EventID); n != 1 {
		t.Fatalf("%d crashes", n)
	}
}

// Of several handlers the one that kills is found: each runs in a transaction of its own.
func TestCoHandlersOfARowThatAWorkerDiedOfRunApart(t *testing.T) {
	b := setup(t)
	e := event(1)
	b.publish(e)
	b.exec("update core.outbox set crashes = 1")
	var noted []string
	note := func(name string) events.Registration {
		return handler(name, func(ctx context.Context, tx events.Tx, e events.Envelope) error {
			noted = append(noted, name+" after "+strings.Join(b.handledBy(e.IdempotencyKey), ", ")+" noted "+
				one[string](b, "select handler from core.claim_journal where $1 = any (ids) and alone", e.EventID))
			return effect(name)(ctx, tx, e)
		})
	}
	b.listen(never, subscription(note("platform.one"), note("worlds.two"), note("worlds.three"))).delivered(1)
	want := "platform.one after  noted platform.one; worlds.two after platform.one noted worlds.two; " +
		"worlds.three after platform.one, worlds.two noted worlds.three"
	if got := strings.Join(noted, "; "); got != want {
		t.Fatalf("ran\n%s, want\n%s", got, want)
	}
	b.wantRow(e.EventID, "delivered", 1)
	b.wantEffects(map[string]int{"platform.one": 1, "worlds.two": 1, "worlds.three": 1})
}

// A deferred constraint that such a row breaks ends it like any other.
func TestARowThatAWorkerDiedOfBreaksADeferredConstraint(t *testing.T) {
	b := setup(t)
	b.exec("alter table platform.effects add constraint once unique (n) deferrable initially deferred; insert into platform.effects values ('x', 'x', gen_random_uuid(), 1)")
	e := event(1)
	b.publish(e)
	b.exec("update core.outbox set crashes = 1")
	b.listen(never, subscription(leaving("platform.one"))).until(postgres.Failed)
	if r := b.wantRow(e.EventID, "failed", 1); !strings.HasPrefix(r.LastError, "IntegrityError: platform.one: ") {
		t.Fatalf("last_error %q", r.LastError)
	}
}

// Handlers begin after what they are about is noted, and a live worker's notes are void once it has
// let go, whichever way.
func TestTheJournalKeepsUpWithALiveWorker(t *testing.T) {
	b := setup(t)
	b.sockets = &sockets{}
	calls := 0
	s := subscription(handler("platform.one", func(ctx context.Context, tx events.Tx, e events.Envelope) error {
		if n := one[int](b, "select count(*)::int from core.claim_journal where $1 = any (ids)", e.EventID); n != 1 {
			t.Errorf("noted %d times as the handler begins", n)
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
	l := b.listen(never, s)
	for delivered := 0; delivered < 3; {
		if l.next().Outcome == postgres.Delivered {
			delivered++
		}
	}
	b.wantNothingInHand()
	l.stop()
	if n := one[int](b, "select (select count(*) from core.workers)::int + (select count(*) from core.claim_journal)::int"); n != 0 {
		t.Fatalf("%d rows are left of a worker that has stopped", n)
	}
}

// A worker that lets go of a row without settling it says so before it pauses: should it lose its
// session now, nobody must think that it died of that row.
func TestAnInterruptedDispatchLeavesNothingInHand(t *testing.T) {
	b := setup(t)
	log := interruptions{slog.DiscardHandler, make(chan time.Time, 1000)}
	b.log = enabled{log}
	b.exec("revoke execute on function core.outbox_deliver(uuid[], timestamptz[]) from spectral_worker")
	b.publish(event(1))
	l := b.listen(never, subscription(leaving("platform.one")))
	select {
	case <-log.at:
	case <-time.After(patience):
		t.Fatal("no dispatch was interrupted")
	}
	b.wantNothingInHand()
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
	case <-time.After(patience):
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
func TestAnotherSetOfHandlersIsRefused(t *testing.T) {
	b := setup(t)
	first := b.listen(never, subscription(leaving("platform.one"), leaving("worlds.two")))
	b.wantRefused(b.newListener(never, pgtest.Generation, subscription(leaving("platform.one"))),
		b.Name(), happenedType, `["platform.one", "worlds.two"]`, `not by ["platform.one"]`, "new generation")
	b.publish(event(1))
	first.delivered(1)
	b.wantEffects(map[string]int{"platform.one": 1, "worlds.two": 1})

	// the same set, in whichever order, is a replica
	b.listen(never, subscription(leaving("worlds.two"), leaving("platform.one"))).stop()
	// a changed set is a new generation
	must(t, postgres.Register(b.ctx, b.pool, 2, b.contracts))
	b.newListener(never, 2, events.Subscription{
		Channel: events.ChannelName(2, ""), EventType: happenedType, Primary: leaving("platform.one"),
	}).start()
	// or comes after the old one
	first.stop()
	b.listen(never, subscription(leaving("platform.one")))
}

// Nor may it work through the poll, where it cannot listen.
func TestAnotherSetOfHandlersIsRefusedWithoutAListenConnection(t *testing.T) {
	b := setup(t)
	first := b.listen(never, subscription(leaving("platform.one"), leaving("worlds.two")))
	b.exec("alter table core.outbox disable trigger outbox_notify")
	b.publish(event(1))
	b.wantRefused(b.newListener(50*time.Millisecond, pgtest.Generation, subscription(leaving("platform.one")), func(c *pgx.ConnConfig) {
		c.DialFunc = func(context.Context, string, string) (net.Conn, error) { return nil, errRefusing }
	}), "worlds.two")
	b.exec("select pg_notify('outbox_gen_1', '')")
	first.delivered(1)
	b.wantEffects(map[string]int{"platform.one": 1, "worlds.two": 1})
}

// Of two that start together one is refused.
func TestOneOfTwoSetsOfHandlersIsRefused(t *testing.T) {
	b := setup(t)
	both := []*listening{
		b.newListener(never, pgtest.Generation, subscription(leaving("platform.one"))),
		b.newListener(never, pgtest.Generation, subscription(leaving("worlds.two"))),
	}
	for _, l := range both {
		must(t, l.Start(b.ctx))
		t.Cleanup(l.stop)
	}
	select {
	case <-both[0].Done():
		both = both[1:]
	case <-both[1].Done():
		both = both[:1]
	case <-time.After(patience):
		t.Fatal("neither was refused")
	}
	ctx, cancel := context.WithTimeout(b.ctx, patience)
	defer cancel()
	must(t, both[0].Health().Await(ctx, postgres.Listening))
}
