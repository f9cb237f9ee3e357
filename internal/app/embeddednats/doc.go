// Package embeddednats runs a NATS server with JetStream in this process, for `workers demo --relay jetstream`,
// `workers run --embedded --relay jetstream` and the tests.
//
//   - server.go: starts and stops a server
//
// The server listens on 127.0.0.1 only and asks for a random password. It has its data in a new folder, and deletes it
// when it is stopped. Only internal/app and tests may import it. It imports nothing else of ours.
package embeddednats
