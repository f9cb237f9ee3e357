// Package proxy is a TCP proxy in front of Postgres that fails on request.
//
// It forwards whole messages of the protocol (a type byte, a length, a body; the first of a client
// has no type), so that a fault can be put between any two of them:
//
//	client ──> [Client filter] ──> server      a Mode rules both directions of every connection,
//	client <── [Server filter] <── server      a Filter decides message by message
//
// Connections are in clear: URLs that lead through the proxy say sslmode=disable. A port stays the same for
// the proxy's life, whatever becomes of the server behind it.
package proxy
