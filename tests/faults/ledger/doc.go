// Package ledger publishes events under load and records, outside the database, how each transaction ended:
// committed, aborted, or unknown because the reply to COMMIT was lost. [Ledger.Verify] compares that record with the
// database once no event is pending:
//
//   - a transaction's events are all there or none is, as it ended;
//   - each event is delivered, or failed where the test says so;
//   - each handler has written its effect exactly once to faults.effects, which has no unique constraint;
//   - core.event_handled has one row for each handler and event, and no other.
//
// Leased work also has effects outside the database. Executors write an [ExecutionLog] to a file, and triggers record
// every committed lease. [Ledger.VerifyLeases] compares both with the rows, and fails if work ran twice without a
// reason.
//
// An event is identified by its key, a field of the payload that is unique in the ledger.
//
//   - kind.go: the kinds of events, with their contracts and handlers
//   - publish.go: publishing under load, and how each transaction ended
//   - verify.go: comparing rows, effects and dedup keys with the record
//   - execution_log.go: what executors did outside the database
//   - leases.go: comparing leases and executions
package ledger
