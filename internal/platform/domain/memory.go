package domain

import (
	"errors"
	"time"

	"spectral/internal/core/check"

	"github.com/google/uuid"
)

// MaxMemoryBytes bounds the statement of a memory.
const MaxMemoryBytes = 2000

// MemoryScope says who may use a memory.
type MemoryScope string

// The scopes.
const (
	AgentMemory     MemoryScope = "agent"     // for the agent that learned it
	WorkspaceMemory MemoryScope = "workspace" // for all in the workspace
)

// ErrMemoryRetired means that a memory is retired, which is final.
var ErrMemoryRetired = errors.New("the memory is retired: record a new one")

// Memory is something that agents have learned. It is working until it is promoted, and in the end retired.
type Memory struct {
	ID           uuid.UUID
	Scope        MemoryScope
	Statement    string
	Observations int64     // how often it was recorded
	Version      int64     // counts the changes from 1
	PromotedAt   time.Time // zero if it was not promoted
	RetiredAt    time.Time // zero if it is not retired
}

// ValidateMemory returns an error for a scope or statement that cannot be recorded.
func ValidateMemory(scope MemoryScope, statement string) error {
	return errors.Join(check.Text("statement", statement, true, MaxMemoryBytes),
		check.OneOf("scope", scope, AgentMemory, WorkspaceMemory))
}

// Promote promotes the memory. Changed is false if it is promoted already.
func (m Memory) Promote(at time.Time) (promoted Memory, changed bool, err error) {
	switch {
	case !m.RetiredAt.IsZero():
		return m, false, ErrMemoryRetired
	case !m.PromotedAt.IsZero():
		return m, false, nil
	}
	m.PromotedAt = at
	m.Version++
	return m, true, nil
}

// Retire retires the memory. Changed is false if it is retired already.
func (m Memory) Retire(at time.Time) (retired Memory, changed bool) {
	if !m.RetiredAt.IsZero() {
		return m, false
	}
	m.RetiredAt = at
	m.Version++
	return m, true
}
