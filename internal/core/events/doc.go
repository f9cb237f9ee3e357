// Package events has the ports by which bounded contexts tell each other what happened, without importing each other.
// Adapters are in infrastructure/<technology>; package internal/app wires them.
//
//   - envelope.go: an event, with its metadata
//   - publisher.go, listener.go, handler.go: publishing, subscribing and handling
//   - delivery.go: what a handler's context says of its call
//   - tx.go: the transaction that handlers and use cases are given
//   - retry.go, failures.go: when a failed handler runs again, and what a context reads of its failed events
//   - contract.go, schema.go: event contracts, and the JSON schema of their payloads
//   - validate.go, refusal.go, errors.go: what is refused, and how an event's errors are told apart
//   - channel.go: the names of notification channels
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
