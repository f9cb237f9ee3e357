package domain

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
)

// TaskStatus is where an agent task stands:
//
//	          start                      succeed
//	queued ──────────> running ────────────────────────> succeeded
//	 │ ^ ^  hand back   │ │ │ │  fail
//	 │ │ └──────────────┘ │ │ └──────────────> failed
//	 │ │     approve      │ └──────────────┐     │ retry
//	 │ └── awaiting_approval <─────────────┘     └──> queued
//	 │            │ reject, cancel  await approval
//	 └────────────┴──────────────────────────> cancelled
//	   cancel             └ from running: asked for, and done where the executor can stop
type TaskStatus string

// The statuses of an agent task.
const (
	TaskQueued           TaskStatus = "queued"            // dispatched: a worker will take it up
	TaskRunning          TaskStatus = "running"           // a run has taken it up
	TaskAwaitingApproval TaskStatus = "awaiting_approval" // a person has to decide
	TaskSucceeded        TaskStatus = "succeeded"
	TaskFailed           TaskStatus = "failed" // it may be retried
	TaskCancelled        TaskStatus = "cancelled"
)

// Finished reports whether nothing happens any more by itself.
func (s TaskStatus) Finished() bool {
	return s == TaskSucceeded || s == TaskFailed || s == TaskCancelled
}

// Bounds of an agent task.
const (
	MaxTaskInputBytes  = 64 << 10 // of the input, of each step's result and of the task's
	MaxTaskSteps       = 100
	MaxTaskReasonBytes = 4000 // of what is written for people
	// MaxTaskTries is how many runs a task may begin without a step that is done. A run counts as it begins, so
	// that a task which kills its workers ends as failed, too.
	MaxTaskTries = 5

	// DefaultTaskRetention is how long a task is kept, from its creation on, unless it says otherwise.
	DefaultTaskRetention = 90 * 24 * time.Hour
	MaxTaskRetention     = 10 * 366 * 24 * time.Hour
)

// AgentTask is work that is done outside any transaction, in steps. Each step's result is recorded as it is done:
// whoever takes the task up goes on after the last one.
//
// A run is one worker's try at it. Runs are numbered, and only the latest may write: what an earlier one brings is
// refused with [ErrSuperseded].
type AgentTask struct {
	ID           uuid.UUID
	Conversation uuid.UUID
	Executor     string          // by name, who does it
	Input        json.RawMessage // a JSON object, for the executor
	Status       TaskStatus
	Steps        []TaskStep
	// Result is a JSON object once the task has succeeded.
	Result json.RawMessage
	// FailureReason says to people why the task failed, while it is failed.
	FailureReason string
	// LastError is what the latest run that did not come to an end said.
	LastError string
	// Approval is the latest that was asked for.
	Approval *Approval
	// Cancellation was asked for; running tasks end when their executor comes to a point where it can stop.
	Cancellation *Cancellation

	Run      int64         // the latest run, counted from 1
	Tries    int           // runs since the task was dispatched or a step was done, those that were handed back left out
	Dispatch uuid.NullUUID // the event that the latest run began with

	CreatedAt, UpdatedAt time.Time
	RetainUntil          time.Time
}

// TaskStep is a step that is done.
type TaskStep struct {
	Name   string          `json:"name"`
	Result json.RawMessage `json:"result"` // a JSON object
	Run    int64           `json:"run"`    // that did it
	DoneAt time.Time       `json:"done_at"`
}

// Verdict is what a person decided.
type Verdict string

// The verdicts.
const (
	Approved Verdict = "approved"
	Rejected Verdict = "rejected"
)

// Approval is asked of a person before a task goes on.
type Approval struct {
	Gate        string // names what is asked for, for the executor
	Question    string // says it to the person
	RequestedAt time.Time
	// Verdict is empty until somebody decides; the rest is set with it.
	Verdict   Verdict
	DecidedBy string
	DecidedAt time.Time
	Comment   string
}

// Cancellation of a task.
type Cancellation struct {
	RequestedBy string
	RequestedAt time.Time
}

// ErrSuperseded is what a run hears that is no longer the task's: another has begun, or the task was taken from it.
// It has to stop and write nothing.
var ErrSuperseded = errors.New("this run of the agent task is over: another has taken it up")

// TransitionError is a change that the task's status does not allow.
type TransitionError struct {
	Task   uuid.UUID
	Change string // approve, cancel, ...
	Status TaskStatus
	Wanted []TaskStatus
}

func (e *TransitionError) Error() string {
	wanted := make([]string, len(e.Wanted))
	for i, s := range e.Wanted {
		wanted[i] = string(s)
	}
	return fmt.Sprintf("the task is %s: to %s it, it must be %s", e.Status, e.Change, strings.Join(wanted, " or "))
}

// InvalidTaskError says what is wrong with what a task was given.
type InvalidTaskError struct{ Err error }

func (e *InvalidTaskError) Error() string { return e.Err.Error() }
func (e *InvalidTaskError) Unwrap() error { return e.Err }

func invalid(err error) error {
	if err == nil {
		return nil
	}
	return &InvalidTaskError{err}
}

var nameForm = regexp.MustCompile(`^[a-z][a-z0-9_]{0,62}$`)

// NewAgentTask is a task that is to be dispatched. Retention is from now on; zero means [DefaultTaskRetention].
func NewAgentTask(id, conversation uuid.UUID, executor string, input json.RawMessage, retention time.Duration, now time.Time) (*AgentTask, error) {
	if retention == 0 {
		retention = DefaultTaskRetention
	}
	var err error
	if id == uuid.Nil || conversation == uuid.Nil {
		err = errors.Join(err, errors.New("a task needs an id and a conversation"))
	}
	if retention < 0 || retention > MaxTaskRetention {
		err = errors.Join(err, fmt.Errorf("retention is %s, must be positive and at most %s", retention, MaxTaskRetention))
	}
	err = errors.Join(err, checkName("executor", executor), checkObject("input", input))
	if err != nil {
		return nil, invalid(err)
	}
	return &AgentTask{
		ID: id, Conversation: conversation, Executor: executor, Input: input, Status: TaskQueued,
		CreatedAt: now, UpdatedAt: now, RetainUntil: now.Add(retention),
	}, nil
}

// Start begins a run for the event dispatch, and reports whether there is anything to do. There is not, if the task
// waits for a person, is finished, or is run for another event: that event's worker, or whoever takes the event up after it,
// goes on with the task. A run of the same event is over: only one worker has an event.
func (t *AgentTask) Start(dispatch uuid.UUID, now time.Time) bool {
	taken := t.Status == TaskRunning && t.Dispatch.Valid && t.Dispatch.UUID == dispatch
	if t.Status != TaskQueued && !taken {
		return false
	}
	t.Dispatch = uuid.NullUUID{UUID: dispatch, Valid: true}
	t.Run++
	t.Tries++
	t.become(TaskRunning, now)
	return true
}

// Exhausted reports whether the task has had its last try.
func (t *AgentTask) Exhausted() bool { return t.Tries >= MaxTaskTries }

// RecordStep keeps the result of a step of a run. That is progress: this run is then the first try at what follows, and
// what was wrong before is forgotten. The same again changes nothing.
func (t *AgentTask) RecordStep(run int64, name string, result json.RawMessage, now time.Time) error {
	if err := t.owned(run); err != nil {
		return err
	}
	err := errors.Join(checkName("step", name), checkObject("result of step "+name, result))
	if i := slices.IndexFunc(t.Steps, func(s TaskStep) bool { return s.Name == name }); i >= 0 {
		if t.Steps[i].Run == run {
			return nil // the answer to the first time was lost
		}
		err = errors.Join(err, fmt.Errorf("step %s is done already", name))
	}
	if len(t.Steps) >= MaxTaskSteps {
		err = errors.Join(err, fmt.Errorf("a task has at most %d steps", MaxTaskSteps))
	}
	if err != nil {
		return invalid(err)
	}
	t.Steps = append(t.Steps, TaskStep{Name: name, Result: result, Run: run, DoneAt: now})
	t.LastError, t.Tries, t.UpdatedAt = "", 1, now
	return nil
}

// HandBack ends a run that did not come to an end, and that another will follow for the same event. Without a reason it was cut
// off by no fault of its own, and costs no try. The same again changes nothing.
func (t *AgentTask) HandBack(run int64, reason string, now time.Time) error {
	if t.Run == run && t.Status == TaskQueued {
		return nil // the answer to the first time was lost
	}
	if err := t.owned(run); err != nil {
		return err
	}
	if reason = forPeople(reason); reason == "" {
		t.Tries--
	} else {
		t.LastError = reason
	}
	t.become(TaskQueued, now)
	return nil
}

// AwaitApproval ends a run until a person has decided; at once, if the task is to be cancelled.
func (t *AgentTask) AwaitApproval(run int64, gate, question string, now time.Time) error {
	if err := t.owned(run); err != nil {
		return err
	}
	if t.Cancellation != nil {
		return t.Stop(run, now)
	}
	err := checkName("gate", gate)
	if strings.TrimSpace(question) == "" {
		err = errors.Join(err, errors.New("what a person is asked to approve is missing"))
	}
	if err != nil {
		return invalid(err)
	}
	t.Approval = &Approval{Gate: gate, Question: forPeople(question), RequestedAt: now}
	t.become(TaskAwaitingApproval, now)
	return nil
}

// Stop ends a run that has come to a point where it can be cancelled, after somebody asked for it.
func (t *AgentTask) Stop(run int64, now time.Time) error {
	if err := t.owned(run); err != nil {
		return err
	}
	if t.Cancellation == nil {
		return fmt.Errorf("stop agent task %s: nobody has asked for it", t.ID)
	}
	t.become(TaskCancelled, now)
	return nil
}

// Succeed ends a run and the task with a result. It does so even if the task was to be cancelled: what was done
// cannot be taken back, and saying otherwise would be untrue.
func (t *AgentTask) Succeed(run int64, result json.RawMessage, now time.Time) error {
	if err := t.owned(run); err != nil {
		return err
	}
	if err := checkObject("result", result); err != nil {
		return invalid(err)
	}
	t.Result = result
	t.become(TaskSucceeded, now)
	return nil
}

// Fail ends a run and the task. The reason is for people.
func (t *AgentTask) Fail(run int64, reason string, now time.Time) error {
	if err := t.owned(run); err != nil {
		return err
	}
	if reason = forPeople(reason); reason == "" {
		reason = "no reason was given"
	}
	t.FailureReason = reason
	t.become(TaskFailed, now)
	return nil
}

// Approve lets a task go on; it has to be dispatched.
func (t *AgentTask) Approve(by, comment string, now time.Time) error {
	if err := t.decide("approve", Approved, by, comment, now); err != nil {
		return err
	}
	t.Tries = 0
	t.become(TaskQueued, now)
	return nil
}

// Reject ends a task as cancelled: a person did not want it to go on. Failed are those that something went wrong with,
// and that may be retried.
func (t *AgentTask) Reject(by, comment string, now time.Time) error {
	if err := t.decide("reject", Rejected, by, comment, now); err != nil {
		return err
	}
	t.become(TaskCancelled, now)
	return nil
}

func (t *AgentTask) decide(change string, verdict Verdict, by, comment string, now time.Time) error {
	if err := t.must(change, TaskAwaitingApproval); err != nil {
		return err
	}
	if err := checkPerson("who decides", by); err != nil {
		return invalid(err)
	}
	decided := *t.Approval
	decided.Verdict, decided.DecidedBy, decided.DecidedAt, decided.Comment = verdict, by, now, forPeople(comment)
	t.Approval = &decided
	return nil
}

// Cancel ends a task at once where nobody is at work on it, and asks the run that is to stop. Asking again changes
// nothing.
func (t *AgentTask) Cancel(by string, now time.Time) error {
	if err := t.must("cancel", TaskQueued, TaskAwaitingApproval, TaskRunning); err != nil {
		return err
	}
	if err := checkPerson("who decides", by); err != nil {
		return invalid(err)
	}
	if t.Cancellation == nil {
		t.Cancellation = &Cancellation{RequestedBy: by, RequestedAt: now}
		t.UpdatedAt = now
	}
	if t.Status != TaskRunning {
		t.become(TaskCancelled, now)
	}
	return nil
}

// Retry takes a failed task up again, after the steps that are done; it has to be dispatched.
func (t *AgentTask) Retry(now time.Time) error {
	if err := t.must("retry", TaskFailed); err != nil {
		return err
	}
	t.FailureReason, t.LastError, t.Cancellation, t.Tries = "", "", nil, 0
	t.become(TaskQueued, now)
	return nil
}

// Redispatch is for a task whose event was lost to it: failed before its time, or discarded. Whatever run there is may
// write no more. The task has to be dispatched, unless it is to be cancelled, and then is.
func (t *AgentTask) Redispatch(now time.Time) error {
	if err := t.must("redispatch", TaskQueued, TaskRunning); err != nil {
		return err
	}
	t.Tries = 0
	if t.Cancellation != nil {
		t.become(TaskCancelled, now)
		return nil
	}
	t.become(TaskQueued, now)
	return nil
}

// AwaitsWorker reports whether the task has to be dispatched.
func (t *AgentTask) AwaitsWorker() bool { return t.Status == TaskQueued }

// StepResult is the result of a step that is done.
func (t *AgentTask) StepResult(name string) (json.RawMessage, bool) {
	for _, s := range t.Steps {
		if s.Name == name {
			return s.Result, true
		}
	}
	return nil, false
}

func (t *AgentTask) become(status TaskStatus, now time.Time) {
	t.Status, t.UpdatedAt = status, now
}

// owned refuses a run that is not the latest, or no longer at work.
func (t *AgentTask) owned(run int64) error {
	if t.Run != run || t.Status != TaskRunning {
		return ErrSuperseded
	}
	return nil
}

func (t *AgentTask) must(change string, wanted ...TaskStatus) error {
	if !slices.Contains(wanted, t.Status) {
		return &TransitionError{Task: t.ID, Change: change, Status: t.Status, Wanted: wanted}
	}
	return nil
}

func checkName(what, name string) error {
	if !nameForm.MatchString(name) {
		return fmt.Errorf("%s is %.80q, must be a lower-case identifier of at most 63 bytes", what, name)
	}
	return nil
}

func checkObject(what string, document json.RawMessage) error {
	trimmed := bytes.TrimSpace(document)
	switch {
	case len(trimmed) == 0 || trimmed[0] != '{' || !json.Valid(trimmed):
		return fmt.Errorf("%s must be a JSON object", what)
	case len(trimmed) > MaxTaskInputBytes:
		return fmt.Errorf("%s has %d bytes, the limit is %d", what, len(trimmed), MaxTaskInputBytes)
	}
	return nil
}
