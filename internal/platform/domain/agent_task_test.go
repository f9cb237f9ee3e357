package domain

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
)

var (
	taskBegun  = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	taskLater  = taskBegun.Add(time.Hour)
	taskObject = json.RawMessage(`{"a": 1}`)
	taskEvent  = uuid.MustParse("11111111-1111-4111-8111-111111111111")
	otherEvent = uuid.MustParse("22222222-2222-4222-8222-222222222222")
)

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func newTask(t *testing.T) *AgentTask {
	t.Helper()
	task, err := NewAgentTask(uuid.New(), uuid.New(), "card_briefing", taskObject, taskBegun)
	must(t, err)
	return task
}

// taskIn returns a task of the given status, in its first run if one has begun.
func taskIn(t *testing.T, status TaskStatus) *AgentTask {
	t.Helper()
	task := newTask(t)
	if status == TaskQueued {
		return task
	}
	task.Start(taskEvent, taskBegun)
	var err error
	switch status {
	case runningAgain:
		task.Start(taskEvent, taskBegun)
		return task
	case TaskAwaitingApproval:
		err = task.AwaitApproval(1, "delivery", "Deliver it?", taskBegun)
	case TaskSucceeded:
		err = task.Succeed(1, taskObject, taskBegun)
	case TaskFailed:
		err = task.Fail(1, "no card", taskBegun)
	case TaskCancelled:
		err = errors.Join(task.Cancel("a person", taskBegun), task.Stop(1, taskBegun))
	case TaskQueued, TaskRunning:
	}
	if err != nil || task.Status != status {
		t.Fatalf("the task is %s, not %s: %v", task.Status, status, err)
	}
	return task
}

// runningAgain is a running task whose first run is superseded.
const runningAgain TaskStatus = "running again"

// statuses are all statuses of a task.
var statuses = []TaskStatus{TaskQueued, TaskRunning, runningAgain, TaskAwaitingApproval, TaskSucceeded, TaskFailed,
	TaskCancelled}

// TestTaskTransitions tries every change in every status: it leads to a status, or is refused and changes nothing.
func TestTaskTransitions(t *testing.T) {
	t.Parallel()
	start := func(dispatch uuid.UUID) func(*AgentTask) error {
		return func(task *AgentTask) error {
			if !task.Start(dispatch, taskLater) {
				return errors.New("nothing to do")
			}
			return nil
		}
	}
	const nothing, superseded, refused = "nothing to do", "superseded", "refused"
	// firstRun is for what a run does: only the first, and while it is the last
	firstRun := func(leads string) [7]string {
		return [7]string{superseded, leads, superseded, superseded, superseded, superseded, superseded}
	}
	for _, c := range []struct {
		name   string
		change func(*AgentTask) error
		leads  [7]string // in the order of statuses
	}{
		{"start", start(taskEvent), [7]string{"running", "running", "running", nothing, nothing, nothing, nothing}},
		{"start for another event", start(otherEvent),
			[7]string{"running", nothing, nothing, nothing, nothing, nothing, nothing}},
		{"record a step", func(a *AgentTask) error { return a.RecordStep(1, "look_up", taskObject, taskLater) },
			firstRun("running")},
		{"requeue", func(a *AgentTask) error { return a.Requeue(1, "", taskLater) }, firstRun("queued")},
		{"requeue after an error", func(a *AgentTask) error { return a.Requeue(1, "no answer", taskLater) },
			firstRun("queued")},
		{"await approval", func(a *AgentTask) error { return a.AwaitApproval(1, "delivery", "Deliver it?", taskLater) },
			firstRun("awaiting_approval")},
		{"succeed", func(a *AgentTask) error { return a.Succeed(1, taskObject, taskLater) }, firstRun("succeeded")},
		{"fail", func(a *AgentTask) error { return a.Fail(1, "no", taskLater) }, firstRun("failed")},
		{"stop", func(a *AgentTask) error {
			if a.Status == TaskRunning && a.Run == 1 {
				a.Cancellation = &Cancellation{RequestedBy: "a person", RequestedAt: taskBegun}
			}
			return a.Stop(1, taskLater)
		}, firstRun("cancelled")},
		{"approve", func(a *AgentTask) error { return a.Approve("ada", taskLater) },
			[7]string{refused, refused, refused, "queued", refused, refused, refused}},
		{"cancel", func(a *AgentTask) error { return a.Cancel("ada", taskLater) },
			[7]string{"cancelled", "running", "running", "cancelled", refused, refused, refused}},
	} {
		for i, status := range statuses {
			t.Run(fmt.Sprintf("%s when %s", c.name, status), func(t *testing.T) {
				t.Parallel()
				task := taskIn(t, status)
				before := *task
				err := c.change(task)
				isRefused := errors.Is(err, ErrTaskStatus)
				got := string(task.Status)
				switch {
				case err == nil && !task.UpdatedAt.Equal(taskLater):
					t.Error("updated_at did not change")
				case isRefused:
					got = refused
				case errors.Is(err, ErrSuperseded):
					got = superseded
				case err != nil:
					got = err.Error()
				}
				if got != c.leads[i] {
					t.Fatalf("it is %s (%v), want %s", got, err, c.leads[i])
				}
				if now := fmt.Sprintf("%+v", *task); err != nil && now != fmt.Sprintf("%+v", before) {
					t.Errorf("it was refused, but changed to %s", now)
				}
			})
		}
	}
}

func TestTaskStepsAreStored(t *testing.T) {
	t.Parallel()
	task := taskIn(t, TaskRunning)
	must(t, task.RecordStep(1, "look_up", taskObject, taskLater))
	task.Start(taskEvent, taskLater)
	if err := task.RecordStep(2, "look_up", taskObject, taskLater); err == nil || len(task.Steps) != 1 {
		t.Errorf("step look_up is done again: %v", err)
	}
	for i, err := range []error{
		task.RecordStep(2, "", taskObject, taskLater),
		task.RecordStep(2, "draft", json.RawMessage(`[1]`), taskLater),
		task.RecordStep(2, "draft", json.RawMessage(`{"a": `), taskLater),
		task.AwaitApproval(2, "delivery", " ", taskLater),
		task.Succeed(2, nil, taskLater),
	} {
		if err == nil || task.Status != TaskRunning {
			t.Errorf("case %d: %v, and the task is %s", i, err, task.Status)
		}
	}
	for i := len(task.Steps); i < MaxTaskSteps; i++ {
		must(t, task.RecordStep(2, fmt.Sprintf("step_%d", i), taskObject, taskLater))
	}
	if err := task.RecordStep(2, "one_more", taskObject, taskLater); err == nil {
		t.Error("a task has no end of steps")
	}
	if result, done := task.StepResult("step_1"); !done || string(result) != string(taskObject) {
		t.Errorf("step_1 came to %s, %t", result, done)
	}
	if _, done := task.StepResult("one_more"); done {
		t.Error("a step is done that was refused")
	}
}

func TestTaskTriesAreCounted(t *testing.T) {
	t.Parallel()
	task := newTask(t)
	for try := 1; try <= MaxTaskTries; try++ {
		task.Start(taskEvent, taskLater)
		if task.Tries != try || task.Exhausted() != (try == MaxTaskTries) {
			t.Fatalf("try %d is counted as %d, exhausted: %t", try, task.Tries, task.Exhausted())
		}
		if try == 1 { // a deploy
			if err := task.Requeue(task.Run, "", taskLater); err != nil || task.Tries != 0 || task.LastError != "" {
				t.Fatalf("after being handed back: %+v, %v", task, err)
			}
			task.Start(taskEvent, taskLater)
		}
		err := task.Requeue(task.Run, "no answer\x00", taskLater)
		if err != nil || task.LastError != "no answer\uFFFD" || task.Tries != try {
			t.Fatalf("%+v, %v", task, err)
		}
	}
}

func TestApprovedTaskIsQueued(t *testing.T) {
	t.Parallel()
	task := taskIn(t, TaskAwaitingApproval)
	if err := task.Approve(" ", taskLater); err == nil {
		t.Error("approved by a person without a name")
	}
	must(t, task.Approve("ada", taskLater))
	want := Approval{Gate: "delivery", Question: "Deliver it?", RequestedAt: taskBegun, ApprovedBy: "ada",
		ApprovedAt: taskLater}
	if *task.Approval != want || task.Tries != 0 || task.Status != TaskQueued {
		t.Errorf("%+v, %+v", task, task.Approval)
	}
}

// After a request to cancel, a run does not wait for approval, but finished work counts.
func TestCancelledTaskStopsAfterItsStep(t *testing.T) {
	t.Parallel()
	asked := func() *AgentTask {
		task := taskIn(t, TaskRunning)
		must(t, errors.Join(task.Cancel("ada", taskBegun), task.Cancel("bob", taskLater)))
		if task.Cancellation.RequestedBy != "ada" || !task.Cancellation.RequestedAt.Equal(taskBegun) {
			t.Fatalf("%+v", task.Cancellation)
		}
		return task
	}
	task := asked()
	err := task.AwaitApproval(1, "delivery", "Deliver it?", taskLater)
	if err != nil || task.Status != TaskCancelled || task.Approval != nil {
		t.Errorf("at a gate: %+v, %v", task, err)
	}
	task = asked()
	if err := task.Succeed(1, taskObject, taskLater); err != nil || task.Status != TaskSucceeded {
		t.Errorf("at the end: %+v, %v", task, err)
	}
	if err := taskIn(t, TaskRunning).Stop(1, taskLater); err == nil {
		t.Error("stopped without a request to cancel")
	}
}

func TestInvalidInputIsRefused(t *testing.T) {
	t.Parallel()
	large := json.RawMessage(`{"a": "` + strings.Repeat("x", MaxTaskInputBytes) + `"}`)
	for want, input := range map[string]json.RawMessage{"input must be a JSON object": nil, "the limit is 65536": large} {
		_, err := NewAgentTask(uuid.New(), uuid.New(), "card_briefing", input, taskBegun)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}
