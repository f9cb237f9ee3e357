package postgres

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"spectral/internal/core/events"
	"spectral/internal/platform/application"
	"spectral/internal/platform/domain"
	"spectral/internal/platform/infrastructure/postgres/platformdb"
)

// AgentTasks stores conversations and agent tasks in the transaction it was built for.
type AgentTasks struct{ queries *platformdb.Queries }

// NewAgentTasks returns the repository for tx.
func NewAgentTasks(tx events.Tx) *AgentTasks { return &AgentTasks{queries: platformdb.New(tx)} }

// AddConversation implements [application.Tasks].
func (a *AgentTasks) AddConversation(ctx context.Context, workspace uuid.NullUUID, c domain.Conversation) error {
	if err := c.Validate(); err != nil {
		return fmt.Errorf("conversation %s: %w", c.ID, err)
	}
	err := a.queries.AddConversation(ctx, platformdb.AddConversationParams{
		ConversationID: c.ID, WorkspaceID: workspace, Kind: string(c.Kind), TriggerEventID: c.TriggerEvent,
		CreatedAt: c.CreatedAt,
	})
	if err != nil {
		return fmt.Errorf("store conversation %s: %w", c.ID, err)
	}
	return nil
}

// Conversation implements [application.Tasks].
func (a *AgentTasks) Conversation(ctx context.Context, workspace uuid.NullUUID,
	id uuid.UUID) (domain.Conversation, error) {
	row, err := a.queries.FindConversation(ctx,
		platformdb.FindConversationParams{ConversationID: id, WorkspaceID: workspace})
	if errors.Is(err, pgx.ErrNoRows) {
		return domain.Conversation{}, application.ErrNoConversation
	}
	if err != nil {
		return domain.Conversation{}, fmt.Errorf("read conversation %s: %w", id, err)
	}
	return domain.Conversation{
		ID: row.ConversationID, Kind: domain.ConversationKind(row.Kind), TriggerEvent: row.TriggerEventID,
		CreatedAt: row.CreatedAt,
	}, nil
}

// Add implements [application.Tasks].
func (a *AgentTasks) Add(ctx context.Context, workspace uuid.NullUUID, t *domain.AgentTask) (bool, error) {
	n, err := a.queries.AddTask(ctx, platformdb.AddTaskParams{
		AgentTaskID: t.ID, WorkspaceID: workspace, ConversationID: t.Conversation, Executor: t.Executor, Input: t.Input,
		Status: string(t.Status), CreatedAt: t.CreatedAt, UpdatedAt: t.UpdatedAt, RetainUntil: t.RetainUntil,
	})
	if err != nil {
		return false, fmt.Errorf("store agent task %s: %w", t.ID, err)
	}
	return n == 1, nil
}

// Find implements [application.Tasks].
func (a *AgentTasks) Find(ctx context.Context, workspace uuid.NullUUID, id uuid.UUID) (*domain.AgentTask, error) {
	row, err := a.queries.FindTask(ctx, platformdb.FindTaskParams{AgentTaskID: id, WorkspaceID: workspace})
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, application.ErrNoTask
	}
	if err != nil {
		return nil, fmt.Errorf("read agent task %s: %w", id, err)
	}
	task := &domain.AgentTask{
		ID: row.AgentTaskID, Conversation: row.ConversationID, Executor: row.Executor, Input: row.Input,
		Status: domain.TaskStatus(row.Status), Result: row.Result, FailureReason: text(row.FailureReason),
		LastError: text(row.LastError),
		Run:       row.Run, Tries: int(row.Tries), Dispatch: row.DispatchEventID,
		CreatedAt: row.CreatedAt, UpdatedAt: row.UpdatedAt, RetainUntil: row.RetainUntil,
	}
	if err := json.Unmarshal(row.Steps, &task.Steps); err != nil {
		return nil, fmt.Errorf("steps of agent task %s: %w", id, err)
	}
	if row.ApprovalGate != nil {
		task.Approval = &domain.Approval{
			Gate: *row.ApprovalGate, Question: text(row.ApprovalQuestion), RequestedAt: row.ApprovalRequestedAt.Time,
			Verdict: domain.Verdict(text(row.ApprovalVerdict)), DecidedBy: text(row.ApprovalDecidedBy),
			DecidedAt: row.ApprovalDecidedAt.Time, Comment: text(row.ApprovalComment),
		}
	}
	if row.CancelRequestedBy != nil {
		task.Cancellation = &domain.Cancellation{RequestedBy: *row.CancelRequestedBy, RequestedAt: row.CancelRequestedAt.Time}
	}
	return task, nil
}

// Lock implements [application.Tasks].
func (a *AgentTasks) Lock(ctx context.Context, workspace uuid.NullUUID, id uuid.UUID) (*domain.AgentTask, error) {
	if err := a.queries.LockTask(ctx, platformdb.LockTaskParams{AgentTaskID: id, WorkspaceID: workspace}); err != nil {
		return nil, fmt.Errorf("lock agent task %s: %w", id, err)
	}
	return a.Find(ctx, workspace, id)
}

// Save implements [application.Tasks].
func (a *AgentTasks) Save(ctx context.Context, workspace uuid.NullUUID, t *domain.AgentTask) error {
	steps, err := json.Marshal(t.Steps)
	if err != nil {
		return fmt.Errorf("store agent task %s: steps: %w", t.ID, err)
	}
	if t.Steps == nil {
		steps = json.RawMessage("[]")
	}
	params := platformdb.SaveTaskParams{
		AgentTaskID: t.ID, WorkspaceID: workspace, Status: string(t.Status), Steps: steps, Result: t.Result,
		FailureReason: textOrNull(t.FailureReason), LastError: textOrNull(t.LastError),
		Run: t.Run, Tries: int32(t.Tries), DispatchEventID: t.Dispatch, UpdatedAt: t.UpdatedAt,
	}
	if p := t.Approval; p != nil {
		params.ApprovalGate, params.ApprovalQuestion = &p.Gate, &p.Question
		params.ApprovalRequestedAt = timeOrNull(p.RequestedAt)
		params.ApprovalVerdict, params.ApprovalDecidedBy = textOrNull(string(p.Verdict)), textOrNull(p.DecidedBy)
		params.ApprovalDecidedAt, params.ApprovalComment = timeOrNull(p.DecidedAt), textOrNull(p.Comment)
	}
	if c := t.Cancellation; c != nil {
		params.CancelRequestedBy, params.CancelRequestedAt = &c.RequestedBy, timeOrNull(c.RequestedAt)
	}
	n, err := a.queries.SaveTask(ctx, params)
	if err != nil {
		return fmt.Errorf("store agent task %s: %w", t.ID, err)
	}
	if n != 1 {
		return fmt.Errorf("store agent task %s: %w", t.ID, application.ErrNoTask)
	}
	return nil
}
