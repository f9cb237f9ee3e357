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

// Conclusion writes what a run came to, in the transaction that settles its event.
type Conclusion func(ctx context.Context, tasks Tasks) error

// RunTask does the work of a dispatched task, step by step. Each step is recorded in a transaction of its own before
// the next begins, so that whoever takes the task up later goes on after it; before each, the task may be cancelled.
// Safe for concurrent use.
type RunTask struct {
	transact  UnitOfWork[Tasks]
	executors Executors
	stepLimit time.Duration
	now       func() time.Time
}

// NewRunTask composes the use case. A step is cut off after stepLimit.
func NewRunTask(transact UnitOfWork[Tasks], executors Executors, stepLimit time.Duration, now func() time.Time) *RunTask {
	return &RunTask{transact: transact, executors: executors, stepLimit: stepLimit, now: now}
}

const (
	// recordTries is how often a write of a run is tried. The step that it records may have been expensive.
	recordTries = 3
	recordPause = 500 * time.Millisecond // before the second try; doubled for the third
	// recordWithin is how long a run may go on writing after it was told to stop: less than the substrate waits for it.
	recordWithin = 3 * time.Second
)

// errNothingToDo: the task awaits no run of this event.
var errNothingToDo = errors.New("the task awaits no worker")

// Run does the work of a task for the event dispatch, until the task ends or waits for a person. Nil instead of a conclusion:
// there was nothing to do, or another run has taken the task up. The error is [ErrNoTask] for a task that is not there;
// another says that the work was not done and is to be tried again.
func (r *RunTask) Run(ctx context.Context, workspace uuid.NullUUID, id, dispatch uuid.UUID) (Conclusion, error) {
	run := &run{RunTask: r, workspace: workspace, id: id}
	task, err := run.write(ctx, func(t *domain.AgentTask) error {
		if run.number > 0 { // begun already, if only the answer was lost: that costs no try
			if err := t.HandBack(run.number, "", r.now()); err != nil && !errors.Is(err, domain.ErrSuperseded) {
				return err
			}
		}
		if !t.Start(dispatch, r.now()) {
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
		return run.fail(fmt.Sprintf("given up after %d tries; %s", domain.MaxTaskTries, lastWords(task, dispatch))), nil
	}
	executor, known := r.executors[task.Executor]
	if !known {
		return run.fail(fmt.Sprintf("no worker of this build has an executor %q: deploy one that does, then retry the task", task.Executor)), nil
	}
	conclusion, err := run.steps(ctx, executor, task)
	if errors.Is(err, domain.ErrSuperseded) {
		return nil, nil // whoever has the task now goes on with it
	}
	return conclusion, err
}

// lastWords says what there is to know of a task that ran out of tries without saying why.
func lastWords(task *domain.AgentTask, dispatch uuid.UUID) string {
	if task.LastError != "" {
		return "the latest error: " + task.LastError
	}
	return fmt.Sprintf("its workers died or were cut off: see event %s", dispatch)
}

// run is one try at a task.
type run struct {
	*RunTask
	workspace uuid.NullUUID
	id        uuid.UUID
	number    int64
}

// steps does step after step, beginning with the first that is not done. The error may be [domain.ErrSuperseded].
func (r *run) steps(ctx context.Context, executor Executor, task *domain.AgentTask) (Conclusion, error) {
	for {
		if task.Cancellation != nil {
			return r.conclude(func(t *domain.AgentTask) error { return t.Stop(r.number, r.now()) }), nil
		}
		if ctx.Err() != nil {
			return r.cutOff(ctx, task, context.Cause(ctx))
		}
		advance, err := r.advance(ctx, executor, task)
		if err != nil {
			return r.cutOff(ctx, task, err)
		}
		change := func(t *domain.AgentTask) error { return t.Succeed(r.number, advance.result, r.now()) }
		switch {
		case advance.gate != "":
			change = func(t *domain.AgentTask) error {
				return t.AwaitApproval(r.number, advance.gate, advance.question, r.now())
			}
		case advance.step != "":
			change = func(t *domain.AgentTask) error {
				return t.RecordStep(r.number, advance.step, advance.result, r.now())
			}
		}
		if err := r.acceptable(task, advance, change); err != nil {
			return r.cutOff(ctx, task, events.Terminal(err))
		}
		if advance.step == "" {
			return r.conclude(change), nil
		}
		if task, err = r.write(ctx, change); err != nil {
			return nil, err
		}
	}
}

// advance lets the executor do one step.
func (r *run) advance(ctx context.Context, executor Executor, task *domain.AgentTask) (Advance, error) {
	limited, cancel := context.WithTimeout(ctx, r.stepLimit)
	defer cancel()
	advance, err := executor.Advance(limited, Work{
		Task: task.ID, Conversation: task.Conversation, Workspace: r.workspace, Input: task.Input, Run: r.number, task: task,
	})
	switch {
	case err != nil && limited.Err() != nil && ctx.Err() == nil:
		err = said(fmt.Errorf("the step did not end within %s: %w", r.stepLimit, err))
	case err != nil:
		err = said(err)
	}
	return advance, err
}

// said is what an executor says of its failure: a text, and whether trying again may mend it. Nothing else of the error
// counts: types that mean something to a task or an event would be taken for theirs.
func said(err error) error {
	text := strings.TrimSpace(err.Error())
	if text == "" {
		text = "the executor failed without a word"
	}
	if terminal(err) {
		return events.Terminal(errors.New(text))
	}
	return errors.New(text)
}

// acceptable refuses what an executor may not bring, before it is written: nothing that is tried again would mend it.
func (r *run) acceptable(task *domain.AgentTask, advance Advance, change func(*domain.AgentTask) error) error {
	if advance.result != nil {
		if err := events.ValidatePayload(advance.result); err != nil {
			return err
		}
	}
	if _, done := task.StepResult(advance.step); done {
		return fmt.Errorf("step %s is done already", advance.step) // it would do it for ever
	}
	tried := *task
	return change(&tried)
}

// cutOff ends a run that did not come to an end, because of err: an error of a step, or the reason why the work
// must stop.
func (r *run) cutOff(ctx context.Context, task *domain.AgentTask, err error) (Conclusion, error) {
	cause := context.Cause(ctx)
	switch {
	case errors.Is(cause, events.ErrLeaseLost):
		return nil, cause // nothing may be written: somebody else may be at it
	case errors.Is(cause, events.ErrStopping):
		_, handErr := r.write(ctx, func(t *domain.AgentTask) error { return t.HandBack(r.number, "", r.now()) })
		return nil, errors.Join(cause, handErr)
	case terminal(err) || task.Exhausted():
		return r.fail(err.Error()), nil
	}
	_, handErr := r.write(ctx, func(t *domain.AgentTask) error { return t.HandBack(r.number, err.Error(), r.now()) })
	return nil, errors.Join(err, handErr)
}

func terminal(err error) bool {
	_, is := errors.AsType[*events.TerminalError](err)
	return is
}

// write changes the task in a transaction of its own, and returns it as it then stands. What is done is written
// also when the work is to stop, but not once the lease is lost.
func (r *run) write(ctx context.Context, change func(*domain.AgentTask) error) (task *domain.AgentTask, err error) {
	if cause := context.Cause(ctx); errors.Is(cause, events.ErrLeaseLost) {
		return nil, cause
	}
	ctx, cancel := lingering(ctx)
	defer cancel()
	pause := recordPause
	for try := 1; ; try++ {
		err = r.transact(ctx, r.workspace, func(tasks Tasks, _ events.EventPublisher) error {
			if task, err = tasks.Lock(ctx, r.workspace, r.id); err != nil {
				return err
			}
			if err := change(task); err != nil {
				return err
			}
			return tasks.Save(ctx, r.workspace, task)
		})
		if err == nil || try == recordTries || errors.Is(err, errNothingToDo) || errors.Is(err, domain.ErrSuperseded) || errors.Is(err, ErrNoTask) {
			return task, err
		}
		again := time.NewTimer(pause)
		select {
		case <-again.C:
			pause *= 2
		case <-ctx.Done():
			again.Stop()
			return task, err
		}
	}
}

// lingering is ctx with a little more time to write: none after a lost lease.
func lingering(ctx context.Context) (context.Context, context.CancelFunc) {
	longer, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() {
		if errors.Is(context.Cause(ctx), events.ErrLeaseLost) {
			cancel(events.ErrLeaseLost)
			return
		}
		over := time.NewTimer(recordWithin)
		defer over.Stop()
		select {
		case <-over.C:
			cancel(context.Cause(ctx))
		case <-longer.Done():
		}
	})
	return longer, func() {
		stop()
		cancel(context.Canceled)
	}
}

// conclude is a change that ends the run.
func (r *run) conclude(change func(*domain.AgentTask) error) Conclusion {
	return func(ctx context.Context, tasks Tasks) error {
		task, err := tasks.Lock(ctx, r.workspace, r.id)
		if err != nil {
			return err
		}
		if err := change(task); errors.Is(err, domain.ErrSuperseded) {
			return nil // whoever has the task now ends it
		} else if err != nil {
			return err
		}
		return tasks.Save(ctx, r.workspace, task)
	}
}

func (r *run) fail(reason string) Conclusion {
	return r.conclude(func(t *domain.AgentTask) error { return t.Fail(r.number, reason, r.now()) })
}
