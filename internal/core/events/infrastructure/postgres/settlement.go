package postgres

import (
	"time"

	"spectral/internal/core/events"
)

// Status is what a dispatch made of a row.
type Status string

// The outcomes of a dispatch.
const (
	Delivered Status = "delivered"
	Retried   Status = "retried" // pending again, due after Delay
	Failed    Status = "failed"  // a dead letter
)

// Settlement is the committed outcome of one row's dispatch.
type Settlement struct {
	Envelope  events.Envelope
	Status    Status
	Attempts  int           // counted dispatches in the current cycle, this one included
	LastError string        // Class: handler: message, a line for each handler that failed
	Delay     time.Duration // until a retried row is due again
}
