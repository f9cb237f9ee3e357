package postgres

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"time"

	"spectral/internal/core/events"
)

// abandonAfter is how long a handler may go on after its context is done before it is left
// behind, together with its connection.
const abandonAfter = 5 * time.Second

// errAbandoned is the failure of a handler that did not return in time. Its goroutine may still
// be running and using the transaction, which is lost.
var errAbandoned = errors.New("handler did not return after its timeout and was abandoned")

// overran reports whether err is that of a call that its own timeout cut off: nobody else did, and it is no verdict of the
// call's own. The error itself often says no more than that a statement was cancelled.
func overran(ctx context.Context, err error) bool {
	_, verdict := errors.AsType[*events.TerminalError](err)
	_, refused := errors.AsType[*events.PayloadError](err)
	return err != nil && !verdict && !refused && errors.Is(ctx.Err(), context.DeadlineExceeded)
}

// late says of the error of a call with a transaction that it overran, if it did.
func late(ctx context.Context, timeout time.Duration, err error) error {
	if !overran(ctx, err) {
		return err
	}
	return fmt.Errorf("not done within its timeout of %s; does it wait for a lock? %w", timeout, err)
}

// runGuarded calls a handler in its own goroutine, where neither a panic nor Goexit takes
// the worker down. With errAbandoned that goroutine is still running.
func runGuarded(ctx context.Context, timeout time.Duration, call func(context.Context) error) error {
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
			// recover answers nil for Goexit, and for nothing else since panic(nil) became an error
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
	grace := time.NewTimer(abandonAfter)
	defer grace.Stop()
	select {
	case <-over:
		return result
	case <-grace.C:
		return errAbandoned
	}
}
