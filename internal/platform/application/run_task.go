package application

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/google/uuid"

	"spectral/internal/core/events"
	"spectral/internal/platform/domain"
)

// Conclusion writes the result of a run, in the transaction that settles its event.
type Conclusion func(ctx context.Context, tasks Tasks) error

// RunTask runs a dispatched task step by step. Each step is recorded in its own transaction before the next begins, so
// a later run continues after it, and may take StepLimit. Between steps the task may be cancelled. Safe for concurrent
// use.
type RunTask struct {
	Transact  UnitOfWork[Tasks]
	Executors Executors
	StepLimit time.Duration
	Now       func() time.Time
}

// writeTimeout bounds a write of a run. recordWithin bounds one that begins after the run was told to stop, and is less
// than the worker waits for it.
const (
	writeTimeout = 30 * time.Second
	recordWithin = 3 * time.Second
)

// Run runs a task for the event dispatch until the task ends or waits for a person. The conclusion is nil if there was
// nothing to do or another run has the task. The error is [ErrNoTask] for an unknown task. After any other error the
// run must be retried.
func (r *RunTask) Run(ctx context.Context, workspace uuid.NullUUID, id, dispatch uuid.UUID) (Conclusion, error) {
	run := &run{RunTask: r, workspace: workspace, id: id}
	task, err := run.write(ctx, func(t *domain.AgentTask) error {
		if t.Start(dispatch, r.Now()) {
			run.number = t.Run
		}
		return nil
	})
	if err != nil || run.number == 0 {
		return nil, err
	}
	if task.Tries > domain.MaxTaskTries {
		last := fmt.Sprintf("its workers died or were stopped: see event %s", dispatch)
		if task.LastError != "" {
			last = "the latest error: " + task.LastError
		}
		return run.fail(fmt.Sprintf("given up after %d tries; %s", domain.MaxTaskTries, last)), nil
	}
	executor, known := r.Executors[task.Executor]
	if !known {
		return run.fail(fmt.Sprintf("no worker of this build has an executor %q: deploy one that does, then dispatch the "+
			"task again", task.Executor)), nil
	}
	conclusion, err := run.steps(ctx, executor, task)
	if errors.Is(err, domain.ErrSuperseded) {
		return nil, nil // another run continues the task
	}
	return conclusion, err
}

// run is one try at a task.
type run struct {
	*RunTask
	workspace uuid.NullUUID
	id        uuid.UUID
	number    int64
}

// steps runs the steps that are not done. The error may be [domain.ErrSuperseded].
func (r *run) steps(ctx context.Context, executor Executor, task *domain.AgentTask) (Conclusion, error) {
	for {
		if task.Cancellation != nil {
			return r.conclude(func(t *domain.AgentTask) error { return t.Stop(r.number, r.Now()) }), nil
		}
		if ctx.Err() != nil {
			return r.interrupted(ctx, task, context.Cause(ctx))
		}
		advance, err := r.advance(ctx, executor, task)
		if err != nil {
			return r.interrupted(ctx, task, err)
		}
		do := func(t *domain.AgentTask) error { return t.Succeed(r.number, advance.result, r.Now()) }
		switch {
		case advance.gate != "":
			do = func(t *domain.AgentTask) error {
				return t.AwaitApproval(r.number, advance.gate, advance.question, r.Now())
			}
		case advance.step != "":
			do = func(t *domain.AgentTask) error {
				return t.RecordStep(r.number, advance.step, advance.result, r.Now())
			}
		}
		if err := r.check(task, advance, do); err != nil {
			return r.interrupted(ctx, task, events.Terminal(err))
		}
		if advance.step == "" {
			return r.conclude(do), nil
		}
		if task, err = r.write(ctx, do); err != nil {
			return nil, err
		}
	}
}

// advance runs one step of the executor.
func (r *run) advance(ctx context.Context, executor Executor, task *domain.AgentTask) (Advance, error) {
	limited, cancel := context.WithTimeout(ctx, r.StepLimit)
	defer cancel()
	advance, err := executor.Advance(limited, Work{
		Task: task.ID, Conversation: task.Conversation, Workspace: r.workspace, Input: task.Input, Run: r.number, task: task,
	})
	if err != nil && limited.Err() != nil && ctx.Err() == nil {
		err = fmt.Errorf("the step did not end within %s: %w", r.StepLimit, err)
	}
	return advance, executorError(err)
}

// executorError returns an executor's error as its text, terminal or not. It hides the error's types, which tasks and
// events would mistake for their own.
func executorError(err error) error {
	if err == nil {
		return nil
	}
	text := errors.New(cmp.Or(strings.TrimSpace(err.Error()), "the executor failed without a message"))
	if terminal(err) {
		return events.Terminal(text)
	}
	return text
}

// check returns an error for an outcome that cannot be stored. Another run would not help.
func (r *run) check(task *domain.AgentTask, advance Advance, do func(*domain.AgentTask) error) error {
	if advance.result != nil {
		if err := events.ValidatePayload(advance.result); err != nil {
			return err
		}
	}
	tried := *task
	return do(&tried)
}

// interrupted ends a run after err: an error of a step, or the reason why the run must stop.
func (r *run) interrupted(ctx context.Context, task *domain.AgentTask, err error) (Conclusion, error) {
	cause := context.Cause(ctx)
	switch {
	case errors.Is(cause, events.ErrLeaseLost):
		return nil, cause // write nothing: another worker may have the task
	case errors.Is(cause, events.ErrStopping):
		_, requeueErr := r.write(ctx, func(t *domain.AgentTask) error { return t.Requeue(r.number, "", r.Now()) })
		return nil, errors.Join(cause, requeueErr)
	case terminal(err) || task.Exhausted():
		return r.fail(err.Error()), nil
	}
	_, requeueErr := r.write(ctx, func(t *domain.AgentTask) error { return t.Requeue(r.number, err.Error(), r.Now()) })
	return nil, errors.Join(err, requeueErr)
}

func terminal(err error) bool {
	_, is := errors.AsType[*events.TerminalError](err)
	return is
}

// write changes the task in a separate transaction and returns its new state. It writes even when the run must stop,
// but not after the lease is lost.
func (r *run) write(ctx context.Context, do func(*domain.AgentTask) error) (task *domain.AgentTask, err error) {
	if cause := context.Cause(ctx); errors.Is(cause, events.ErrLeaseLost) {
		return nil, cause
	}
	limit := writeTimeout
	if ctx.Err() != nil {
		limit = recordWithin
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), limit)
	defer cancel()
	err = r.Transact(ctx, r.workspace, func(tasks Tasks, _ events.EventPublisher) error {
		task, err = change(ctx, tasks, r.workspace, r.id, do)
		return err
	})
	return task, err
}

// conclude returns a Conclusion that makes a change which ends the run.
func (r *run) conclude(do func(*domain.AgentTask) error) Conclusion {
	return func(ctx context.Context, tasks Tasks) error {
		_, err := change(ctx, tasks, r.workspace, r.id, do)
		if errors.Is(err, domain.ErrSuperseded) {
			return nil // another run ends the task
		}
		return err
	}
}

func (r *run) fail(reason string) Conclusion {
	return r.conclude(func(t *domain.AgentTask) error { return t.Fail(r.number, reason, r.Now()) })
}
