// Package retention says how long rows are kept, and sweeps the rows that are past their retention.
//
//	              after the active days            after the days of grace
//	settled event ───────────────────> tombstoned ───────────────────────> deleted
//	handled key   <───────────────────
//	              an event has the key again
//
// The files:
//
//   - store.go: the kinds of rows, their policies, the steps of a sweep, and what a sweep needs of the database
//   - sweeper.go: one sweep, and the Sweeper that starts sweeps in a worker
//
// The policies are rows of core.retention_policies. A [Step] is a SQL function that does no more than the stored policy
// allows, for every caller (core.retention_sweep). A sweep calls each step page by page, in short transactions with
// pauses. The database gives each sweep to one worker (docs/decisions/0016).
//
// Promises: a pending or in-flight event is never swept. A handled key is kept while its event may be handled again.
// Publishing, claiming and settling never wait for a sweep.
//
// Package internal/app and the adapters below this package import it.
package retention
