// Package events holds platform's event handlers: each parses one event's payload into
// its own struct and does what the event means to platform, in the transaction that claims the
// event. Package internal/app wires them to the listener.
package events
