package conformance_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"

	"spectral/internal/core/events"
	"spectral/internal/core/events/eventstest"
	"spectral/tests/pgtest"
)

type listenerSuite struct{ *database }

// Each subtest has its own worker. Promises that can be tested with the same handlers share one.
func TestPostgresKeepsTheListenersPromises(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]func(*listenerSuite){
		"subscriptions are refused": refusesSubscriptions,
		"one handler":               oneHandler,
		"three handlers":            threeHandlers,
		"a batch has one workspace and is handled as a whole":           handlesBatches,
		"a handler that acts outside is not repeated for another event": isolatesHandlersThatActOutside,
		"only the failed handler runs again":                            retriesOnlyFailedHandler(false),
		"a handler may fail in any way":                                 failuresOfEachKind(false),
		"leased: only the failed handler runs again":                    retriesOnlyFailedHandler(true),
		"leased: work may fail in any way":                              failuresOfEachKind(true),
		"leased: nothing is written while the work runs":                leasedWork,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(&listenerSuite{newDatabase(t)})
		})
	}
}

// each runs tests that share the worker.
func (s *listenerSuite) each(tests map[string]func(*listenerSuite)) {
	for name, test := range tests {
		s.run(name, func(d *database) { test(&listenerSuite{d}) })
	}
}

func oneHandler(s *listenerSuite) {
	earlier := s.publish(suiteEvent(1), suiteEvent(2))
	s.start(s.subscription(handler(first, func(ctx context.Context, tx events.Tx, e events.Envelope) error {
		s.got.Store(&e)
		return s.writeLine(ctx, tx, first, e)
	})))
	for _, e := range earlier {
		s.awaitSettled(e, eventstest.Delivered)
	}
	s.wantLines(first+" 1", first+" 2")
	s.each(map[string]func(*listenerSuite){
		"receives the event as it was stored":                   getsTheEvent,
		"handles no event before it is due":                     waitsUntilDue,
		"an unconsumed event is delivered when it is published": settlesUnconsumed,
		"a target without a handler fails the event":            failsWithoutHandler,
	})
}

func threeHandlers(s *listenerSuite) {
	other := s.subscription(s.lineHandler("worlds.suite_other"))
	other.EventType = otherType
	s.start(s.subscription(s.lineHandler(first), s.lineHandler(second), s.lineHandler(third)), other)
	s.each(map[string]func(*listenerSuite){
		"each runs once for each event":                   runsEveryHandler,
		"only handlers of the target context run":         runsTargetOnly,
		"each handles one of several events with one key": dedupsByKey,
	})
}

// fastRetry retries three times without a noticeable delay.
var fastRetry = &events.RetryPolicy{MaxRetries: 3, Base: time.Millisecond, Multiplier: 1, Cap: time.Millisecond}

func handler(name string, do func(context.Context, events.Tx, events.Envelope) error) events.Registration {
	return events.Registration{Name: name, Retry: fastRetry, Handler: func(tx events.Tx) events.EventHandler {
		return func(ctx context.Context, e events.Envelope) error { return do(ctx, tx, e) }
	}}
}

func executor(name string, do events.ExecutorFunc) events.Registration {
	return events.Registration{Name: name, Retry: fastRetry, Executor: do}
}

// lineOf returns the line that a handler writes for an event, its name and the event's number, and that number.
func lineOf(name string, e events.Envelope) (text string, number int64, err error) {
	payload, err := events.Decode[suitePayload](e)
	return fmt.Sprintf("%s %d", name, payload.N), payload.N, err
}

func (s *listenerSuite) writeLine(ctx context.Context, tx events.Tx, name string, e events.Envelope) error {
	text, _, err := lineOf(name, e)
	if err != nil {
		return err
	}
	_, err = tx.Exec(ctx, "insert into suite.lines values ($1)", text)
	return err
}

func (s *listenerSuite) lineHandler(name string) events.Registration {
	return handler(name, func(ctx context.Context, tx events.Tx, e events.Envelope) error {
		return s.writeLine(ctx, tx, name, e)
	})
}

func (s *listenerSuite) completion(name string, e events.Envelope) events.Completion {
	return func(ctx context.Context, tx events.Tx) error { return s.writeLine(ctx, tx, name, e) }
}

func (s *listenerSuite) subscription(handlers ...events.Registration) events.Subscription {
	return events.Subscription{
		Channel: events.ChannelName(pgtest.Generation, ""), EventType: suiteType,
		Primary: handlers[0], CoHandlers: handlers[1:],
	}
}

func (s *listenerSuite) leasedSubscription(handlers ...events.Registration) events.Subscription {
	subscription := s.subscription(handlers...)
	subscription.Mode, subscription.Concurrency, subscription.Lease = events.Leased, 4, time.Minute
	return subscription
}

func (s *listenerSuite) start(subscriptions ...events.Subscription) {
	s.Helper()
	for _, subscription := range subscriptions {
		must(s, s.Worker.Listen(s.Context(), subscription))
	}
	eventstest.Start(s, s.Worker)
}

// publish publishes events in one transaction and returns them with their ids.
func (s *listenerSuite) publish(envelopes ...events.Envelope) []events.Envelope {
	s.Helper()
	return s.publishWith(nil, envelopes...)
}

func (s *listenerSuite) publishWith(options []events.PublishOption, envelopes ...events.Envelope) []events.Envelope {
	s.Helper()
	for i := range envelopes {
		envelopes[i].EventID = uuid.Must(uuid.NewV7())
	}
	must(s, s.Transact(s.Context(), func(publisherFor events.PublisherFor) error {
		return publisherFor(options...).Publish(s.Context(), envelopes...)
	}))
	return envelopes
}

func (s *listenerSuite) outcome(e events.Envelope) eventstest.Outcome {
	s.Helper()
	all, err := eventstest.Outcomes(s.Context(), s.pool)
	must(s, err)
	for _, o := range all {
		if o.Envelope.EventID == e.EventID {
			return o
		}
	}
	s.Fatalf("there is no event %s", e.EventID)
	panic("unreachable")
}

// await polls a condition for which there is no signal.
func (s *listenerSuite) await(what string, condition func() bool) {
	s.Helper()
	if !pgtest.Eventually(testTimeout, condition) {
		all, err := eventstest.Outcomes(s.Context(), s.pool)
		s.Fatalf("%s did not happen within %s; the events (%v):\n%s", what, testTimeout, err, formatted(all...))
	}
}

// awaitSettled waits until e is settled, and fails the test if its status is not want.
func (s *listenerSuite) awaitSettled(e events.Envelope, want eventstest.Status) eventstest.Outcome {
	s.Helper()
	var o eventstest.Outcome
	s.await("settling of event "+e.EventID.String(), func() bool {
		o = s.outcome(e)
		return o.Status.Settled()
	})
	if o.Status != want {
		s.Fatalf("the event is %s, want %s:\n%s", o.Status, want, formatted(o))
	}
	return o
}

func (s *listenerSuite) wantAttempts(o eventstest.Outcome, want int) {
	s.Helper()
	if o.Attempts != want {
		s.Errorf("the event has %d attempts, want %d", o.Attempts, want)
	}
}

func (s *listenerSuite) wantLines(want ...string) {
	s.Helper()
	var got []string
	must(s, s.pool.QueryRow(s.Context(), "select coalesce(array_agg(line), '{}') from suite.lines").Scan(&got))
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		s.Fatalf("the lines are %q, want %q", got, want)
	}
}

const (
	first  = "platform.suite_first"
	second = "worlds.suite_second"
	third  = "platform.suite_third"
)

func refusesSubscriptions(s *listenerSuite) {
	for name, change := range map[string]func(*events.Subscription){
		"an event type of one word": func(u *events.Subscription) { u.EventType = "happened" },
		"a channel of another generation": func(u *events.Subscription) {
			u.Channel = events.ChannelName(pgtest.Generation+1, "")
		},
		"an event type without contract":    func(u *events.Subscription) { u.EventType = "worlds.suite.unknown" },
		"no channel":                        func(u *events.Subscription) { u.Channel = "" },
		"an unknown mode":                   func(u *events.Subscription) { u.Mode = "eventually" },
		"too large a batch":                 func(u *events.Subscription) { u.BatchSize = events.MaxBatchSize + 1 },
		"no handler":                        func(u *events.Subscription) { u.Primary.Handler = nil },
		"a handler name of another context": func(u *events.Subscription) { u.Primary.Name = "elsewhere.first" },
		"two handlers of one name":          func(u *events.Subscription) { u.CoHandlers = []events.Registration{u.Primary} },
		"an invalid retry policy": func(u *events.Subscription) {
			u.Primary.Retry = &events.RetryPolicy{MaxRetries: -1}
		},
	} {
		u := s.subscription(s.lineHandler(first))
		change(&u)
		if err := s.Worker.Listen(s.Context(), u); err == nil {
			s.Errorf("%s was not refused", name)
		}
	}
	listen := func(eventType string, handlers ...events.Registration) error {
		u := s.subscription(handlers...)
		u.EventType = eventType
		return s.Worker.Listen(s.Context(), u)
	}
	must(s, listen(suiteType, s.lineHandler(first), s.lineHandler(second)))
	for name, err := range map[string]error{
		"a second consumer of the event type": listen(suiteType, s.lineHandler(third)),
		"a handler whose name is taken":       listen(otherType, s.lineHandler(second)),
		"a co-handler whose name is taken":    listen(otherType, s.lineHandler(third), s.lineHandler(first)),
	} {
		if err == nil {
			s.Errorf("%s was not refused", name)
		}
	}
	s.start()
	if err := listen(otherType, s.lineHandler(third)); err == nil {
		s.Error("a subscription after the start was not refused")
	}
	s.awaitSettled(s.publish(suiteEvent(1))[0], eventstest.Delivered)
	s.wantLines(first+" 1", second+" 1")
}

func runsEveryHandler(s *listenerSuite) {
	var all []events.Envelope
	var want []string
	for i := range 20 {
		e := suiteEvent(i)
		if i%4 == 0 {
			e.EventType = otherType
			want = append(want, fmt.Sprint("worlds.suite_other ", i))
		} else {
			want = append(want, fmt.Sprint(first, " ", i), fmt.Sprint(second, " ", i), fmt.Sprint(third, " ", i))
		}
		all = append(all, e)
	}
	all = append(s.publish(all[:15]...), s.publish(all[15:]...)...)
	for _, e := range all {
		o := s.awaitSettled(e, eventstest.Delivered)
		handlers := []string{first, third, second}
		if e.EventType == otherType {
			handlers = []string{"worlds.suite_other"}
		}
		if !slices.Equal(o.HandledBy, handlers) || o.Attempts != 1 || o.LastError != "" || len(o.Failures) > 0 {
			s.Fatalf("handled by %q, want %q:\n%s", o.HandledBy, handlers, formatted(o))
		}
	}
	s.wantLines(want...)
}

func getsTheEvent(s *listenerSuite) {
	full := s.publish(fullEvent())[0]
	s.awaitSettled(full, eventstest.Delivered)
	if fault := difference(*s.got.Load(), stored(full)); fault != "" {
		s.Error(fault)
	}
}

func waitsUntilDue(s *listenerSuite) {
	due := time.Now().Add(time.Hour)
	later := s.publishWith([]events.PublishOption{events.AvailableAt(due)}, suiteEvent(1))[0]
	sooner := s.publishWith(
		[]events.PublishOption{events.AvailableAt(time.Now().Add(300 * time.Millisecond))}, suiteEvent(2))[0]
	s.awaitSettled(sooner, eventstest.Delivered)
	s.awaitSettled(s.publish(suiteEvent(3))[0], eventstest.Delivered)
	s.wantLines(first+" 2", first+" 3")
	if o := s.outcome(later); o.Status != eventstest.Pending || o.Attempts != 0 ||
		!o.AvailableAt.Equal(due.Truncate(time.Microsecond)) {
		s.Fatalf("the event that is due in an hour:\n%s", formatted(o))
	}
}

func settlesUnconsumed(s *listenerSuite) {
	unconsumed := suiteEvent(1)
	unconsumed.EventType = unconsumedType
	e := s.publish(unconsumed)[0]
	if o := s.outcome(e); o.Status != eventstest.Delivered || len(o.HandledBy) > 0 {
		s.Fatalf("the event:\n%s", formatted(o))
	}
}

func runsTargetOnly(s *listenerSuite) {
	for target, want := range map[events.Scope][]string{
		events.Platform: {first, third}, events.Worlds: {second}, "": {first, third, second},
	} {
		e := suiteEvent(1)
		e.Target = target
		if o := s.awaitSettled(s.publish(e)[0], eventstest.Delivered); !slices.Equal(o.HandledBy, want) {
			s.Errorf("target %q was handled by %q, want %q", target, o.HandledBy, want)
		}
	}
	s.wantLines(first+" 1", third+" 1", second+" 1", first+" 1", third+" 1", second+" 1")
}

func failsWithoutHandler(s *listenerSuite) {
	e := suiteEvent(1)
	e.Target = events.Worlds
	o := s.awaitSettled(s.publish(e)[0], eventstest.Failed)
	if !strings.Contains(o.LastError, events.ErrNoHandler.Error()) {
		s.Errorf("last_error is %q, want it to contain %v", o.LastError, events.ErrNoHandler)
	}
	s.wantAttempts(o, 1)
	s.wantLines()
}

func dedupsByKey(s *listenerSuite) {
	workspace := uuid.NullUUID{UUID: uuid.New(), Valid: true}
	keyed := func(n int, workspace uuid.NullUUID) events.Envelope {
		e := suiteEvent(n)
		e.IdempotencyKey, e.WorkspaceID = "key", workspace
		return e
	}
	var all []events.Envelope
	all = append(all, s.publish(keyed(1, uuid.NullUUID{}), keyed(1, uuid.NullUUID{}))...)
	all = append(all, s.publish(keyed(1, uuid.NullUUID{}))...)
	again := all[0]
	// two rows with one id, as a producer makes that retries after a lost reply
	again.OccurredAt = time.Now().Add(time.Second)
	must(s, s.Transact(s.Context(), func(publisherFor events.PublisherFor) error {
		return publisherFor().Publish(s.Context(), again)
	}))
	all = append(all, s.publish(keyed(2, workspace))...) // in another workspace it is another key
	for _, e := range all {
		s.awaitSettled(e, eventstest.Delivered)
	}
	all = append(all, s.publish(keyed(1, uuid.NullUUID{}))...)
	s.awaitSettled(all[len(all)-1], eventstest.Delivered)
	s.wantLines(first+" 1", second+" 1", third+" 1", first+" 2", second+" 2", third+" 2")
}

type batchHandler func(context.Context, []events.Envelope) error

func (f batchHandler) HandleBatch(ctx context.Context, batch []events.Envelope) error {
	return f(ctx, batch)
}

func handlesBatches(s *listenerSuite) {
	var mixed atomic.Bool
	var failed atomic.Int32
	batched := events.Registration{Name: first, Retry: fastRetry, Batch: func(tx events.Tx) events.BatchHandler {
		return batchHandler(func(ctx context.Context, batch []events.Envelope) error {
			fails := false
			for _, e := range batch {
				if e.WorkspaceID != batch[0].WorkspaceID {
					mixed.Store(true)
				}
				_, number, err := lineOf(first, e)
				if err := cmp.Or(err, s.writeLine(ctx, tx, first, e)); err != nil {
					return err
				}
				fails = fails || number == 13
			}
			if fails && failed.Add(1) <= 2 {
				return errOnPurpose
			}
			return nil
		})
	}}
	workspaces := []uuid.NullUUID{{}, {UUID: uuid.New(), Valid: true}, {UUID: uuid.New(), Valid: true}}
	var all []events.Envelope
	var want []string
	for n := range 30 {
		e := suiteEvent(n)
		e.WorkspaceID = workspaces[n%len(workspaces)]
		all = append(all, e)
		want = append(want, fmt.Sprint(first, " ", n))
	}
	s.publish(all...)
	s.start(s.subscription(batched))
	for _, e := range all {
		s.awaitSettled(e, eventstest.Delivered)
	}
	if mixed.Load() {
		s.Error("a batch has events of several workspaces")
	}
	s.wantLines(want...)
}

// callCounter counts calls by the line that each would write. It is safe for concurrent use.
type callCounter struct{ sync.Map }

func (c *callCounter) add(text string) int {
	n, _ := c.LoadOrStore(text, new(atomic.Int32))
	return int(n.(*atomic.Int32).Add(1))
}

func (c *callCounter) want(t testing.TB, want map[string]int) {
	t.Helper()
	got := make(map[string]int)
	c.Range(func(text, n any) bool { got[text.(string)] = int(n.(*atomic.Int32).Load()); return true })
	if !maps.Equal(got, want) {
		t.Errorf("the calls are %v, want %v", got, want)
	}
}

// attempt counts a call for an event. It returns err in the first times[n] calls for the event with the number n.
func (c *callCounter) attempt(name string, e events.Envelope, err error, times map[int64]int) error {
	text, number, lineErr := lineOf(name, e)
	if c.add(text) <= times[number] {
		return err
	}
	return lineErr
}

// failingHandler registers a handler that writes its line and returns the result of attempt.
func (s *listenerSuite) failingHandler(name string, err error, c *callCounter,
	times map[int64]int) events.Registration {
	return handler(name, func(ctx context.Context, tx events.Tx, e events.Envelope) error {
		return cmp.Or(s.writeLine(ctx, tx, name, e), c.attempt(name, e, err, times))
	})
}

// failingExecutor is failingHandler for leased work. A completion that comes with an error must not run.
func (s *listenerSuite) failingExecutor(name string, err error, c *callCounter,
	times map[int64]int) events.Registration {
	return executor(name, func(_ context.Context, e events.Envelope) (events.Completion, error) {
		return s.completion(name, e), c.attempt(name, e, err, times)
	})
}

// always is more calls than any event has.
const always = 1000

func isolatesHandlersThatActOutside(s *listenerSuite) {
	var c callCounter
	outside := s.failingHandler(first, errOnPurpose, &c, map[int64]int{5: 2})
	outside.ActsOutside, outside.OnReplay = "sends mail", events.ReplaySkip
	want := make(map[string]int)
	var all []events.Envelope
	for n := range 10 {
		all = append(all, suiteEvent(n))
		want[fmt.Sprint(first, " ", n)] = 1
	}
	want[first+" 5"] = 3
	s.publish(all...)
	s.start(s.subscription(outside))
	for _, e := range all {
		s.awaitSettled(e, eventstest.Delivered)
	}
	c.want(s, want)
}

func retriesOnlyFailedHandler(leased bool) func(*listenerSuite) {
	return func(s *listenerSuite) {
		var c callCounter
		fails, listen := s.failingHandler, s.subscription
		if leased {
			fails, listen = s.failingExecutor, s.leasedSubscription
		}
		s.start(listen(fails(first, errOnPurpose, &c, map[int64]int{1: 2, 3: always}),
			fails(second, errOnPurpose, &c, map[int64]int{2: 2})))
		for n := 1; n <= 2; n++ { // the primary handler, then the co-handler
			s.wantAttempts(s.awaitSettled(s.publish(suiteEvent(n))[0], eventstest.Delivered), 3)
		}
		o := s.awaitSettled(s.publish(suiteEvent(3))[0], eventstest.Failed)
		s.wantReason(o, first, errOnPurpose.Error())
		if !slices.Equal(o.HandledBy, []string{second}) || o.Failures[first].Failures != 4 || len(o.Failures) != 1 {
			s.Errorf("handled by %q, failures %+v, want %s and four failures of %s", o.HandledBy, o.Failures, second, first)
		}
		c.want(s, map[string]int{
			first + " 1": 3, second + " 1": 1, first + " 2": 1, second + " 2": 3, first + " 3": 4, second + " 3": 1,
		})
		s.wantLines(first+" 1", second+" 1", first+" 2", second+" 2", second+" 3")
	}
}

// wantReason checks that last_error contains the handler's name and the reason.
func (s *listenerSuite) wantReason(o eventstest.Outcome, handler, reason string) {
	s.Helper()
	if !strings.Contains(o.LastError, handler) || !strings.Contains(o.LastError, reason) {
		s.Errorf("last_error is %q, want it to contain %s and %q", o.LastError, handler, reason)
	}
}

func failuresOfEachKind(leased bool) func(*listenerSuite) {
	return func(s *listenerSuite) {
		ways := []struct {
			do       func(context.Context, events.Envelope) error
			reason   string
			attempts int
		}{
			{func(context.Context, events.Envelope) error {
				return fmt.Errorf("wrapped: %w", events.Terminal(errOnPurpose))
			}, errOnPurpose.Error(), 1},
			{func(_ context.Context, e events.Envelope) error {
				_, err := events.Decode[struct {
					N string `json:"n"`
				}](e)
				return err
			}, "payload of " + suiteType, 1},
			{func(context.Context, events.Envelope) error { panic("on purpose") }, "anic", 4},
			{func(context.Context, events.Envelope) error { runtime.Goexit(); return nil }, "Goexit", 4},
			{func(ctx context.Context, _ events.Envelope) error { <-ctx.Done(); return ctx.Err() },
				context.DeadlineExceeded.Error(), 4},
		}
		var c callCounter
		do := func(ctx context.Context, e events.Envelope) error {
			text, n, err := lineOf(first, e)
			if err != nil {
				return err
			}
			c.add(text)
			return ways[n].do(ctx, e)
		}
		fails := handler(first, func(ctx context.Context, tx events.Tx, e events.Envelope) error {
			return errors.Join(s.writeLine(ctx, tx, first, e), do(ctx, e))
		})
		if leased {
			fails = executor(first, func(ctx context.Context, e events.Envelope) (events.Completion, error) {
				return s.completion(first, e), do(ctx, e)
			})
		}
		fails.Timeout = 300 * time.Millisecond
		u := s.subscription(fails)
		if leased {
			u = s.leasedSubscription(fails)
		}
		s.start(u)
		want := map[string]int{}
		for n, way := range ways {
			o := s.awaitSettled(s.publish(suiteEvent(n))[0], eventstest.Failed)
			s.wantReason(o, first, way.reason)
			s.wantAttempts(o, way.attempts)
			want[fmt.Sprint(first, " ", n)] = way.attempts
		}
		c.want(s, want)
		s.wantLines()
	}
}

func leasedWork(s *listenerSuite) {
	running, finish := make(chan struct{}), make(chan struct{})
	s.start(s.leasedSubscription(executor(first, func(_ context.Context, e events.Envelope) (events.Completion, error) {
		running <- struct{}{}
		<-finish
		return s.completion(first, e), nil
	})))
	e := s.publish(suiteEvent(1))[0]
	<-running
	if o := s.outcome(e); o.Status != eventstest.InFlight {
		s.Errorf("while the work runs:\n%s", formatted(o))
	}
	s.wantLines()
	close(finish)
	o := s.awaitSettled(e, eventstest.Delivered)
	s.wantAttempts(o, 1)
	if !slices.Equal(o.HandledBy, []string{first}) {
		s.Errorf("handled by %q", o.HandledBy)
	}
	s.wantLines(first + " 1")
}
