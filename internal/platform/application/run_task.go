package application

import (
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

const (
	// recordTries is how often a write of a run is tried, because the step that it records may have been expensive.
	recordTries = 3
	recordPause = 500 * time.Millisecond // before the second try; doubled for the third
	// writeTimeout bounds a write and its tries. recordWithin bounds one that begins after the run was told to stop, and
	// is less than the worker waits for it.
	writeTimeout = 30 * time.Second
	recordWithin = 3 * time.Second
)

// errNothingToDo means that the task waits for no run of this event.
var errNothingToDo = errors.New("the task waits for no worker")

// Run runs a task for the event dispatch until the task ends or waits for a person. The conclusion is nil if there was
// nothing to do or another run has the task. The error is [ErrNoTask] for an unknown task. After any other error the
// run must be retried.
func (r *RunTask) Run(ctx context.Context, workspace uuid.NullUUID, id, dispatch uuid.UUID) (Conclusion, error) {
	run := &run{RunTask: r, workspace: workspace, id: id}
	task, err := run.write(ctx, func(t *domain.AgentTask) error {
		if run.number > 0 { // an earlier try began the run, but its answer was lost: that costs no try
			if err := t.Requeue(run.number, "", r.Now()); err != nil && !errors.Is(err, domain.ErrSuperseded) {
				return err
			}
		}
		if !t.Start(dispatch, r.Now()) {
			return errNothingToDo
		}
		run.number = t.Run
		return nil
	})
	if errors.Is(err, errNothingToDo) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	if task.Tries > domain.MaxTaskTries {
		return run.fail(fmt.Sprintf("given up after %d tries; %s", domain.MaxTaskTries, lastFailure(task, dispatch))), nil
	}
	executor, known := r.Executors[task.Executor]
	if !known {
		return run.fail(fmt.Sprintf("no worker of this build has an executor %q: deploy one that does, then retry the task",
			task.Executor)), nil
	}
	conclusion, err := run.steps(ctx, executor, task)
	if errors.Is(err, domain.ErrSuperseded) {
		return nil, nil // another run continues the task
	}
	return conclusion, err
}

// lastFailure describes why a task used up its tries.
func lastFailure(task *domain.AgentTask, dispatch uuid.UUID) string {
	if task.LastError != "" {
		return "the latest error: " + task.LastError
	}
	return fmt.Sprintf("its workers died or were stopped: see event %s", dispatch)
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
		change := func(t *domain.AgentTask) error { return t.Succeed(r.number, advance.result, r.Now()) }
		switch {
		case advance.gate != "":
			change = func(t *domain.AgentTask) error {
				return t.AwaitApproval(r.number, advance.gate, advance.question, r.Now())
			}
		case advance.step != "":
			change = func(t *domain.AgentTask) error {
				return t.RecordStep(r.number, advance.step, advance.result, r.Now())
			}
		}
		if err := r.check(task, advance, change); err != nil {
			return r.interrupted(ctx, task, events.Terminal(err))
		}
		if advance.step == "" {
			return r.conclude(change), nil
		}
		if task, err = r.write(ctx, change); err != nil {
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
	switch {
	case err != nil && limited.Err() != nil && ctx.Err() == nil:
		err = executorError(fmt.Errorf("the step did not end within %s: %w", r.StepLimit, err))
	case err != nil:
		err = executorError(err)
	}
	return advance, err
}

// executorError returns an executor's error as its text, terminal or not. It hides the error's types, which tasks and
// events would mistake for their own.
func executorError(err error) error {
	text := strings.TrimSpace(err.Error())
	if text == "" {
		text = "the executor failed without a message"
	}
	if terminal(err) {
		return events.Terminal(errors.New(text))
	}
	return errors.New(text)
}

// check returns an error for an outcome that cannot be stored. A retry of the write would not help.
func (r *run) check(task *domain.AgentTask, advance Advance, change func(*domain.AgentTask) error) error {
	if advance.result != nil {
		if err := events.ValidatePayload(advance.result); err != nil {
			return err
		}
	}
	if _, done := task.StepResult(advance.step); done {
		return fmt.Errorf("step %s is done already", advance.step) // it would repeat the step for ever
	}
	tried := *task
	return change(&tried)
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
func (r *run) write(ctx context.Context, change func(*domain.AgentTask) error) (task *domain.AgentTask, err error) {
	if cause := context.Cause(ctx); errors.Is(cause, events.ErrLeaseLost) {
		return nil, cause
	}
	limit := writeTimeout
	if ctx.Err() != nil {
		limit = recordWithin
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), limit)
	defer cancel()
	pause := recordPause
	for try := 1; ; try++ {
		err = r.Transact(ctx, r.workspace, func(tasks Tasks, _ events.EventPublisher) error {
			if task, err = tasks.Lock(ctx, r.workspace, r.id); err != nil {
				return err
			}
			if err := change(task); err != nil {
				return err
			}
			return tasks.Save(ctx, r.workspace, task)
		})
		if err == nil || try == recordTries || errors.Is(err, errNothingToDo) ||
			errors.Is(err, domain.ErrSuperseded) || errors.Is(err, ErrNoTask) {
			return task, err
		}
		select {
		case <-time.After(pause):
			pause *= 2
		case <-ctx.Done():
			return task, err
		}
	}
}

// conclude returns a Conclusion that makes a change which ends the run.
func (r *run) conclude(change func(*domain.AgentTask) error) Conclusion {
	return func(ctx context.Context, tasks Tasks) error {
		task, err := tasks.Lock(ctx, r.workspace, r.id)
		if err != nil {
			return err
		}
		if err := change(task); errors.Is(err, domain.ErrSuperseded) {
			return nil // another run ends the task
		} else if err != nil {
			return err
		}
		return tasks.Save(ctx, r.workspace, task)
	}
}

func (r *run) fail(reason string) Conclusion {
	return r.conclude(func(t *domain.AgentTask) error { return t.Fail(r.number, reason, r.Now()) })
}
