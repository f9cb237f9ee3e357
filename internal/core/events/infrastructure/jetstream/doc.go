// Package jetstream is the relay on NATS JetStream: it sends claimed events to a stream, and hands what comes back to
// the handlers of package dispatch (docs/decisions/0021). Postgres has every event until it is settled, so the stream
// may lose anything.
//
//   - config.go: where the broker is, and how to connect
//   - limits.go: sizes and times
//   - relay.go: the connection, and what the broker needs: one stream, and one durable consumer for each handler
//   - send.go: sends events and waits for the broker's acks
//   - receive.go: fetches messages of a handler
//   - message.go: events as messages, which are CloudEvents 1.0 in the binary mode of their NATS binding
//   - compare.go: reads a copy of everything that is sent, for a comparison
package jetstream
