// Package eventstest helps to test code that publishes and consumes events.
//
//   - recorder.go: an event publisher without a database
//   - source.go: reads the published events and their outcomes from a database
//   - require.go: fails a test unless certain events were published or delivered
//   - drain.go: runs a worker for as long as a test, and waits until the outbox has nothing left to do
//
// A use case is tested with a [Recorder], which refuses what a real publisher does. [RequirePublished] and
// [RequireNotPublished] check what was published, to a Recorder or to a database's [Outbox].
//
// Consumers are tested on a real database: [Start] runs a worker, [Drain] waits for it, and [RequireDelivered] checks
// the outcomes. docs/testing.md shows all of them in use.
//
// Only tests import this package. It knows the database by core.outbox and core.event_handled, and no driver.
package eventstest
