package lease

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"spectral/internal/core/events"
	"spectral/internal/core/events/infrastructure/postgres/dispatch"
	"spectral/internal/core/events/infrastructure/postgres/pgtx"
)

// execution runs the handlers of one lease.
type execution struct {
	consumer  *dispatch.Consumer
	completer *completer
	lease     *lease
}

// run runs the handlers, and reports whether the lease remains to be released.
func (e *execution) run(ctx context.Context) (remains bool) {
	err := e.work(ctx)
	if e.lease.probe != "" { // its handler was not called
		e.lease.probed <- &dispatch.Failure{}
	}
	switch {
	case errors.Is(err, errLost):
		e.consumer.Log.WarnContext(ctx, "lease lost, or event settled already: this result is dropped",
			pgtx.LogEventID, e.lease.row.Envelope.EventID, pgtx.LogAttempts, e.lease.row.Attempts+1)
	case err != nil && !errors.Is(err, errNoTime):
		e.consumer.Log.WarnContext(ctx, "event could not be settled: it runs again when its lease runs out",
			e.lease.logError(err)...)
	}
	return errors.Is(err, errNoTime)
}

// work runs the handlers one after the other, and settles each as it is done. The cause of ctx is ErrLeaseLost or
// ErrStopping.
func (e *execution) work(ctx context.Context) error {
	row := e.lease.row
	todo, unhandled, waiting, failures := e.plan()
	for i, r := range todo {
		e.recordRunning(ctx, r)
		started := time.Now()
		completion, err := e.execute(ctx, r)
		took := time.Since(started)
		if err != nil && ctx.Err() != nil {
			return e.interrupted(ctx, append(unhandled, todo[i:]...), failures)
		}
		if err == nil {
			last := i == len(todo)-1 && len(failures) == 0 && len(unhandled) == 0 && len(waiting) == 0
			err = e.completer.settle(ctx, &result{lease: e.lease, handler: r, completion: completion, delivered: last})
			if errors.Is(err, errLost) || errors.Is(err, errNoTime) {
				return err
			}
		}
		var failed *dispatch.Failure
		probed := false
		if err != nil {
			f := e.consumer.ClassifyAndNote(ctx, err, row.Failures[r.Name].Failures).Took(started, took)
			failed = &f
		}
		if r.Name == e.lease.probe {
			e.lease.probed <- failed
			e.lease.probe, probed = "", true
		} else {
			e.consumer.Observed(r, row.Envelope.EventID, failed)
			e.consumer.OpenTripped(ctx)
		}
		switch {
		case failed != nil && probed && failed.Transient(): // a probe costs no attempt
			waiting = append(waiting, r)
		case failed != nil:
			failures[r.Name] = *failed
			unhandled = append(unhandled, r)
		}
		e.consumer.LogHandled(ctx, r, &row, time.Now().Add(-took), failures) // without the wait for the completer
	}
	switch {
	case len(waiting) > 0 && len(failures) == 0:
		return e.completer.settle(ctx, &result{lease: e.lease, waiting: waiting[0].Name})
	case len(failures) > 0 || len(unhandled) > 0:
		d := dispatch.Decide(row.Failures, append(unhandled, waiting...), failures)
		if len(failures) == 0 {
			d.Counted = len(todo) > 0 // every handler that ran has handled it
		}
		for _, r := range unhandled {
			if d.Failed && d.Classes[r.Name] == "" { // it failed for good earlier
				d.Classes[r.Name] = row.Failures[r.Name].Class
			}
		}
		return e.completer.settle(ctx, &result{lease: e.lease, decision: &d})
	case len(todo) > 0:
		return nil // delivered with the last handler
	}
	return e.completer.settle(ctx, &result{lease: e.lease, delivered: true})
}

// plan returns the handlers to run, those that failed for good earlier, those whose breakers are open, and what is
// wrong with the row itself.
func (e *execution) plan() (todo, unhandled, waiting []events.Registration, failures map[string]dispatch.Failure) {
	handlers, failures := e.consumer.HandlersFor(e.lease.row)
	open, _ := e.consumer.ReadBreakers(e.lease.row.Breakers, e.lease.probe)
	for _, r := range handlers {
		switch {
		case slices.Contains(e.lease.handled, r.Name):
		case e.lease.row.Failures[r.Name].Parked:
			unhandled = append(unhandled, r)
		case slices.Contains(open, r.Name):
			waiting = append(waiting, r)
		default:
			todo = append(todo, r)
		}
	}
	return todo, unhandled, waiting, failures
}

// recordRunning records which of several handlers runs next, so that a crash is charged to it; and that one begins that
// acts outside, which a replay must know.
func (e *execution) recordRunning(ctx context.Context, r events.Registration) {
	if len(e.consumer.Handlers) == 1 && r.ActsOutside == "" {
		return
	}
	held, err := renew(ctx, e.consumer, []*lease{e.lease}, r.Name)
	if holds, known := held[e.lease.row.Token]; err == nil && known && !holds {
		e.lease.cancel(events.ErrLeaseLost)
	}
}

// execute runs one handler, outside any transaction.
func (e *execution) execute(ctx context.Context, r events.Registration) (events.Completion, error) {
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	envelope := e.lease.row.Envelope
	ctx = events.WithDelivery(ctx, e.lease.row.Delivery())
	var completion events.Completion
	err := dispatch.Call(ctx, r.CallTimeout(), func(ctx context.Context) (err error) {
		err = e.consumer.Observe(ctx, r, []events.Envelope{envelope}, func(ctx context.Context) (err error) {
			completion, err = r.Executor.Execute(ctx, envelope)
			return err
		})
		if dispatch.TimedOut(ctx, err) {
			err = fmt.Errorf("not done within its timeout of %s: %w", r.CallTimeout(), err)
		}
		return err
	})
	e.consumer.LogPanic(ctx, r, []events.Envelope{envelope}, err)
	if err != nil {
		return nil, err // an abandoned handler may still write completion
	}
	return completion, nil
}

// interrupted ends the work on a lease that was cancelled. Failures are those of handlers that had ended before.
func (e *execution) interrupted(ctx context.Context, unhandled []events.Registration,
	failures map[string]dispatch.Failure) error {
	switch {
	case errors.Is(context.Cause(ctx), events.ErrLeaseLost):
		return errLost
	case len(failures) == 0:
		return errNoTime
	}
	e.consumer.ForcedStop.Store(true)
	d := dispatch.Decide(e.lease.row.Failures, unhandled, failures)
	return e.completer.settle(ctx, &result{lease: e.lease, decision: &d})
}
