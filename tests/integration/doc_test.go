// Package integration_test proves the flow, the wake-up and the dispatch on a real Postgres: events
// published, woken for, handled once, retried and failed.
package integration_test
