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

// MemoryState is the state of a memory:
//
//	working ──promote──> promoted
//	   │                    │
//	   └──────retire────────┴──────> retired
type MemoryState string

// The states.
const (
	WorkingMemory  MemoryState = "working"
	PromotedMemory MemoryState = "promoted"
	RetiredMemory  MemoryState = "retired"
)

// ErrMemoryRetired means that a memory is retired, which is final.
var ErrMemoryRetired = errors.New("the memory is retired: record a new one")

// Memory is something that agents have learned.
type Memory struct {
	ID           uuid.UUID
	Scope        MemoryScope
	Statement    string
	Observations int64 // how often it was recorded
	State        MemoryState
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
	switch m.State {
	case PromotedMemory:
		return m, false, nil
	case WorkingMemory:
		m.State, m.PromotedAt = PromotedMemory, at
		m.Version++
		return m, true, nil
	default:
		return m, false, ErrMemoryRetired
	}
}

// Retire retires the memory. Changed is false if it is retired already.
func (m Memory) Retire(at time.Time) (retired Memory, changed bool) {
	if m.State == RetiredMemory {
		return m, false
	}
	m.State, m.RetiredAt = RetiredMemory, at
	m.Version++
	return m, true
}
