// Package dispatch handles events in row-locked mode: one transaction claims rows, deduplicates, runs the handlers,
// settles and commits (docs/decisions/0004). Package lease uses its transactions and decisions for leased work.
//
// An event passes through these files in this order:
//
//   - dispatcher.go: runs as many claims at once as the consumer may have
//   - batch_sizer.go, watermark.go: how many rows a claim takes, and from where it looks
//   - claim.go: one claim; its rows run as a batch, all or none, or one by one
//   - single.go: the handlers of one row, each under a savepoint
//   - failed_attempt.go: what is kept of a call that failed, and which others look the same
//   - decision.go: what becomes of an event whose handlers failed
//   - settle.go: writes what became of rows
//
// The others hold what these share:
//
//   - relay.go: sends claimed rows to a broker, and handles them when they come back
//   - breaker.go: handlers that are not called for a while, because too many events have failed
//   - isolate.go: gives up rows that cannot be read or written
//   - outage.go: waiting for a server that cannot do the work of a consumer
//   - consumer.go: what both modes know of a subscription, when it is woken and stopped, and what it logs
//   - row.go: a claimed row, and the dedup keys of a batch
//   - tx.go: the transaction, and calls of handlers, with their timeout; a panic does not end the worker
package dispatch
