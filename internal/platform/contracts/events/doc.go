// Package events holds the payloads of the events that platform publishes: the single source of
// truth for their shape. Within a version fields are only ever added; a breaking change is a new
// event type. Consumers parse their own structs and do not import this package; internal/app and
// the contract tests do.
package events
