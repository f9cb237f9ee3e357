// Package publish is the producer's side: it publishes events in the caller's transaction.
//
//   - publisher.go: checks envelopes and passes them to core.outbox_publish_event or outbox_publish_rows
//   - unit_of_work.go: runs a business transaction as a context's role, with a publisher
//   - registration.go: makes a generation and the contracts of a build known to the database
//   - payload_rules.go: the rules that SQL holds a payload to, from a contract's schema
//   - failures.go: lets a context read the failures of the events it published
package publish
