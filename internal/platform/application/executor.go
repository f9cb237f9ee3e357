package application

import (
	"context"
	"encoding/json"

	"github.com/google/uuid"

	"spectral/internal/platform/domain"
)

// Executor does the work of agent tasks, one step at a time.
//
// Advance does the step that follows those which are done, and says what came of it; it keeps nothing in memory
// from one call to the next, which may be another worker's. It may run more than once for a step, when a worker dies or is
// cut off before the step was recorded: its effects elsewhere happen at least once, and [Work.Key] is what to tell them apart by.
//
// It stops when ctx is done. An error is retried, unless it is terminal ([events.Terminal]): then the task has failed, and
// the error says to people why. Safe for concurrent use.
type Executor interface {
	Advance(ctx context.Context, work Work) (Advance, error)
}

// Executors are those of a build, by name.
type Executors map[string]Executor

// Work is a task as an executor sees it.
type Work struct {
	Task, Conversation uuid.UUID
	Workspace          uuid.NullUUID
	Input              json.RawMessage
	// Run counts the tries at the task. A later one takes the task from an earlier: whoever is told the higher number
	// may refuse the lower.
	Run int64

	task *domain.AgentTask
}

// Result is what a step came to; false: it is not done yet.
func (w Work) Result(step string) (json.RawMessage, bool) { return w.task.StepResult(step) }

// Approved reports whether a person has let the task through a gate.
func (w Work) Approved(gate string) bool {
	a := w.task.Approval
	return a != nil && a.Gate == gate && a.Verdict == domain.Approved
}

// Key identifies an effect of a step wherever it is made: it is the same each time that the step is repeated.
func (w Work) Key(step string) string { return w.Task.String() + "/" + step }

// Advance is what came of a step: exactly one of [StepDone], [NeedsApproval] and [TaskDone].
type Advance struct {
	step, gate, question string
	result               json.RawMessage
}

// StepDone says that a step is done, and what it came to: a JSON object, which is recorded.
func StepDone(step string, result json.RawMessage) Advance {
	return Advance{step: step, result: result}
}

// NeedsApproval says that a person has to let the task through a gate before it goes on, and what that person is asked.
// The run ends; another begins once that is decided.
func NeedsApproval(gate, question string) Advance { return Advance{gate: gate, question: question} }

// TaskDone says that there is nothing left to do, and what the task came to: a JSON object.
func TaskDone(result json.RawMessage) Advance { return Advance{result: result} }
