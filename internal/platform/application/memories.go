package application

import (
	"context"
	"errors"
	"time"

	"github.com/google/uuid"

	"spectral/internal/core/events"
	contracts "spectral/internal/platform/contracts/events"
	"spectral/internal/platform/domain"
)

// Memories stores memories in one transaction.
type Memories interface {
	// Record stores a working memory under id and returns id. If its scope has a memory with the same statement that is
	// not retired, Record counts one more observation of that one and returns its id.
	Record(ctx context.Context, workspace uuid.NullUUID, id uuid.UUID, scope domain.MemoryScope, statement string,
		at time.Time) (uuid.UUID, error)
	// Lock returns a memory, or [ErrNoMemory], and locks it until the transaction ends.
	Lock(ctx context.Context, workspace uuid.NullUUID, id uuid.UUID) (domain.Memory, error)
	// Put stores the state of a memory that was locked in this transaction.
	Put(ctx context.Context, workspace uuid.NullUUID, memory domain.Memory) error
}

// ErrNoMemory means that there is no such memory in the workspace.
var ErrNoMemory = errors.New("there is no such memory in this workspace")

// ManageMemories records, promotes and retires memories. Safe for concurrent use.
type ManageMemories struct {
	Transact UnitOfWork[Memories]
	NewID    func() uuid.UUID
	Now      func() time.Time
}

// Record stores a working memory and returns its id. A memory that its scope has already gets one more observation
// and keeps its id and state. A retired memory is recorded again with a new id.
func (m *ManageMemories) Record(ctx context.Context, workspace uuid.NullUUID, scope domain.MemoryScope,
	statement string) (id uuid.UUID, err error) {
	defer wrap(&err, "record a memory")
	if err := domain.ValidateMemory(scope, statement); err != nil {
		return uuid.Nil, err
	}
	err = m.Transact(ctx, workspace, func(memories Memories, _ events.EventPublisher) error {
		id, err = memories.Record(ctx, workspace, m.NewID(), scope, statement, m.Now())
		return err
	})
	return id, err
}

// Promote promotes a working memory and publishes platform.memory.promoted. For a promoted memory it does
// nothing. For a retired one the error is [domain.ErrMemoryRetired]. The memory and its event commit together or not at
// all.
func (m *ManageMemories) Promote(ctx context.Context, workspace uuid.NullUUID, id uuid.UUID) (err error) {
	defer wrap(&err, "promote memory %s", id)
	return m.Transact(ctx, workspace, func(memories Memories, publisher events.EventPublisher) error {
		memory, err := memories.Lock(ctx, workspace, id)
		if err != nil {
			return err
		}
		now := m.Now()
		memory, changed, err := memory.Promote(now)
		if err != nil || !changed {
			return err
		}
		if err := memories.Put(ctx, workspace, memory); err != nil {
			return err
		}
		return publish(ctx, publisher, workspace, now, contracts.MemoryPromotedContract(), contracts.MemoryPromoted{
			MemoryID: memory.ID, Version: memory.Version, Scope: string(memory.Scope), Statement: memory.Statement,
			Observations: memory.Observations, PromotedAt: now,
		})
	})
}

// Retire retires a memory. It publishes no event: the curators decide about a rule candidate that the memory led to.
func (m *ManageMemories) Retire(ctx context.Context, workspace uuid.NullUUID, id uuid.UUID) (err error) {
	defer wrap(&err, "retire memory %s", id)
	return m.Transact(ctx, workspace, func(memories Memories, _ events.EventPublisher) error {
		memory, err := memories.Lock(ctx, workspace, id)
		if err != nil {
			return err
		}
		memory, changed := memory.Retire(m.Now())
		if !changed {
			return nil
		}
		return memories.Put(ctx, workspace, memory)
	})
}
