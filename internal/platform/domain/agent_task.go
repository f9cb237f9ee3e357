package domain

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"spectral/internal/core/check"
)

// TaskStatus is the status of an agent task:
//
//	          start                      succeed
//	queued ──────────> running ────────────────────────> succeeded
//	 │ ^ ^  requeue     │ │ │ │  fail
//	 │ │ └──────────────┘ │ │ └──────────────> failed
//	 │ │     approve      │ └──────────────┐     │ retry
//	 │ └── awaiting_approval <─────────────┘     └──> queued
//	 │            │ reject, cancel  await approval
//	 └────────────┴──────────────────────────> cancelled
//	   cancel; a running task is cancelled after its current step
type TaskStatus string

// The statuses of an agent task.
const (
	TaskQueued           TaskStatus = "queued"            // waits for a worker
	TaskRunning          TaskStatus = "running"           // a worker runs it
	TaskAwaitingApproval TaskStatus = "awaiting_approval" // waits for a person
	TaskSucceeded        TaskStatus = "succeeded"
	TaskFailed           TaskStatus = "failed" // may be retried
	TaskCancelled        TaskStatus = "cancelled"
)

// Finished reports whether the task has ended. A failed task may still be retried.
func (s TaskStatus) Finished() bool {
	return s == TaskSucceeded || s == TaskFailed || s == TaskCancelled
}

// Bounds of an agent task.
const (
	MaxTaskInputBytes  = 64 << 10 // of the input and of each result
	MaxTaskSteps       = 100
	MaxTaskReasonBytes = 4000 // of texts for people
	MaxPersonBytes     = 200  // of the name of a person, a system or an agent
	// MaxTaskTries is how many runs a task may begin without finishing a step. A run counts when it begins, so a task
	// that kills its workers fails too.
	MaxTaskTries = 5

	// DefaultTaskRetention is how long a task is kept after its creation, if it does not say otherwise.
	DefaultTaskRetention = 90 * 24 * time.Hour
	MaxTaskRetention     = 10 * 366 * 24 * time.Hour
)

// AgentTask is work in steps, outside any transaction. Each step's result is recorded when it is done, and the next run
// continues after the last one.
//
// A run is one worker's try. Runs are numbered, and only the latest may write. An earlier one gets [ErrSuperseded].
type AgentTask struct {
	ID           uuid.UUID
	Conversation uuid.UUID
	Executor     string          // name of the executor
	Input        json.RawMessage // a JSON object, for the executor
	Status       TaskStatus
	Steps        []TaskStep
	// Result is a JSON object once the task has succeeded.
	Result json.RawMessage
	// FailureReason says why the task failed. It is for people, and empty unless the task is failed.
	FailureReason string
	// LastError is the error of the latest run that was interrupted.
	LastError string
	// Approval is the latest requested approval.
	Approval *Approval
	// Cancellation is set when it was requested. A running task ends after its current step.
	Cancellation *Cancellation

	Run      int64         // the latest run, counted from 1
	Tries    int           // runs since the dispatch or the last finished step, without stopped ones
	Dispatch uuid.NullUUID // the event of the latest run

	CreatedAt, UpdatedAt time.Time
	RetainUntil          time.Time
}

// TaskStep is a finished step.
type TaskStep struct {
	Name   string          `json:"name"`
	Result json.RawMessage `json:"result"` // a JSON object
	Run    int64           `json:"run"`    // the run that did it
	DoneAt time.Time       `json:"done_at"`
}

// Verdict is a person's decision.
type Verdict string

// The verdicts.
const (
	Approved Verdict = "approved"
	Rejected Verdict = "rejected"
)

// Approval is requested from a person before a task continues.
type Approval struct {
	Gate        string // its name, for the executor
	Question    string // for the person
	RequestedAt time.Time
	// Verdict and the fields below are empty until a person decides.
	Verdict   Verdict
	DecidedBy string
	DecidedAt time.Time
	Comment   string
}

// Cancellation is a request to cancel a task.
type Cancellation struct {
	RequestedBy string
	RequestedAt time.Time
}

// ErrSuperseded means that a run is not the task's current one: another has begun, or the task was changed. The run
// must stop and write nothing.
var ErrSuperseded = errors.New("this run of the agent task is over: another run has the task")

// TransitionError means that the task's status does not allow a change.
type TransitionError struct {
	Task   uuid.UUID
	Change string // approve, cancel, ...
	Status TaskStatus
	Wanted []TaskStatus
}

func (e *TransitionError) Error() string {
	wanted := strings.ReplaceAll(strings.Trim(fmt.Sprint(e.Wanted), "[]"), " ", " or ")
	return fmt.Sprintf("the task is %s: to %s it, it must be %s", e.Status, e.Change, wanted)
}

// InvalidTaskError means that a value given to a task is invalid.
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

// NewAgentTask returns a queued task. Retention counts from now; zero means [DefaultTaskRetention].
func NewAgentTask(id, conversation uuid.UUID, executor string, input json.RawMessage, retention time.Duration,
	now time.Time) (*AgentTask, error) {
	if retention == 0 {
		retention = DefaultTaskRetention
	}
	err := errors.Join(check.ID("id", id), check.ID("conversation", conversation), checkName("executor", executor),
		checkObject("input", input))
	if retention < 0 || retention > MaxTaskRetention {
		err = errors.Join(err, fmt.Errorf("retention is %s, must be positive and at most %s", retention, MaxTaskRetention))
	}
	if err != nil {
		return nil, invalid(err)
	}
	return &AgentTask{
		ID: id, Conversation: conversation, Executor: executor, Input: input, Status: TaskQueued,
		CreatedAt: now, UpdatedAt: now, RetainUntil: now.Add(retention),
	}, nil
}

// Start begins a run for the event dispatch, and reports whether there is work. There is none if the task waits for a
// person, is finished, or runs for another event, whose worker continues it. An earlier run for the same event has
// ended, because only one worker holds an event.
func (t *AgentTask) Start(dispatch uuid.UUID, now time.Time) bool {
	taken := t.Status == TaskRunning && t.Dispatch.Valid && t.Dispatch.UUID == dispatch
	if t.Status != TaskQueued && !taken {
		return false
	}
	t.Dispatch = uuid.NullUUID{UUID: dispatch, Valid: true}
	t.Run++
	t.Tries++
	t.setStatus(TaskRunning, now)
	return true
}

// Exhausted reports whether the task has used its last try.
func (t *AgentTask) Exhausted() bool { return t.Tries >= MaxTaskTries }

// RecordStep stores the result of a step. It resets the tries and the last error. A second call changes nothing.
func (t *AgentTask) RecordStep(run int64, name string, result json.RawMessage, now time.Time) error {
	if err := t.checkRun(run); err != nil {
		return err
	}
	faults := []error{checkName("step", name), checkObject("result of step "+name, result)}
	if i := t.step(name); i >= 0 {
		if t.Steps[i].Run == run {
			return nil // the answer to the first call was lost
		}
		faults = append(faults, fmt.Errorf("step %s is done already", name))
	}
	if len(t.Steps) >= MaxTaskSteps {
		faults = append(faults, fmt.Errorf("a task has at most %d steps", MaxTaskSteps))
	}
	if err := invalid(errors.Join(faults...)); err != nil {
		return err
	}
	t.Steps = append(t.Steps, TaskStep{Name: name, Result: result, Run: run, DoneAt: now})
	t.LastError, t.Tries, t.UpdatedAt = "", 1, now
	return nil
}

// Requeue ends an interrupted run, so another run for the same event follows. Without a reason the run was stopped from
// outside and costs no try. A second call changes nothing.
func (t *AgentTask) Requeue(run int64, reason string, now time.Time) error {
	if t.Run == run && t.Status == TaskQueued {
		return nil // the answer to the first call was lost
	}
	if err := t.checkRun(run); err != nil {
		return err
	}
	if reason = storable(reason); reason == "" {
		t.Tries--
	}
	t.LastError = cmp.Or(reason, t.LastError)
	t.setStatus(TaskQueued, now)
	return nil
}

// AwaitApproval ends a run until a person decides. If a cancellation was requested, the task is cancelled instead.
func (t *AgentTask) AwaitApproval(run int64, gate, question string, now time.Time) error {
	if t.Cancellation != nil {
		return t.Stop(run, now)
	}
	question = storable(question)
	fault := errors.Join(checkName("gate", gate), check.Text("question", question, true, MaxTaskReasonBytes))
	err := t.end(run, TaskAwaitingApproval, now, invalid(fault))
	if err == nil {
		t.Approval = &Approval{Gate: gate, Question: question, RequestedAt: now}
	}
	return err
}

// Stop cancels the task at the end of a step, after a cancellation was requested.
func (t *AgentTask) Stop(run int64, now time.Time) (err error) {
	if t.Cancellation == nil {
		err = fmt.Errorf("stop agent task %s: no cancellation was requested", t.ID)
	}
	return t.end(run, TaskCancelled, now, err)
}

// Succeed ends a run and the task with a result, even if a cancellation was requested: the work cannot be undone.
func (t *AgentTask) Succeed(run int64, result json.RawMessage, now time.Time) error {
	err := t.end(run, TaskSucceeded, now, invalid(checkObject("result", result)))
	if err == nil {
		t.Result = result
	}
	return err
}

// Fail ends a run and the task. The reason is for people.
func (t *AgentTask) Fail(run int64, reason string, now time.Time) error {
	err := t.end(run, TaskFailed, now, nil)
	if err == nil {
		t.FailureReason = cmp.Or(storable(reason), "no reason was given")
	}
	return err
}

// end ends a run with a new status, unless the run is superseded or there is a fault.
func (t *AgentTask) end(run int64, status TaskStatus, now time.Time, fault error) error {
	err := cmp.Or(t.checkRun(run), fault)
	if err == nil {
		t.setStatus(status, now)
	}
	return err
}

// Approve queues a task that waits for approval. The caller must dispatch it.
func (t *AgentTask) Approve(by, comment string, now time.Time) error {
	if err := t.decide("approve", Approved, by, comment, now); err != nil {
		return err
	}
	t.Tries = 0
	t.setStatus(TaskQueued, now)
	return nil
}

// Reject ends a task as cancelled, because a person decided against it. Failed tasks may be retried, cancelled ones
// not.
func (t *AgentTask) Reject(by, comment string, now time.Time) error {
	if err := t.decide("reject", Rejected, by, comment, now); err != nil {
		return err
	}
	t.setStatus(TaskCancelled, now)
	return nil
}

func (t *AgentTask) decide(change string, verdict Verdict, by, comment string, now time.Time) error {
	err := cmp.Or(t.requireStatus(change, TaskAwaitingApproval), invalid(checkPerson("who decides", by)))
	if err != nil {
		return err
	}
	decided := *t.Approval
	decided.Verdict, decided.DecidedBy, decided.DecidedAt, decided.Comment = verdict, by, now, storable(comment)
	t.Approval = &decided
	return nil
}

// Cancel ends a task that is not running, and requests the cancellation of a running one. A second call changes
// nothing.
func (t *AgentTask) Cancel(by string, now time.Time) error {
	err := cmp.Or(t.requireStatus("cancel", TaskQueued, TaskAwaitingApproval, TaskRunning),
		invalid(checkPerson("who decides", by)))
	if err != nil {
		return err
	}
	if t.Cancellation == nil {
		t.Cancellation = &Cancellation{RequestedBy: by, RequestedAt: now}
		t.UpdatedAt = now
	}
	if t.Status != TaskRunning {
		t.setStatus(TaskCancelled, now)
	}
	return nil
}

// Retry queues a failed task, to continue after its finished steps. The caller must dispatch it.
func (t *AgentTask) Retry(now time.Time) error {
	if err := t.requireStatus("retry", TaskFailed); err != nil {
		return err
	}
	t.FailureReason, t.LastError, t.Cancellation, t.Tries = "", "", nil, 0
	t.setStatus(TaskQueued, now)
	return nil
}

// Redispatch queues a task whose event failed or was discarded. A current run can write nothing more. The caller must
// dispatch the task. If a cancellation was requested, the task is cancelled instead.
func (t *AgentTask) Redispatch(now time.Time) error {
	if err := t.requireStatus("redispatch", TaskQueued, TaskRunning); err != nil {
		return err
	}
	t.Tries = 0
	t.setStatus(TaskQueued, now)
	if t.Cancellation != nil {
		t.Status = TaskCancelled
	}
	return nil
}

// StepResult returns the result of a finished step, and false for another step.
func (t *AgentTask) StepResult(name string) (json.RawMessage, bool) {
	if i := t.step(name); i >= 0 {
		return t.Steps[i].Result, true
	}
	return nil, false
}

func (t *AgentTask) step(name string) int {
	return slices.IndexFunc(t.Steps, func(s TaskStep) bool { return s.Name == name })
}

func (t *AgentTask) setStatus(status TaskStatus, now time.Time) { t.Status, t.UpdatedAt = status, now }

// checkRun returns [ErrSuperseded] unless run is the latest and the task is running.
func (t *AgentTask) checkRun(run int64) error {
	if t.Run != run || t.Status != TaskRunning {
		return ErrSuperseded
	}
	return nil
}

func (t *AgentTask) requireStatus(change string, wanted ...TaskStatus) error {
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

// checkPerson checks the name of a person, a system or an agent.
func checkPerson(field, by string) error { return check.Line(field, by, MaxPersonBytes) }

// storable returns s without characters that Postgres cannot store, cut to MaxTaskReasonBytes.
func storable(s string) string {
	s = strings.TrimSpace(strings.ToValidUTF8(strings.ReplaceAll(s, "\x00", "\uFFFD"), "\uFFFD"))
	if len(s) > MaxTaskReasonBytes {
		s = strings.ToValidUTF8(s[:MaxTaskReasonBytes], "")
	}
	return s
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

// ConversationKind says who began a conversation.
type ConversationKind string

// The kinds of conversations.
const (
	Reactive  ConversationKind = "reactive"  // a person asked
	Proactive ConversationKind = "proactive" // platform began without a request
)

// Conversation groups agent tasks.
type Conversation struct {
	ID   uuid.UUID
	Kind ConversationKind
	// TriggerEvent is the id of the event that caused a proactive conversation, if an event did (docs/decisions/0018).
	// Retention may have deleted the event.
	TriggerEvent uuid.NullUUID
	CreatedAt    time.Time
}

// Validate returns an error for a conversation that is invalid.
func (c Conversation) Validate() error {
	err := errors.Join(check.ID("conversation_id", c.ID), check.OneOf("kind", c.Kind, Reactive, Proactive))
	if c.TriggerEvent.Valid && c.Kind != Proactive {
		err = errors.Join(err, fmt.Errorf("a %s conversation has no trigger event: what an event causes is %s", c.Kind,
			Proactive))
	}
	return err
}
