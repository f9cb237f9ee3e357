package eventstest_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"spectral/internal/core/events"
	"spectral/internal/core/events/eventstest"
)

// failing notes how a test fails, and goes on.
type failing struct {
	testing.TB
	message string
}

type failed struct{}

func (f *failing) Helper() {}

func (f *failing) Fatal(args ...any) {
	f.message = fmt.Sprint(args...)
	panic(failed{})
}

func (f *failing) Fatalf(format string, args ...any) {
	f.message = fmt.Sprintf(format, args...)
	panic(failed{})
}

// failureOf is the message with which do fails a test, or empty.
func failureOf(t testing.TB, do func(*failing)) string {
	t.Helper()
	f := &failing{TB: t}
	func() {
		defer func() {
			if r := recover(); r != nil && r != any(failed{}) {
				panic(r)
			}
		}()
		do(f)
	}()
	return f.message
}

type numbered struct {
	N    int    `json:"n"`
	Text string `json:"text,omitempty"`
}

func is(n int) func(numbered) bool { return func(p numbered) bool { return p.N == n } }

func says(text string) func(numbered) bool { return func(p numbered) bool { return p.Text == text } }

const happenedType = "worlds.suite.happened"

func TestRequirePublished(t *testing.T) {
	t.Parallel()
	r := newRecorder(t)
	long := strings.Repeat("long ", 100)
	must(t, r.Publish(t.Context(), happened(t, `{"n": 1, "text": "one"}`), happened(t, `{"n": 2, "text": "`+long+`"}`),
		happened(t, `{"n": 2}`)))
	if e := eventstest.RequirePublished(t, r, happenedType, is(1),
		says("one")); string(e.Payload) != `{"n": 1, "text": "one"}` {
		t.Errorf("found %s", e.Payload)
	}
	eventstest.RequireNotPublished(t, r, happenedType, is(3))
	eventstest.RequireNotPublished(t, r, happenedType, is(1), says("two"))
	eventstest.RequireNotPublished[any](t, r, "worlds.suite.followed")

	list := "\npublished:\n  worlds.suite.happened v1 {\"n\": 1, \"text\": \"one\"}\n  worlds.suite.happened v1 {\"n\": " +
		"2, \"text\": \"long long "
	type misread struct {
		N string `json:"n"`
	}
	for _, c := range []struct {
		name, want string
		do         func(*failing)
	}{
		{"another type", "no event worlds.suite.followed was published" + list,
			func(t *failing) { eventstest.RequirePublished[any](t, r, "worlds.suite.followed") }},
		{"no match", "of 3 events worlds.suite.happened, none matches" + list,
			func(t *failing) { eventstest.RequirePublished(t, r, happenedType, is(3)) }},
		{"one of two matches", "of 3 events worlds.suite.happened, none matches" + list,
			func(t *failing) { eventstest.RequirePublished(t, r, happenedType, is(1), says("two")) }},
		{"several", "3 events worlds.suite.happened were published, want one" + list,
			func(t *failing) { eventstest.RequirePublished[any](t, r, happenedType) }},
		{"several that match", "2 events worlds.suite.happened that match were published, want one" + list,
			func(t *failing) { eventstest.RequirePublished(t, r, happenedType, is(2)) }},
		{"undecodable", "of 3 events worlds.suite.happened, 3 cannot be decoded into eventstest_test.misread " +
			"and the others do not match: " +
			"payload of worlds.suite.happened: json: cannot unmarshal number",
			func(t *failing) { eventstest.RequirePublished[misread](t, r, happenedType) }},
		{"present", "3 events worlds.suite.happened were published, want none" + list,
			func(t *failing) { eventstest.RequireNotPublished[any](t, r, happenedType) }},
		{"present and matching", "1 events worlds.suite.happened that match were published, want none" + list,
			func(t *failing) { eventstest.RequireNotPublished(t, r, happenedType, is(1)) }},
		{"undecodable and perhaps present",
			"3 events worlds.suite.happened were published that cannot be decoded into eventstest_test.misread: ",
			func(t *failing) { eventstest.RequireNotPublished[misread](t, r, happenedType) }},
		{"unreadable", "look for events worlds.suite.happened: unreadable",
			func(t *failing) { eventstest.RequireNotPublished[any](t, unreadable{}, happenedType) }},
	} {
		got := failureOf(t, c.do)
		if !strings.HasPrefix(got, c.want) {
			t.Errorf("%s: failed with %q, want %q", c.name, got, c.want)
		}
		for line := range strings.Lines(got) {
			if len(line) > 300 {
				t.Errorf("%s: a line of %d bytes", c.name, len(line))
			}
		}
	}
	if got := failureOf(t,
		func(t *failing) {
			eventstest.RequirePublished[any](t, newRecorder(t), happenedType)
		}); got != "no event worlds.suite.happened was published\nnothing was published" {
		t.Errorf("of nothing: %q", got)
	}
}

func TestALongListIsCut(t *testing.T) {
	t.Parallel()
	r := newRecorder(t)
	for range 33 {
		must(t, r.Publish(t.Context(), happened(t, `{"n": 1}`)))
	}
	if got := failureOf(t,
		func(t *failing) { eventstest.RequirePublished[any](t, r, happenedType) }); !strings.HasSuffix(got,
		"\n  and 3 more") {
		t.Errorf("%s", got)
	}
}

type unreadable struct{}

func (unreadable) Events(context.Context) ([]events.Envelope, error) {
	return nil, errors.New("unreadable")
}
