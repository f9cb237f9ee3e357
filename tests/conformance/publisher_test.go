package conformance_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"spectral/internal/core/events"
	"spectral/internal/core/events/eventstest"
)

// publisherUnderTest publishes into an outbox without consumers, which is empty at first.
type publisherUnderTest interface {
	// Transact calls work in one transaction of worlds and commits it if work returns nil. After an error, which it
	// returns, a panic or runtime.Goexit it rolls back.
	Transact(ctx context.Context, work func(events.PublisherFor) error) error
	// Publications returns the committed events.
	Publications(ctx context.Context) ([]eventstest.Publication, error)
}

type publisherSuite struct {
	*testing.T
	publisherUnderTest
}

// publisherTests are the promises of package events about publishers.
var publisherTests = map[string]func(*publisherSuite){
	"an event is visible if its transaction commits, and not before": visibleOnceCommitted,
	"an event is not visible if its transaction is rolled back":      invisibleIfRolledBack,
	"all events of a call are published or none":                     allOrNone,
	"a bad event is refused and the transaction stays usable":        refusals,
	"an event type past its deadline is refused":                     refusesDeprecated,
	"a duplicate of id and time is refused":                          refusesDuplicateID,
	"zero fields are filled":                                         fillsZeroFields,
	"all ten fields arrive":                                          tenFieldsArrive,
	"later changes of the arguments are not published":               copiesItsArguments,
	"any number of events is published":                              publishesAnyNumber,
	"events become due when they are scheduled":                      dueWhenScheduled,
}

func TestRecorderKeepsThePublishersPromises(t *testing.T) {
	t.Parallel()
	contracts, err := events.NewContracts(suiteContracts()...)
	must(t, err)
	for name, test := range publisherTests {
		t.Run(name, func(t *testing.T) {
			test(&publisherSuite{t, recorder{eventstest.NewRecorder(contracts, time.Now)}})
		})
	}
}

func TestPostgresKeepsThePublishersPromises(t *testing.T) {
	t.Parallel()
	d := newDatabase(t)
	for name, test := range publisherTests {
		d.run(name, func(d *database) { test(&publisherSuite{d.T, d}) })
	}
}

type recorder struct{ recorder *eventstest.Recorder }

func (r recorder) Transact(_ context.Context, work func(events.PublisherFor) error) error {
	return r.recorder.Transact(work)
}

func (r recorder) Publications(context.Context) ([]eventstest.Publication, error) {
	return r.recorder.Publications(), nil
}

func (s *publisherSuite) commit(envelopes ...events.Envelope) {
	s.Helper()
	must(s, s.Transact(s.Context(), func(publisherFor events.PublisherFor) error {
		return publisherFor().Publish(s.Context(), envelopes...)
	}))
}

func (s *publisherSuite) published() []eventstest.Publication {
	s.Helper()
	all, err := s.Publications(s.Context())
	must(s, err)
	return all
}

func (s *publisherSuite) want(numbers ...int64) {
	s.Helper()
	want := make(map[int64]int)
	for _, n := range numbers {
		want[n]++
	}
	got := make(map[int64]int)
	for _, p := range s.published() {
		payload, err := events.Decode[suitePayload](p.Envelope)
		must(s, err)
		got[payload.N]++
	}
	if !reflect.DeepEqual(got, want) {
		s.Fatalf("the committed events are %v (number: count), want %v", got, want)
	}
}

func wantRefusal(t testing.TB, err error, code events.Code, field string) {
	t.Helper()
	if r, ok := errors.AsType[*events.Refusal](err); !ok || r.Code != code || r.Field != field || r.Reason == "" {
		t.Errorf("%v, want a refusal with the code %s of the field %s", err, code, field)
	}
}

func visibleOnceCommitted(s *publisherSuite) {
	err := s.Transact(s.Context(), func(publisherFor events.PublisherFor) error {
		publisher := publisherFor()
		for n := range 2 {
			if err := publisher.Publish(s.Context(), suiteEvent(n)); err != nil {
				return err
			}
			s.want()
		}
		return nil
	})
	must(s, err)
	s.want(0, 1)
}

func refusals(s *publisherSuite) {
	err := s.Transact(s.Context(), func(publisherFor events.PublisherFor) error {
		publisher := publisherFor()
		for _, c := range refusedEvents {
			e := suiteEvent(1)
			c.change(&e)
			wantRefusal(s, publisher.Publish(s.Context(), e), c.code, c.field)
		}
		return publisher.Publish(s.Context(), suiteEvent(3))
	})
	must(s, err)
	s.want(3)
}

var errOnPurpose = errors.New("on purpose")

func invisibleIfRolledBack(s *publisherSuite) {
	for name, end := range map[string]func() error{
		"an error":       func() error { return errOnPurpose },
		"a panic":        func() error { panic(errOnPurpose) },
		"runtime.Goexit": func() error { runtime.Goexit(); return nil },
	} {
		result := make(chan error, 1)
		go func() {
			err := fmt.Errorf("the transaction was committed after %s", name)
			defer func() { _ = recover(); result <- err }()
			err = s.Transact(s.Context(), func(publisherFor events.PublisherFor) error {
				if err := publisherFor().Publish(s.Context(), suiteEvent(1)); err != nil {
					s.Errorf("publish: %v", err)
				}
				return end()
			})
		}()
		if err := <-result; err == nil {
			s.Errorf("after %s the transaction was committed", name)
		}
		s.want()
	}
}

func allOrNone(s *publisherSuite) {
	bad := suiteEvent(2)
	bad.EventType = "worlds.suite.unregistered"
	for _, envelopes := range [][]events.Envelope{
		{bad, suiteEvent(1)}, {suiteEvent(1), bad}, {suiteEvent(1), bad, suiteEvent(3)},
	} {
		err := s.Transact(s.Context(), func(publisherFor events.PublisherFor) error {
			wantRefusal(s, publisherFor().Publish(s.Context(), envelopes...), events.CodeUnregistered, "event_type")
			return nil
		})
		must(s, err)
		s.want()
	}
}

// refusedEvents changes events so that they are refused. tests/sql tests every rule of every field.
var refusedEvents = []struct {
	code   events.Code
	field  string
	change func(*events.Envelope)
}{
	{events.CodeEventType, "event_type", func(e *events.Envelope) { e.EventType = "happened" }},
	{events.CodePayloadObject, "payload", func(e *events.Envelope) { e.Payload = json.RawMessage(`{"n": 1,}`) }},
	{events.CodeIdempotencyKey, "idempotency_key", func(e *events.Envelope) { e.IdempotencyKey = " " }},
	{events.CodeUnregistered, "event_type", func(e *events.Envelope) { e.EventType = "worlds.suite.unregistered" }},
	{events.CodeUnregistered, "event_type", func(e *events.Envelope) { e.EventVersion = 3 }},
	{events.CodeSourceMismatch, "source", func(e *events.Envelope) { e.Source = events.Platform }},
}

func refusesDeprecated(s *publisherSuite) {
	e := suiteEvent(1)
	e.EventType = deprecatedType
	err := s.Transact(s.Context(), func(publisherFor events.PublisherFor) error {
		return publisherFor().Publish(s.Context(), e)
	})
	wantRefusal(s, err, events.CodeDeprecated, "event_type")
	s.want()
}

func refusesDuplicateID(s *publisherSuite) {
	e := suiteEvent(1)
	e.EventID, e.OccurredAt = uuid.New(), time.Now()
	publish := func(envelopes ...events.Envelope) {
		s.Helper()
		err := s.Transact(s.Context(), func(publisherFor events.PublisherFor) error {
			return publisherFor().Publish(s.Context(), envelopes...)
		})
		wantRefusal(s, err, events.CodeEventID, "event_id")
	}
	publish(e, e)
	s.want()
	s.commit(e)
	publish(e)
	s.want(1)
	e.OccurredAt = e.OccurredAt.Add(time.Second) // as a producer does that retries after a lost reply
	s.commit(e)
	s.want(1, 1)
}

func fillsZeroFields(s *publisherSuite) {
	before := time.Now().Add(-time.Minute) // the server's clock may differ
	s.commit(suiteEvent(1), suiteEvent(2))
	after := time.Now().Add(time.Minute)
	ids := make(map[uuid.UUID]bool)
	for _, p := range s.published() {
		e := p.Envelope
		ids[e.EventID] = true
		if e.EventID == uuid.Nil || e.IdempotencyKey != e.EventID.String() {
			s.Errorf("id %s has the key %q, want the id", e.EventID, e.IdempotencyKey)
		}
		if e.OccurredAt.Before(before) || e.OccurredAt.After(after) {
			s.Errorf("occurred_at is %s, want the time of the call", e.OccurredAt)
		}
		if e.Target != "" || e.WorkspaceID.Valid || e.TraceContext != "" {
			s.Errorf("target %q, workspace %v, trace %q, want zero values", e.Target, e.WorkspaceID, e.TraceContext)
		}
		if p.AvailableAt.After(after) {
			s.Errorf("becomes due at %s, want at once", p.AvailableAt)
		}
	}
	if len(ids) != 2 {
		s.Errorf("%d ids of two events", len(ids))
	}
}

func fullEvent() events.Envelope {
	return events.Envelope{
		EventID: uuid.New(), EventType: suiteType, EventVersion: 2,
		OccurredAt: time.Date(2024, 2, 29, 23, 59, 59, 123456789, time.FixedZone("", -5*3600)),
		Source:     events.Worlds, Target: events.Platform, WorkspaceID: uuid.NullUUID{UUID: uuid.New(), Valid: true},
		Payload: json.RawMessage(`{"n": 7, "data": {"b": [1, null, true]}}`), IdempotencyKey: "a key: “quoted” \\ 漢",
		TraceContext: "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
	}
}

// stored returns e as handlers receive it.
func stored(e events.Envelope) events.Envelope {
	e.OccurredAt = e.OccurredAt.UTC().Truncate(time.Microsecond)
	if e.IdempotencyKey == "" {
		e.IdempotencyKey = e.EventID.String()
	} else {
		e.IdempotencyKey = "worlds:" + e.WorkspaceID.UUID.String() + ":" + e.IdempotencyKey
	}
	return e
}

func difference(got, want events.Envelope) string {
	var faults []string
	if !sameJSON(got.Payload, want.Payload) {
		faults = append(faults, fmt.Sprintf("payload is %s, want %s", got.Payload, want.Payload))
	}
	if !got.OccurredAt.Equal(want.OccurredAt) {
		faults = append(faults, fmt.Sprintf("occurred_at is %s, want %s", got.OccurredAt, want.OccurredAt))
	}
	got.Payload, got.OccurredAt = want.Payload, want.OccurredAt
	if !reflect.DeepEqual(got, want) {
		faults = append(faults, fmt.Sprintf("the event is\n%+v, want\n%+v", got, want))
	}
	return strings.Join(faults, "; ")
}

// sameJSON compares documents, and numbers by their text.
func sameJSON(a, b []byte) bool {
	var values [2]any
	for i, text := range [][]byte{a, b} {
		decoder := json.NewDecoder(bytes.NewReader(text))
		decoder.UseNumber()
		if err := decoder.Decode(&values[i]); err != nil {
			return false
		}
	}
	return reflect.DeepEqual(values[0], values[1])
}

func tenFieldsArrive(s *publisherSuite) {
	e := fullEvent()
	s.commit(e)
	s.want(7)
	if fault := difference(s.published()[0].Envelope, stored(e)); fault != "" {
		s.Error(fault)
	}
}

func copiesItsArguments(s *publisherSuite) {
	given := []events.Envelope{suiteEvent(1), fullEvent()}
	before := []events.Envelope{suiteEvent(1), given[1]}
	err := s.Transact(s.Context(), func(publisherFor events.PublisherFor) error {
		if err := publisherFor().Publish(s.Context(), given...); err != nil {
			return err
		}
		if !reflect.DeepEqual(given, before) {
			s.Errorf("the caller's envelopes were changed to %+v", given)
		}
		copy(given[0].Payload, `{"n": 8}`)
		given[1].EventVersion = 1
		return nil
	})
	must(s, err)
	s.want(1, 7)
}

func publishesAnyNumber(s *publisherSuite) {
	const many = 2100
	all := make([]events.Envelope, 0, many)
	var numbers []int64
	for n := range many {
		all = append(all, suiteEvent(n))
		numbers = append(numbers, int64(n))
	}
	s.commit()
	s.want()
	s.commit(all[0])
	s.commit(all[1:20]...)
	s.want(numbers[:20]...)
	s.commit(all[20:]...)
	s.want(numbers...)
}

func dueWhenScheduled(s *publisherSuite) {
	later := time.Now().Add(48 * time.Hour)
	err := s.Transact(s.Context(), func(publisherFor events.PublisherFor) error {
		return errors.Join(publisherFor(events.AvailableAt(later)).Publish(s.Context(), suiteEvent(1), suiteEvent(2)),
			publisherFor(events.AvailableAt(time.Now().Add(-time.Hour))).Publish(s.Context(), suiteEvent(3)),
			publisherFor().Publish(s.Context(), suiteEvent(4)))
	})
	must(s, err)
	s.want(1, 2, 3, 4)
	for _, p := range s.published() {
		payload, err := events.Decode[suitePayload](p.Envelope)
		must(s, err)
		if want := later.Truncate(time.Microsecond); payload.N <= 2 && !p.AvailableAt.Equal(want) {
			s.Errorf("event %d becomes due at %s, want %s", payload.N, p.AvailableAt, want)
		}
		if payload.N > 2 && p.AvailableAt.After(time.Now().Add(time.Minute)) {
			s.Errorf("event %d becomes due at %s, want at once", payload.N, p.AvailableAt)
		}
	}
}
