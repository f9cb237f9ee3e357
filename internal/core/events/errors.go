package events

import (
	"errors"
	"fmt"
)

// PayloadError is a payload that a consumer cannot decode or finds invalid. Terminal.
type PayloadError struct {
	EventType string
	Err       error
}

func (e *PayloadError) Error() string { return fmt.Sprintf("payload of %s: %v", e.EventType, e.Err) }
func (e *PayloadError) Unwrap() error { return e.Err }

// TerminalError is a failure that no retry will mend (seed: TerminalHandlerError).
type TerminalError struct{ Err error }

func (e *TerminalError) Error() string { return e.Err.Error() }
func (e *TerminalError) Unwrap() error { return e.Err }

// Terminal marks err as terminal: the handler is not retried. Terminal(nil) is nil.
func Terminal(err error) error {
	if err == nil {
		return nil
	}
	return &TerminalError{Err: err}
}

// PanicError is a panic or runtime.Goexit in a handler, which counts as a failure like any other.
type PanicError struct {
	Value any // what was passed to panic; nil for Goexit
	Stack []byte
}

func (e *PanicError) Error() string {
	if e.Value == nil {
		return "handler called runtime.Goexit"
	}
	return fmt.Sprintf("handler panicked: %v", e.Value)
}

// ErrLeaseLost is the cause ([context.Cause]) with which leased work is cut off whose lease was lost: it ran
// out before it could be renewed, and somebody else may have the event by now. Nothing that this
// execution returns is kept.
var ErrLeaseLost = errors.New("the lease of this event was lost: somebody else may be working on it")

// ErrStopping is the cause with which work is cut off by a worker that stops. What is returned without
// an error is still kept; otherwise the event is given back, and no attempt counted.
var ErrStopping = errors.New("the worker is stopping")

// ErrNoHandler is the failure of an event whose target context has no handler for it.
var ErrNoHandler = errors.New("no handler of the target context is registered for this event type")
