package postgres

import (
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

// Memories stores memories in the transaction it was built for.
type Memories struct{ queries *platformdb.Queries }

// NewMemories returns the repository for tx.
func NewMemories(tx events.Tx) *Memories { return &Memories{queries: platformdb.New(tx)} }

// Record implements [application.Memories].
func (m *Memories) Record(ctx context.Context, workspace uuid.NullUUID, id uuid.UUID, scope domain.MemoryScope,
	statement string, at time.Time) (uuid.UUID, error) {
	return m.queries.RecordMemory(ctx, platformdb.RecordMemoryParams{
		MemoryID: id, WorkspaceID: workspace, Scope: string(scope), Statement: statement, RecordedAt: at,
	})
}

// Lock implements [application.Memories].
func (m *Memories) Lock(ctx context.Context, workspace uuid.NullUUID, id uuid.UUID) (domain.Memory, error) {
	row, err := m.queries.LockMemory(ctx, platformdb.LockMemoryParams{WorkspaceID: workspace, MemoryID: id})
	if errors.Is(err, pgx.ErrNoRows) {
		err = application.ErrNoMemory
	}
	return domain.Memory{
		ID: id, Scope: domain.MemoryScope(row.Scope), Statement: row.Statement, Observations: row.Observations,
		State: domain.MemoryState(row.State), Version: row.Version, PromotedAt: time.Time(row.PromotedAt),
		RetiredAt: time.Time(row.RetiredAt),
	}, err
}

// Put implements [application.Memories].
func (m *Memories) Put(ctx context.Context, workspace uuid.NullUUID, memory domain.Memory) error {
	return m.queries.PutMemory(ctx, platformdb.PutMemoryParams{
		WorkspaceID: workspace, MemoryID: memory.ID, State: string(memory.State), Version: memory.Version,
		PromotedAt: zeronull.Timestamptz(memory.PromotedAt), RetiredAt: zeronull.Timestamptz(memory.RetiredAt),
	})
}
