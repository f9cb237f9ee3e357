// Package journal registers the worker and writes down which rows it holds, so that other workers can recover them when
// it dies (docs/decisions/0008).
//
//   - journal.go: the worker's registration, the rows that each runner holds, and the crash slot
package journal
