package postgres

import (
	"cmp"
	"context"
	"errors"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype/zeronull"

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
func (a *AgentTasks) AddConversation(ctx context.Context, workspace uuid.NullUUID, id uuid.UUID, trigger uuid.NullUUID,
	at time.Time) error {
	return a.queries.AddConversation(ctx, platformdb.AddConversationParams{
		ConversationID: id, WorkspaceID: workspace, TriggerEventID: trigger, CreatedAt: at,
	})
}

// FindConversation implements [application.Tasks].
func (a *AgentTasks) FindConversation(ctx context.Context, workspace uuid.NullUUID, id uuid.UUID) error {
	_, err := a.queries.FindConversation(ctx,
		platformdb.FindConversationParams{ConversationID: id, WorkspaceID: workspace})
	if errors.Is(err, pgx.ErrNoRows) {
		return application.ErrNoConversation
	}
	return err
}

// Add implements [application.Tasks].
func (a *AgentTasks) Add(ctx context.Context, workspace uuid.NullUUID, t *domain.AgentTask) error {
	return a.queries.AddTask(ctx, platformdb.AddTaskParams{
		AgentTaskID: t.ID, WorkspaceID: workspace, ConversationID: t.Conversation, Executor: t.Executor, Input: t.Input,
		Status: string(t.Status), CreatedAt: t.CreatedAt, UpdatedAt: t.UpdatedAt, RetainUntil: t.RetainUntil,
	})
}

// Lock implements [application.Tasks].
func (a *AgentTasks) Lock(ctx context.Context, workspace uuid.NullUUID, id uuid.UUID) (*domain.AgentTask, error) {
	row, err := a.queries.LockTask(ctx, platformdb.LockTaskParams{AgentTaskID: id, WorkspaceID: workspace})
	if errors.Is(err, pgx.ErrNoRows) {
		err = application.ErrNoTask
	}
	if err != nil {
		return nil, err
	}
	task := &domain.AgentTask{
		ID: id, Conversation: row.ConversationID, Executor: row.Executor, Input: row.Input,
		Status: domain.TaskStatus(row.Status), Steps: row.Steps, Result: row.Result,
		FailureReason: string(row.FailureReason), LastError: string(row.LastError), Run: row.Run, Tries: int(row.Tries),
		Dispatch: row.DispatchEventID, CreatedAt: row.CreatedAt, UpdatedAt: row.UpdatedAt, RetainUntil: row.RetainUntil,
	}
	if row.ApprovalGate != "" {
		task.Approval = &domain.Approval{
			Gate: string(row.ApprovalGate), Question: string(row.ApprovalQuestion),
			RequestedAt: time.Time(row.ApprovalRequestedAt), ApprovedBy: string(row.ApprovedBy),
			ApprovedAt: time.Time(row.ApprovedAt),
		}
	}
	if row.CancelRequestedBy != "" {
		task.Cancellation = &domain.Cancellation{RequestedBy: string(row.CancelRequestedBy),
			RequestedAt: time.Time(row.CancelRequestedAt)}
	}
	return task, nil
}

// Save implements [application.Tasks].
func (a *AgentTasks) Save(ctx context.Context, workspace uuid.NullUUID, t *domain.AgentTask) error {
	p, c := cmp.Or(t.Approval, &domain.Approval{}), cmp.Or(t.Cancellation, &domain.Cancellation{})
	return a.queries.SaveTask(ctx, platformdb.SaveTaskParams{
		AgentTaskID: t.ID, WorkspaceID: workspace, Status: string(t.Status),
		Steps:  append([]domain.TaskStep{}, t.Steps...), // a nil slice would be null
		Result: t.Result, FailureReason: zeronull.Text(t.FailureReason), LastError: zeronull.Text(t.LastError),
		Run: t.Run, Tries: int32(t.Tries), DispatchEventID: t.Dispatch, UpdatedAt: t.UpdatedAt,
		ApprovalGate: zeronull.Text(p.Gate), ApprovalQuestion: zeronull.Text(p.Question),
		ApprovalRequestedAt: zeronull.Timestamptz(p.RequestedAt), ApprovedBy: zeronull.Text(p.ApprovedBy),
		ApprovedAt:        zeronull.Timestamptz(p.ApprovedAt),
		CancelRequestedBy: zeronull.Text(c.RequestedBy), CancelRequestedAt: zeronull.Timestamptz(c.RequestedAt),
	})
}
