package dispatch

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"time"

	"spectral/internal/core/events"
	"spectral/internal/core/events/infrastructure/postgres/pgtx"
)

// errAbandoned is the failure of a handler that did not return in time. Its goroutine may still be running and using
// the transaction, which is lost.
var errAbandoned = errors.New("handler did not return after its timeout and was abandoned")

// Call calls a handler in a goroutine, so that neither a panic nor Goexit ends the worker, with a context that is done
// after timeout. It returns AbandonAfter later at the latest, with errAbandoned.
func Call(ctx context.Context, timeout time.Duration, call func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	over := make(chan struct{})
	result := errors.New("unset")
	go func() {
		defer close(over)
		defer cancel()
		finished := false
		defer func() {
			if finished {
				return
			}
			// recover returns nil only for Goexit, since panic(nil) became an error
			result = &events.PanicError{Value: recover(), Stack: debug.Stack()}
		}()
		result = call(ctx)
		finished = true
	}()
	select {
	case <-over:
		return result
	case <-ctx.Done():
	}
	grace := time.NewTimer(pgtx.AbandonAfter)
	defer grace.Stop()
	select {
	case <-over:
		return result
	case <-grace.C:
		return errAbandoned
	}
}

// TimedOut reports whether err is the result of the call's own timeout: not of a stop, and not what the handler says of
// the event. Such an error often says no more than that a statement was cancelled.
func TimedOut(ctx context.Context, err error) bool {
	_, final := errors.AsType[*events.TerminalError](err)
	_, payload := errors.AsType[*events.PayloadError](err)
	return err != nil && !final && !payload && errors.Is(ctx.Err(), context.DeadlineExceeded)
}

// ExplainTimeout adds to the error of a call with a transaction that the call timed out, if it did.
func ExplainTimeout(ctx context.Context, timeout time.Duration, err error) error {
	if !TimedOut(ctx, err) {
		return err
	}
	return fmt.Errorf("not done within its timeout of %s; does it wait for a lock? %w", timeout, err)
}
