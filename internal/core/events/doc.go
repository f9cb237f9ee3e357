// Package events is the port of the event substrate: what bounded contexts use to tell each other
// what happened, without importing each other.
//
// It owns the envelope, the publisher, listener and handler contracts, the retry policy, the
// registry of event contracts, channel names, and the refusals of a bad event. Adapters live in
// infrastructure/<technology>; package internal/app wires them.
//
// Promises, whichever adapter carries them:
//
//   - An event is visible to consumers if and only if its business transaction committed.
//   - Every handler of the event ends as handled, or the event is failed and says why.
//   - What a handler writes through the Tx it is given happens exactly once per handler and
//     idempotency key within the dedup window of 60 days. Effects elsewhere happen at least once.
//   - Order is best effort and not promised. A handler that cares compares versions.
//   - A worker handles only the events of its deployment generation.
//
// The way of an event:
//
//	publish ──> pending ──claim──> handlers ──all handled──> delivered
//	               ^                  │
//	               └──retry (delay)───┤ transient, retries left
//	                                  └ every unhandled handler parked ──> failed
//
// Work too slow for a transaction is leased instead: the event is in_flight while an [Executor] runs, and is settled
// together with what its [Completion] writes.
//
// Every context may import this package; it imports none of ours. Only tx.go knows the driver.
package events
