// Package ledger publishes events under load and remembers, outside the database, what became of each
// transaction: committed for certain, aborted for certain, or unknown because the answer to COMMIT was
// lost. Afterwards it compares that with what the workers made of it.
//
// What it demands at quiet: a transaction is there as a whole or not at all, as it ended; each of its
// events is delivered (or failed, where the test says so); each handler has left its effect exactly
// once, counted in faults.effects, which has no constraint that could hide a second time; and
// core.event_handled has a row for each handler and event, and no other.
//
// Of leased work it also demands that whatever was executed more than once outside the database is explained.
// Executors keep a Diary in a file, triggers a record of every lease that was committed; VerifyLeases holds
// both against what the rows tell of themselves.
//
// An event is known by its key: unique in the ledger, a field of the payload.
package ledger
