// Package dispatch handles events in row-locked mode: one transaction claims rows, deduplicates, runs the handlers,
// settles and commits (docs/decisions/0004). Package lease uses its transactions and decisions for leased work.
//
// An event passes through these files in this order:
//
//   - dispatcher.go: runs as many claims at once as the consumer may have
//   - wake_signal.go, batch_sizer.go, watermark.go: when a claim begins, how many rows it takes, from where it looks
//   - claim.go: one claim, and whether its rows run as a batch or one by one
//   - batch.go: the handlers of many rows, all or none
//   - single.go: the handlers of one row, each under a savepoint
//   - call.go: the call of a handler, with its timeout; a panic does not end the worker
//   - decision.go: what becomes of an event whose handlers failed
//   - settle.go: writes what became of rows
//
// The others hold what these share:
//
//   - consumer.go: what both modes know of a subscription, and what they log
//   - row.go: a claimed row
//   - tx.go: the transaction
//   - dedup.go: the dedup keys of a batch
package dispatch
