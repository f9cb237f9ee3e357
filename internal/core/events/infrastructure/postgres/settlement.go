package postgres

import (
	"time"

	"spectral/internal/core/events"
)

// Outcome is what a dispatch made of a row.
type Outcome string

// The outcomes of a dispatch.
const (
	Delivered Outcome = "delivered"
	Retried   Outcome = "retried"  // pending again, due after Delay
	Failed    Outcome = "failed"   // a dead letter
	Released  Outcome = "released" // leased, and given back: pending again, nothing counted
)

// Settlement is the committed outcome of one row's dispatch.
type Settlement struct {
	Envelope  events.Envelope
	Outcome   Outcome
	Attempts  int           // counted dispatches in the current cycle, this one included
	LastError string        // Class: handler: message, a line for each handler that failed
	Delay     time.Duration // until a retried row is due again

	classes map[string]string // of the errors in this dispatch, by handler
}
