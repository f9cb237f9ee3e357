// Package retention says how long the rows of the substrate are kept, and sweeps what is past it (seed D13, DESIGN section 3).
//
//	                 its time is over                the grace is over
//	settled event ────────────────────> tombstoned ────────────────────> deleted
//	handled key   <────────────────────
//	                 its event may come back
//
// The policies are data here and in core.retention_policies, which decides; a test compares them. The sweeping itself is
// SQL, which does no more than the stored policies allow, whoever calls it (core.retention_sweep). A [Sweeper] is the duty of a
// worker that calls it: many short transactions with pauses between them. Every worker has one, and who leads is
// decided anew in each transaction.
//
// Promises: an event that is pending or in flight is never swept; a handled key is kept for as long as an event may come back
// that it is about; whoever publishes, claims or settles never waits for a sweep.
//
// Packages internal/app and this one's adapters import it.
package retention
