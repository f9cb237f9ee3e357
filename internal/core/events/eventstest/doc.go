// Package eventstest helps to test what publishes and what consumes events.
//
// For a use case: [Recorder] is an event publisher without a database, which refuses what a real one does.
// [RequirePublished] and [RequireNotPublished] look at what was published, to a Recorder or to a database's [Outbox].
//
// For consumers at a real database: [Start] runs a listener for as long as the test, [Drain] waits until its outbox is
// quiet, and [RequireDelivered] looks at their outcomes. Docs/testing.md shows all of it in use.
//
// Only tests import this package. It knows the database by core.outbox and core.event_handled, and no driver.
package eventstest
