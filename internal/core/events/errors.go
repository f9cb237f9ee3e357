package events

import (
	"errors"
	"fmt"
)

// faults are what is wrong with a declaration.
type faults []error

// require adds a fault unless ok.
func (f *faults) require(ok bool, format string, args ...any) {
	if !ok {
		*f = append(*f, fmt.Errorf(format, args...))
	}
}

// of returns the faults as one error of what was declared, or nil.
func (f faults) of(format string, args ...any) error {
	if len(f) == 0 {
		return nil
	}
	return fmt.Errorf("%s: %w", fmt.Sprintf(format, args...), errors.Join(f...))
}

// PayloadError is a payload that a consumer cannot decode or finds invalid. Terminal.
type PayloadError struct {
	EventType string
	Err       error
}

func (e *PayloadError) Error() string {
	if e.Err == nil {
		return "payload of " + e.EventType
	}
	return fmt.Sprintf("payload of %s: %v", e.EventType, e.Err)
}

// Unwrap returns Err.
func (e *PayloadError) Unwrap() error { return e.Err }

// TerminalError is a failure that no retry can fix.
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

// ErrLeaseLost is the cause ([context.Cause]) of cancelled leased work whose lease ran out before it could be renewed.
// Another worker may have the event, so nothing that this execution returns is kept.
var ErrLeaseLost = errors.New("the lease of this event was lost: another worker may be running it")

// ErrStopping is the cause of work that a stopping worker cancels. A result without an error is still kept; otherwise
// the event is released and no attempt counted.
var ErrStopping = errors.New("the worker is stopping")

// ErrNoHandler is the failure of an event whose target context has no handler for it.
var ErrNoHandler = errors.New("no handler of the target context is registered for this event type")
