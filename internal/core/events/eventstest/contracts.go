package eventstest

import (
	"encoding/json"
	"time"

	"spectral/internal/core/events"
)

// The events of the suites.
const (
	suiteType      = "worlds.suite.happened"
	otherType      = "worlds.suite.followed"
	unheardType    = "worlds.suite.unheard"
	deprecatedType = "worlds.suite.deprecated"
	platformType   = "platform.suite.happened"
)

// suitePayload is the payload of them all.
type suitePayload struct {
	// N numbers the events of a test.
	N int64 `json:"n"`
	// Text is any text.
	Text string `json:"text,omitempty"`
	// Data is any object.
	Data json.RawMessage `json:"data,omitempty"`
}

// SuiteContracts are the contracts of the events that [TestPublisher] and [TestListener] publish. What is under test
// knows them, and others if it likes.
func SuiteContracts() []events.Contract {
	example := suitePayload{N: 1, Text: "text", Data: json.RawMessage(`{"any": true}`)}
	contract := func(eventType string, version int, source events.Scope) events.Contract {
		return events.Contract{Type: eventType, Version: version, Source: source, Payload: example, ContentClass: events.Operational}
	}
	unheard := contract(unheardType, 1, events.Worlds)
	unheard.Unconsumed = true
	deprecated := contract(deprecatedType, 1, events.Worlds)
	deprecated.Deprecation = &events.Deprecation{Deadline: time.Date(2020, 1, 1, 0, 0, 0, 0, time.UTC), Successor: suiteType}
	return []events.Contract{
		contract(suiteType, 1, events.Worlds), contract(suiteType, 2, events.Worlds), contract(otherType, 1, events.Worlds),
		unheard, deprecated, contract(platformType, 1, events.Platform),
	}
}

// suiteEvent is number n of a test's events.
func suiteEvent(n int) events.Envelope {
	e, err := events.NewEnvelope(SuiteContracts()[0], suitePayload{N: int64(n)})
	if err != nil {
		panic(err) // a struct of ours
	}
	return e
}
