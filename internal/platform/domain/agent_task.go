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
//	 │ │ └──────────────┘ │ │ └────────────────────────> failed
//	 │ │     approve      │ └──────────────┐
//	 │ └── awaiting_approval <─────────────┘
//	 │            │ cancel         await approval
//	 └────────────┴──────────────────────────> cancelled
//	   cancel; a running task is cancelled after its current step
type TaskStatus string

// The statuses of an agent task.
const (
	TaskQueued           TaskStatus = "queued"            // waits for a worker
	TaskRunning          TaskStatus = "running"           // a worker runs it
	TaskAwaitingApproval TaskStatus = "awaiting_approval" // waits for a person
	TaskSucceeded        TaskStatus = "succeeded"
	TaskFailed           TaskStatus = "failed"
	TaskCancelled        TaskStatus = "cancelled"
)

// Finished reports whether the task has ended.
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

	// TaskRetention is how long a task is kept after its creation.
	TaskRetention = 90 * 24 * time.Hour
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

// Approval is requested from a person before a task continues.
type Approval struct {
	Gate        string // its name, for the executor
	Question    string // for the person
	RequestedAt time.Time
	// ApprovedBy and ApprovedAt are empty until a person approves.
	ApprovedBy string
	ApprovedAt time.Time
}

// Cancellation is a request to cancel a task.
type Cancellation struct {
	RequestedBy string
	RequestedAt time.Time
}

// ErrSuperseded means that a run is not the task's current one: another has begun, or the task was changed. The run
// must stop and write nothing.
var ErrSuperseded = errors.New("this run of the agent task is over: another run has the task")

// ErrTaskStatus means that the task's status does not allow a change.
var ErrTaskStatus = errors.New("the task's status does not allow that")

var nameForm = regexp.MustCompile(`^[a-z][a-z0-9_]{0,62}$`)

// NewAgentTask returns a queued task, or an error for an input that it cannot have.
func NewAgentTask(id, conversation uuid.UUID, executor string, input json.RawMessage,
	now time.Time) (*AgentTask, error) {
	if err := checkObject("input", input); err != nil {
		return nil, err
	}
	return &AgentTask{
		ID: id, Conversation: conversation, Executor: executor, Input: input, Status: TaskQueued,
		CreatedAt: now, UpdatedAt: now, RetainUntil: now.Add(TaskRetention),
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
	t.Status, t.UpdatedAt = TaskRunning, now
	return true
}

// Exhausted reports whether the task has used its last try.
func (t *AgentTask) Exhausted() bool { return t.Tries >= MaxTaskTries }

// RecordStep stores the result of a step. It resets the tries and the last error.
func (t *AgentTask) RecordStep(run int64, name string, result json.RawMessage, now time.Time) error {
	fault := errors.Join(checkName("step", name), checkObject("result of step "+name, result))
	if t.step(name) >= 0 {
		fault = errors.Join(fault, fmt.Errorf("step %s is done already", name))
	}
	if len(t.Steps) >= MaxTaskSteps {
		fault = errors.Join(fault, fmt.Errorf("a task has at most %d steps", MaxTaskSteps))
	}
	err := t.end(run, TaskRunning, now, fault)
	if err == nil {
		t.Steps = append(t.Steps, TaskStep{Name: name, Result: result, Run: run, DoneAt: now})
		t.LastError, t.Tries = "", 1
	}
	return err
}

// Requeue ends an interrupted run, so another run for the same event follows. Without a reason the run was stopped from
// outside and costs no try.
func (t *AgentTask) Requeue(run int64, reason string, now time.Time) error {
	err := t.end(run, TaskQueued, now, nil)
	if err != nil {
		return err
	}
	if reason = storable(reason); reason == "" {
		t.Tries--
	}
	t.LastError = cmp.Or(reason, t.LastError)
	return nil
}

// AwaitApproval ends a run until a person decides. If a cancellation was requested, the task is cancelled instead.
func (t *AgentTask) AwaitApproval(run int64, gate, question string, now time.Time) error {
	if t.Cancellation != nil {
		return t.Stop(run, now)
	}
	question = storable(question)
	fault := errors.Join(checkName("gate", gate), check.Text("question", question, true, MaxTaskReasonBytes))
	err := t.end(run, TaskAwaitingApproval, now, fault)
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
	err := t.end(run, TaskSucceeded, now, checkObject("result", result))
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

// end gives a running task a new status, unless the run is superseded or there is a fault.
func (t *AgentTask) end(run int64, status TaskStatus, now time.Time, fault error) error {
	switch {
	case t.Run != run || t.Status != TaskRunning:
		return ErrSuperseded
	case fault != nil:
		return fault
	}
	t.Status, t.UpdatedAt = status, now
	return nil
}

// Approve queues a task that waits for approval. The caller must dispatch it.
func (t *AgentTask) Approve(by string, now time.Time) error {
	if err := t.decide(by, TaskAwaitingApproval); err != nil {
		return err
	}
	approved := *t.Approval
	approved.ApprovedBy, approved.ApprovedAt = by, now
	t.Approval, t.Tries = &approved, 0
	t.Status, t.UpdatedAt = TaskQueued, now
	return nil
}

// Cancel ends a task that is not running, and requests the cancellation of a running one. A second call changes
// nothing.
func (t *AgentTask) Cancel(by string, now time.Time) error {
	if err := t.decide(by, TaskQueued, TaskAwaitingApproval, TaskRunning); err != nil {
		return err
	}
	if t.Cancellation == nil {
		t.Cancellation = &Cancellation{RequestedBy: by, RequestedAt: now}
		t.UpdatedAt = now
	}
	if t.Status != TaskRunning {
		t.Status, t.UpdatedAt = TaskCancelled, now
	}
	return nil
}

// decide returns an error if the status does not allow a person's change, or the person has no name.
func (t *AgentTask) decide(by string, wanted ...TaskStatus) error {
	if !slices.Contains(wanted, t.Status) {
		return fmt.Errorf("%w: it is %s, must be one of %v", ErrTaskStatus, t.Status, wanted)
	}
	return checkPerson("who decides", by)
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
