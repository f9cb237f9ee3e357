package eventstest

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"spectral/internal/core/events"
)

// RequirePublished finds the one event of eventType whose payload decodes into P and for which all of matches say so,
// and returns it. None or several fail the test, with a list of what was published.
func RequirePublished[P any](t testing.TB, from Source, eventType string, matches ...func(P) bool) events.Envelope {
	t.Helper()
	s := seek(t, from, eventType, matches)
	switch {
	case len(s.found) == 1:
		return s.found[0]
	case len(s.found) > 1:
		t.Fatalf("%d events %s%s were published, want one\n%s", len(s.found), eventType, s.matching, s.list)
	case s.ofType == 0:
		t.Fatalf("no event %s was published\n%s", eventType, s.list)
	case len(s.faults) > 0:
		t.Fatalf("of %d events %s, %d cannot be decoded into %T and the others do not match: %v\n%s",
			s.ofType, eventType, len(s.faults), *new(P), s.faults[0], s.list)
	default:
		t.Fatalf("of %d events %s, none matches\n%s", s.ofType, eventType, s.list)
	}
	panic("unreachable")
}

// RequireNotPublished fails the test if there is an event of eventType whose payload decodes into P and for which all
// of matches say so. It also fails for one that cannot be decoded where that leaves open whether it matches.
func RequireNotPublished[P any](t testing.TB, from Source, eventType string, matches ...func(P) bool) {
	t.Helper()
	s := seek(t, from, eventType, matches)
	switch {
	case len(s.found) > 0:
		t.Fatalf("%d events %s%s were published, want none\n%s", len(s.found), eventType, s.matching, s.list)
	case len(s.faults) > 0:
		t.Fatalf("%d events %s were published that cannot be decoded into %T: %v\n%s",
			len(s.faults), eventType, *new(P), s.faults[0], s.list)
	}
}

// sought is what was looked for and found.
type sought struct {
	found    []events.Envelope
	ofType   int
	faults   []error // of payloads of the type that do not decode
	matching string  // says that not all events of the type were wanted
	list     string  // of what was published
}

func seek[P any](t testing.TB, from Source, eventType string, matches []func(P) bool) sought {
	t.Helper()
	published, err := from.Events(t.Context())
	if err != nil {
		t.Fatalf("look for events %s: %v", eventType, err)
	}
	s := sought{list: listed(published)}
	if len(matches) > 0 {
		s.matching = " that match"
	}
	for _, e := range published {
		if e.EventType != eventType {
			continue
		}
		s.ofType++
		payload, err := events.Decode[P](e)
		if err != nil {
			s.faults = append(s.faults, err)
			continue
		}
		if !slices.ContainsFunc(matches, func(match func(P) bool) bool { return !match(payload) }) {
			s.found = append(s.found, e)
		}
	}
	return s
}

// What a failed test shows of events.
const (
	maxListed     = 30
	maxShownBytes = 200
)

// listed lists events with their payloads, shortened.
func listed(published []events.Envelope) string {
	if len(published) == 0 {
		return "nothing was published"
	}
	var b strings.Builder
	b.WriteString("published:")
	for i, e := range published {
		if i == maxListed {
			fmt.Fprintf(&b, "\n  and %d more", len(published)-i)
			break
		}
		fmt.Fprintf(&b, "\n  %s v%d %s", e.EventType, e.EventVersion, shortened(string(e.Payload)))
	}
	return b.String()
}

// shortened is s on one line, of maxShownBytes at most.
func shortened(s string) string {
	s = strings.Join(strings.Fields(s), " ")
	if len(s) <= maxShownBytes {
		return s
	}
	return strings.ToValidUTF8(s[:maxShownBytes], "") + "…"
}
