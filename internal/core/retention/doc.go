// Package retention says how long rows are kept, and sweeps those that are past it.
//
//	              after the kept days              after the days of grace
//	settled event ───────────────────> tombstoned ───────────────────────> deleted
//	handled key   <───────────────────
//	              an event carries it again
//
// The policies are rows of core.retention_policies. Each [Step] of a sweep is a SQL function that does no more than the
// stored policies allow, from every caller (core.retention_sweep). A sweep calls each step page by page, in short
// transactions with pauses between them. A [Sweeper] makes a worker sweep; the database gives each sweep to one of the
// workers.
//
// Promises: an event that is pending or in flight is never swept; a handled key is kept while an event may come back
// that it is about; publishing, claiming and settling never wait for a sweep.
//
// Packages internal/app and this one's adapters import it.
package retention
