// Package proxy is a TCP proxy in front of Postgres that causes network faults. It forwards whole protocol messages
// (a type byte, a length, a body; a client's first message has no type), so a test can place a fault between any two:
//
//	client ──> filter ──> server      a Mode applies to both directions of every connection,
//	client <── filter <── server      a Filter decides message by message
//
// It does not speak TLS: URLs that lead through it need sslmode=disable. Its port stays the same when the server
// restarts on another one.
//
//   - proxy.go: the listener, modes and filters
//   - link.go: one connection, message by message
package proxy
