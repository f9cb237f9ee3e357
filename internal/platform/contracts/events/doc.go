// Package events holds the payloads of the events that platform publishes: the only definition of
// their form. A version may only get new optional fields; a breaking change is a new event type. Consumers parse their
// own structs. Only internal/app and the contract tests import this package.
package events
