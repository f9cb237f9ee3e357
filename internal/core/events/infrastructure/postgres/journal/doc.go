// Package journal registers the worker and writes down which rows it holds, so that other workers can recover them when
// it dies (docs/decisions/0008).
//
//   - journal.go: the worker's registration, and the connections that serve it
//   - entry.go: the rows that one runner holds
//   - crash_slot.go: the one row with crashes that a process runs at a time
package journal
