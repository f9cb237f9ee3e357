// Package pgtx begins the adapter's transactions and holds what all its packages share.
//
//   - begin.go: a transaction under a role, with settings that no default of the login or the database changes
//   - tx.go: that transaction, whose statements can be queued for the next round trip
//   - config.go: the configuration of the pool and of direct connections
//   - types.go: how ids and arrays are sent
//   - url.go: why a URL is refused, and the keywords that are ignored
//   - handler_tx.go: the transaction that is passed to handlers and units of work
//   - statement.go: how a handler's statement is treated
//   - errors.go: refusals of our SQL functions, and the class of an error
//   - limits.go: every time limit of the adapter, waiting, and the delays between tries
//   - log.go: the keys of log entries
package pgtx
