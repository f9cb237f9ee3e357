package integration_test

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	natsjs "github.com/nats-io/nats.go/jetstream"

	"spectral/internal/app"
	"spectral/internal/app/embeddednats"
	"spectral/internal/core/events"
	"spectral/internal/core/events/infrastructure/jetstream"
	"spectral/internal/core/events/infrastructure/postgres/dispatch"
	"spectral/internal/core/events/infrastructure/postgres/notify"
	"spectral/internal/core/events/infrastructure/postgres/pgtx"
	"spectral/tests/pgtest"
)

const handlerOne, handlerTwo = "platform.one", "worlds.two"

// stream is the name of every broker's stream.
const stream = "events"

// broker is a NATS server of one test, and a client of it.
type broker struct {
	config embeddednats.Config
	server *embeddednats.Server
	nc     *nats.Conn
	js     natsjs.JetStream
}

// setupRelay is setup with a broker that events go through. Change may be nil.
func setupRelay(t *testing.T, change func(*server.Options)) *bundle {
	t.Helper()
	b := setup(t)
	k := &broker{config: embeddednats.Config{Dir: b.TempDir(), Password: "of a test", Change: change}}
	b.broker = k
	k.start(t)
	b.Cleanup(func() { k.server.Stop() })
	var err error
	k.nc, err = nats.Connect(k.server.URL(), nats.MaxReconnects(-1), nats.ReconnectWait(10*time.Millisecond))
	must(t, err)
	b.Cleanup(k.nc.Close)
	k.js, err = natsjs.New(k.nc)
	must(t, err)
	b.exec("select core.relay_switch($1)", pgtx.PathJetStream)
	return b
}

func (k *broker) start(t testing.TB) {
	t.Helper()
	var err error
	k.server, err = embeddednats.Start(k.config)
	must(t, err)
	at, err := url.Parse(k.server.URL())
	must(t, err)
	k.config.Port, err = strconv.Atoi(at.Port())
	must(t, err)
}

// stop stops the server, and deletes its data if they are to be lost.
func (k *broker) stop(t testing.TB, lose bool) {
	t.Helper()
	k.server.Stop()
	if lose {
		must(t, os.RemoveAll(k.config.Dir))
	}
}

// newRelay returns the relay of a worker; nil: it has none.
func (b *bundle) newRelay() dispatch.Relay {
	b.Helper()
	if b.broker == nil {
		return pgtest.Relay(b, b.directURL, b.generation)
	}
	relay, err := jetstream.New(jetstream.Config{
		URL: b.broker.server.URL(), Stream: stream, Generation: b.generation, Name: b.Name(), Log: slog.New(b.log),
	})
	must(b.T, err)
	b.Cleanup(relay.Close)
	return relay
}

// change changes the configuration of the stream.
func (k *broker) change(b *bundle, change func(*natsjs.StreamConfig)) {
	b.Helper()
	s, err := k.js.Stream(b.ctx, stream)
	must(b.T, err)
	config := s.CachedInfo().Config
	change(&config)
	_, err = k.js.UpdateStream(b.ctx, config)
	must(b.T, err)
}

// kept returns how many messages the stream has.
func (k *broker) kept(b *bundle) uint64 {
	b.Helper()
	s, err := k.js.Stream(b.ctx, stream)
	must(b.T, err)
	return s.CachedInfo().State.Msgs
}

// count counts rows of core.outbox.
func (b *bundle) count(where string) int {
	b.Helper()
	return one[int](b, "select count(*)::int from core.outbox where "+where)
}

// awaitCount waits until n rows of core.outbox are as where says.
func (b *bundle) awaitCount(n int, where string) {
	b.Helper()
	b.eventually(fmt.Sprintf("%d events: %s", n, where), func() bool { return b.count(where) == n })
}

// wantOnce waits until n events, which are all, are delivered and the broker has none of them, and compares their
// effects: each handler has handled each event once.
func (b *bundle) wantOnce(n int, handlers ...string) {
	b.Helper()
	b.awaitCount(n, "status = 'delivered'")
	b.eventually("the last ack", func() bool { return b.broker.kept(b) == 0 })
	want := make(map[string]int)
	for _, name := range handlers {
		want[name] = n
	}
	b.wantEffects(want)
	if n := one[int](b, `select count(*)::int from (select from (table platform.effects union all table worlds.effects) e
		group by handler, key having count(*) > 1) r`); n > 0 {
		b.Errorf("%d effects are there more than once", n)
	}
}

func gated(g *gate) events.Subscription {
	return subscription(gatedHandler(handlerOne, g), gatedHandler(handlerTwo, g))
}

func ungated() events.Subscription {
	return subscription(effectHandler(handlerOne), effectHandler(handlerTwo))
}

// leave publishes n events and leaves them to the broker: the worker that sends them is stopped before its handlers
// have handled any. Those that they had are pending again; it returns how many are relayed.
func (b *bundle) leave(n int) (relayed int) {
	b.Helper()
	g := b.newGate()
	l := b.startWorker(noPoll, gated(g))
	b.publishMany(n)
	b.awaitCount(n, "status = 'relayed'")
	g.awaitAll(b, 2)
	stopped, cancel := context.WithCancel(b.ctx)
	cancel()
	if err := l.Stop(stopped); err == nil {
		b.Fatal("no handler was cancelled")
	}
	if relayed = b.count("status = 'relayed'"); relayed == 0 || relayed == n {
		b.Fatalf("%d of %d events are relayed", relayed, n)
	}
	return relayed
}

// A broker ends and starts again, with its data or without: once while no worker runs, and once while handlers run and
// further events are published.
func TestEventsOutliveTheirBroker(t *testing.T) {
	for name, lose := range map[string]bool{"with its data": false, "without": true} {
		t.Run(name, func(t *testing.T) {
			b := setupRelay(t, nil)
			b.leave(25)
			b.broker.stop(b, lose)
			b.broker.start(b)
			g := b.newGate() // for events from 100 on
			of := func(name string) events.Registration {
				return handler(name, func(ctx context.Context, tx events.Tx, e events.Envelope) error {
					var payload happened
					err := json.Unmarshal(e.Payload, &payload)
					if err == nil && payload.N >= 100 {
						err = g.wait(ctx)
					}
					return cmp.Or(err, writeEffect(name)(ctx, tx, e))
				})
			}
			l := b.startWorker(noPoll, subscription(of(handlerOne), of(handlerTwo)))
			b.publish(numbered(100, 25)...)
			b.awaitCount(50, "relayed_at is not null")
			g.awaitAll(b, 2)
			b.broker.stop(b, lose)
			b.eventually("the worker misses its broker", func() bool { return !l.relay.Ready() })
			b.publishMany(25)
			b.awaitCount(25, "relayed_at is null and status = 'delivered'")
			b.broker.start(b)
			pgtest.AwaitRelay(b, l.relay)
			if lose { // as if it had been a while ago
				b.exec("update core.outbox set relayed_at = relayed_at - interval '1 min' where status = 'relayed'")
			}
			g.release()
			if lose {
				b.killNotifier() // what is lost is looked for at once when it is back
			}
			b.wantOnce(75, handlerOne, handlerTwo)
		})
	}
}

// Of a broker that stays down, what it had is handled from Postgres.
func TestADownBrokerKeepsNoEvents(t *testing.T) {
	b := setupRelay(t, nil)
	b.leave(20)
	l := b.newWorker(noPoll, ungated())
	b.broker.stop(b, false)
	b.exec("update core.outbox set relayed_at = relayed_at - interval '1 min' where status = 'relayed'")
	must(b.T, l.Start(b.ctx))
	b.Cleanup(l.stop)
	for range pgtx.RelayDownPasses { // one pass each time that the worker listens, and not only every ten seconds
		l.wantState(testTimeout, notify.Listening, "")
		if b.killNotifier(); b.count("status = 'relayed'") == 0 {
			break
		}
		l.wantState(testTimeout, notify.Reconnecting, "")
	}
	b.awaitCount(20, "status = 'delivered'")
	b.broker.start(b) // what it still has repeats nothing
	b.wantOnce(20, handlerOne, handlerTwo)
}

// notedSubscription is a consumer whose first handler notes events that are relayed while it runs. One that is handled
// from Postgres is not.
func (b *bundle) notedSubscription(noted *sync.Map) events.Subscription {
	return subscription(handler(handlerOne, func(ctx context.Context, tx events.Tx, e events.Envelope) error {
		if one[string](b, "select status from core.outbox where id = $1", e.EventID) == "relayed" {
			noted.Store(e.EventID, true)
		}
		return writeEffect(handlerOne)(ctx, tx, e)
	}), effectHandler(handlerTwo))
}

// Events that do not fit are handled from Postgres; they hold up no other.
func TestWhatTheBrokerRefusesIsHandledFromPostgres(t *testing.T) {
	large := event(0)
	large.Payload = []byte(`{"n": 0, "more": "` + strings.Repeat("m", 8<<10) + `"}`)
	for name, c := range map[string]struct {
		options func(*server.Options)
		stream  func(*natsjs.StreamConfig)
		refused string // how many
	}{
		"an event is too large": {func(o *server.Options) { o.MaxPayload = 4 << 10 }, nil, "= 1"},
		"the stream is full":    {nil, func(c *natsjs.StreamConfig) { c.MaxBytes = 12 << 10 }, "between 1 and 30"},
	} {
		t.Run(name, func(t *testing.T) {
			b := setupRelay(t, c.options)
			g := b.newGate()
			l := b.startWorker(noPoll, gated(g))
			if c.stream != nil {
				b.broker.change(b, c.stream)
			}
			b.publish(slices.Insert(numbered(0, 40), 20, large)...)
			b.eventually("a refusal", func() bool { return b.count("relayed_at = '-infinity'") > 0 })
			g.release()
			b.wantOnce(41, handlerOne, handlerTwo)
			if !one[bool](b, "select count(*) filter (where relayed_at = '-infinity') "+c.refused+
				" and count(relayed_at) = 41 from core.outbox") {
				b.Errorf("the broker refused %d of 41 events", b.count("relayed_at = '-infinity'"))
			}
			if !l.relay.Ready() {
				b.Error("the broker counts as broken")
			}
		})
	}
}

// A message of an event that was handled, or of which that is not known, changes nothing or goes back to Postgres.
func TestRepeatedMessagesRepeatNoEffect(t *testing.T) {
	b := setupRelay(t, nil)
	copies, err := b.broker.nc.SubscribeSync(stream + ".>")
	must(b.T, err)
	must(b.T, b.broker.nc.Flush())
	relayed := b.leave(20)
	// a receiver that is gone has had all that are left
	for _, name := range []string{"g1-platform-one", "g1-worlds-two"} {
		consumer, err := b.broker.js.Consumer(b.ctx, stream, name)
		must(b.T, err)
		for n := 0; n < relayed; {
			batch, err := consumer.Fetch(relayed - n)
			must(b.T, err)
			for m := range batch.Messages() {
				n++
				must(b.T, m.Nak())
			}
		}
	}
	var noted sync.Map
	b.startWorker(noPoll, b.notedSubscription(&noted))
	b.wantOnce(20, handlerOne, handlerTwo)
	noted.Range(func(id, _ any) bool { b.Errorf("%v did not go back to Postgres", id); return true })
	b.publishMany(1)
	b.wantOnce(21, handlerOne, handlerTwo)
	last := b.newest(copies, 21)
	again := func() bool {
		ack, err := b.broker.js.PublishMsg(b.ctx, last)
		must(b.T, err)
		return ack.Duplicate
	}
	if !again() {
		b.Error("the broker takes an event twice")
	}
	window := 100 * time.Millisecond
	b.eventually("the broker forgets", func() bool {
		window++ // a server that is told once may still use the window of before
		b.broker.change(b, func(c *natsjs.StreamConfig) { c.Duplicates = window })
		return !again()
	})
	b.wantOnce(21, handlerOne, handlerTwo)
	b.publishMany(1) // the receivers go on
	b.wantOnce(22, handlerOne, handlerTwo)
	if attempts := b.count("attempts > 1"); attempts > 0 {
		b.Errorf("%d events have more than one attempt", attempts)
	}
}

// newest returns the last of n messages.
func (b *bundle) newest(copies *nats.Subscription, n int) (last *nats.Msg) {
	b.Helper()
	for range n {
		var err error
		last, err = copies.NextMsg(testTimeout)
		must(b.T, err)
	}
	return &nats.Msg{Subject: last.Subject, Header: last.Header, Data: last.Data}
}

// The worker sends an event, and does not come to know that the broker has it.
func TestAnEventWhoseSendingIsRolledBackIsHandledOnce(t *testing.T) {
	for name, fault := range map[string]string{
		"the row":        "raise exception 'on purpose'",
		"the connection": "perform pg_terminate_backend(pg_backend_pid())",
	} {
		t.Run(name, func(t *testing.T) {
			b := setupRelay(t, nil)
			b.exec(`create sequence public.sent;
				create function public.fault() returns trigger language plpgsql security definer as $$
				begin
					if nextval('public.sent') = 1 then ` + fault + `; end if;
					return new;
				end $$;
				create trigger fault before update on core.outbox for each row when (new.status = 'relayed')
					execute function public.fault()`)
			b.startWorker(noPoll, ungated())
			for round := range 3 { // after the fault some are handled from Postgres
				b.publishMany(20)
				b.wantOnce(20*(round+1), handlerOne, handlerTwo)
			}
			if faults := one[int](b, "select last_value::int from public.sent"); faults < 2 || b.count("relayed_at is null") < 10 {
				b.Errorf("no sending was rolled back, or none succeeded afterwards: %d", faults)
			}
		})
	}
}

func TestMessagesThatAreNoEventsAreDropped(t *testing.T) {
	log := &logBuffer{}
	b := setupRelay(t, nil)
	b.log = logTo(log)
	copies, err := b.broker.nc.SubscribeSync(stream + ".>")
	must(b.T, err)
	must(b.T, b.broker.nc.Flush())
	b.startWorker(noPoll, ungated())
	b.publishMany(1)
	b.wantOnce(1, handlerOne, handlerTwo)
	known := b.newest(copies, 1)
	send := func(change func(*nats.Msg)) {
		m := nats.NewMsg(known.Subject)
		maps.Copy(m.Header, known.Header)
		m.Data = known.Data
		change(m)
		_, err := b.broker.js.PublishMsg(b.ctx, m)
		must(b.T, err)
	}
	junk := []func(*nats.Msg){
		func(m *nats.Msg) { m.Header = nil; m.Data = []byte{0xff, 0} },
		func(m *nats.Msg) { m.Header = nats.Header{"ce-id": {"1"}, "ce-time": {"now"}, "ce-type": {"%zz"}} },
		func(m *nats.Msg) { m.Header.Del(natsjs.MsgIDHeader); m.Header.Del("ce-idempotencykey") },
	}
	for _, change := range junk {
		send(change)
	}
	unknown := func(m *nats.Msg) { // an event that Postgres does not have
		id := uuid.NewString()
		m.Header["ce-id"], m.Header[natsjs.MsgIDHeader] = []string{id}, []string{id}
	}
	send(unknown)
	b.publishMany(20)
	b.wantOnce(21, handlerOne, handlerTwo)
	if n := log.count("dropped a message that is no event"); n != 2*len(junk) {
		b.Errorf("%d log entries, want one for each message and handler", n)
	}
}

// Workers do not use a stream that may be another database's, or may lose what a handler waits for.
func TestForeignStreamsAreRefused(t *testing.T) {
	b := setupRelay(t, nil)
	own := map[string]string{"spectral_database": one[string](b, "select id::text from core.relay")}
	for name, c := range map[string]struct {
		config natsjs.StreamConfig
		reason string
	}{
		"of another database": {natsjs.StreamConfig{Discard: natsjs.DiscardNew, Retention: natsjs.InterestPolicy,
			Metadata: map[string]string{"spectral_database": uuid.NewString()}}, "belongs to another database"},
		"that drops what is old": {natsjs.StreamConfig{Discard: natsjs.DiscardOld, Retention: natsjs.InterestPolicy,
			Metadata: own}, "its discard policy new"},
		"with one reader of each message": {natsjs.StreamConfig{Discard: natsjs.DiscardNew,
			Retention: natsjs.WorkQueuePolicy, Metadata: own}, "its retention must be"},
	} {
		b.run(name, func(b *bundle) {
			b.exec("truncate core.outbox, core.event_handled, platform.effects, worlds.effects")
			log := &logBuffer{}
			b.log = logTo(log)
			c.config.Name, c.config.Subjects = stream, []string{stream + ".>"}
			_, err := b.broker.js.CreateStream(b.ctx, c.config)
			must(b.T, err)
			l := b.newWorker(noPoll, ungated())
			must(b.T, l.Start(b.ctx))
			b.Cleanup(func() {
				l.stop()
				must(b.T, b.broker.js.DeleteStream(context.Background(), stream))
			})
			l.wantState(testTimeout, notify.Listening, "")
			b.eventually("the log says why", func() bool { return log.count(c.reason) == 1 })
			b.publishMany(20)
			b.wantOnce(20, handlerOne, handlerTwo)
			if n := b.count("relayed_at is not null"); n != 0 {
				b.Errorf("%d events were sent", n)
			}
		})
	}
}

func TestPausedEventsGoBackToPostgres(t *testing.T) {
	b := setupRelay(t, nil)
	b.leave(20)
	b.exec("select core.event_type_pause($1, 1)", happenedType)
	b.startWorker(noPoll, ungated())
	b.awaitCount(20, "status = 'pending'")
	b.wantEffects(map[string]int{})
	b.exec("select core.event_type_resume($1, 1)", happenedType)
	b.wantOnce(20, handlerOne, handlerTwo)
}

// What the broker then still has for the first generation repeats nothing.
func TestAnotherGenerationAdoptsRelayedEvents(t *testing.T) {
	b := setupRelay(t, nil)
	b.leave(20)
	first := *b
	b.generation++
	b.exec("select core.generation_announce($1)", b.generation)
	if n := one[int](b, "select core.outbox_adopt(1, $1)", b.generation); n != 20 {
		b.Errorf("%d of 20 events were adopted", n)
	}
	s := ungated()
	s.Channel = events.ChannelName(b.generation, "")
	b.startWorker(noPoll, s)
	b.awaitCount(20, "status = 'delivered' and generation = 2")
	first.startWorker(noPoll, ungated())
	b.wantOnce(20, handlerOne, handlerTwo)
}

// Switched back while no worker runs, the broker is needed no more. What it then still has repeats nothing.
func TestEventsLeaveTheBrokerWithoutWorkers(t *testing.T) {
	b := setupRelay(t, nil)
	relayed := b.leave(20)
	o := b.operator()
	_, err := o.SwitchRelay(b.ctx, pgtx.PathPostgres, "anna")
	must(b.T, err)
	returned, err := app.EmptyRelay(b.ctx, o, 0)
	must(b.T, err)
	if returned != relayed || b.count("status = 'pending'") != 20 {
		b.Fatalf("%d of %d events went back", returned, relayed)
	}
	b.run("without a broker", func(b *bundle) {
		b.broker = nil
		b.startWorker(noPoll, ungated())
		b.awaitCount(20, "status = 'delivered'")
		b.wantEffects(map[string]int{handlerOne: 20, handlerTwo: 20})
	})
	b.startWorker(noPoll, ungated())
	b.wantOnce(20, handlerOne, handlerTwo)
}

// The login of an operator may compare.
func TestEventsOnBothPathsAreEqual(t *testing.T) {
	b := setupRelay(t, nil)
	o := b.operator()
	_, err := o.SwitchRelay(b.ctx, pgtx.PathPostgres, "anna")
	must(b.T, err)
	b.startWorker(noPoll, ungated())
	type report struct {
		app.Comparison
		error
	}
	reports := make(chan report, 1)
	go func() {
		c, err := app.CompareRelay(b.ctx, o, jetstream.Config{URL: b.broker.server.URL(), Stream: stream}, 2*time.Second, "")
		reports <- report{c, err}
	}()
	b.eventually("the switch", func() bool { return one[string](b, "select path from core.relay") == pgtx.PathBoth })
	b.publishMany(20)
	c := receive(b.T, reports)
	must(b.T, c.error)
	if !c.Equal() || c.Sent != 20 || c.Arrived != 20 || c.Handled[handlerOne] != 20 || c.Handled[handlerTwo] != 20 ||
		c.Repeated+c.Unmarked > 0 {
		b.Errorf("%+v", c.Comparison)
	}
	b.wantOnce(20, handlerOne, handlerTwo)
}

// Failures of relayed events are those of events that no broker has had. What is replayed is handled from Postgres.
func TestFailuresOfRelayedEvents(t *testing.T) {
	b := setupRelay(t, nil)
	var noted sync.Map
	var calls atomic.Int32
	var fixed atomic.Bool
	first := b.notedSubscription(&noted)
	s := subscription(handler(handlerOne, func(ctx context.Context, tx events.Tx, e events.Envelope) error {
		var payload happened
		must(b.T, json.Unmarshal(e.Payload, &payload))
		switch n := calls.Add(1); {
		case payload.N == 1 && !fixed.Load():
			return events.Terminal(errOnPurpose)
		case payload.N == 2 && n <= 3:
			return errOnPurpose
		}
		return first.Primary.Handler(tx)(ctx, e)
	}))
	l := b.startWorker(noPoll, s)
	parked, retried := event(1), event(2)
	b.publish(retried)
	l.awaitOutcome(dispatch.Delivered)
	if r := b.row(retried.EventID); r.Status != "delivered" || r.Attempts != 4 || calls.Load() != 4 {
		b.Errorf("%+v after %d calls", r, calls.Load())
	}
	b.publish(parked)
	l.awaitOutcome(dispatch.Failed)
	if r := b.row(parked.EventID); r.Status != "failed" || r.Attempts != 1 || calls.Load() != 5 ||
		!strings.Contains(r.LastError, errOnPurpose.Error()) {
		b.Errorf("%+v after %d calls", r, calls.Load())
	}
	if n := b.count("relayed_at > '-infinity'"); n != 2 {
		b.Errorf("%d of 2 events were sent", n)
	}
	fixed.Store(true)
	b.exec("select core.outbox_replay($1, 1)", parked.EventID)
	l.awaitOutcome(dispatch.Delivered)
	b.wantOnce(2, handlerOne)
	noted.Range(func(id, _ any) bool { b.Errorf("%v did not go back to Postgres", id); return true })
}
