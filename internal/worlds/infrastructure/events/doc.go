// Package events holds worlds' event handlers: each encodes what one event means to worlds,
// parses the payload into a struct of its own, and is built for the transaction that claims the
// event. Package internal/app wires them to the listener.
package events
