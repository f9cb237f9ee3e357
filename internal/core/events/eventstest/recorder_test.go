package eventstest_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"spectral/internal/core/events"
	"spectral/internal/core/events/eventstest"
)

func contracts(t testing.TB) *events.Contracts {
	t.Helper()
	happened := events.Contract{Type: happenedType, Version: 1, Source: events.Worlds, Payload: numbered{},
		ContentClass: events.Operational}
	deprecated := happened
	deprecated.Type = "worlds.suite.deprecated"
	deprecated.Deprecation = &events.Deprecation{Deadline: time.Date(2020, 1, 1, 0, 0, 0, 0, time.UTC),
		Successor: happenedType}
	all, err := events.NewContracts(happened, deprecated)
	must(t, err)
	return all
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func newRecorder(t testing.TB) *eventstest.Recorder {
	t.Helper()
	return eventstest.NewRecorder(contracts(t), time.Now)
}

func TestRecorderReturnsCopies(t *testing.T) {
	t.Parallel()
	r := newRecorder(t)
	must(t, r.Publish(t.Context(), happened(t, `{"n": 1}`)))
	copy(r.Published()[0].Payload, `{"n": 2}`)
	if got := string(r.Published()[0].Payload); got != `{"n": 1}` {
		t.Fatalf("recorded is now %s", got)
	}
}

func TestRecorderIsSafeForConcurrentUse(t *testing.T) {
	t.Parallel()
	r := newRecorder(t)
	const each = 50
	done := make(chan error)
	for range 4 {
		go func() {
			var errs []error
			for range each {
				errs = append(errs, r.Publish(t.Context(), happened(t, `{"n": 1}`)))
				errs = append(errs, r.Transact(func(publisherFor events.PublisherFor) error {
					return publisherFor().Publish(t.Context(), happened(t, `{"n": 2}`))
				}))
				r.Published()
			}
			done <- errors.Join(errs...)
		}()
	}
	for range 4 {
		must(t, <-done)
	}
	if n := len(r.Published()); n != 4*2*each {
		t.Fatalf("%d events are recorded, want %d", n, 4*2*each)
	}
}

func TestRecorderGoesByItsClockAndContext(t *testing.T) {
	t.Parallel()
	at := time.Date(2019, 6, 1, 12, 0, 0, 1999, time.UTC) // before the deadline of worlds.suite.deprecated
	r := eventstest.NewRecorder(contracts(t), func() time.Time { return at })
	e := happened(t, `{"n": 1}`)
	e.EventType = "worlds.suite.deprecated"
	must(t, r.Publish(t.Context(), e))
	if got := r.Published()[0].OccurredAt; !got.Equal(at.Truncate(time.Microsecond)) {
		t.Fatalf("occurred at %s", got)
	}
	over, cancel := context.WithCancel(t.Context())
	cancel()
	if err := r.Publish(over, e); !errors.Is(err, context.Canceled) || len(r.Published()) != 1 {
		t.Fatalf("%d events, %v", len(r.Published()), err)
	}
}

func happened(t testing.TB, payload string) events.Envelope {
	t.Helper()
	return events.Envelope{EventType: "worlds.suite.happened", EventVersion: 1, Source: events.Worlds,
		Payload: []byte(payload)}
}
