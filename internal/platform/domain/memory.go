package domain

import (
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
)

// MaxMemoryBytes bounds the statement of a memory.
const MaxMemoryBytes = 2000

// MemoryScope says for whom a memory holds.
type MemoryScope string

// The scopes.
const (
	AgentMemory     MemoryScope = "agent"     // for the agent that learned it
	WorkspaceMemory MemoryScope = "workspace" // for everybody in the workspace
)

// MemoryState is where a memory is on its way:
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

// ErrMemoryRetired means that a memory is out of use for good.
var ErrMemoryRetired = errors.New("the memory is retired: record what holds now as a new one")

// Memory is something that agents have learned.
type Memory struct {
	ID           uuid.UUID
	Scope        MemoryScope
	Statement    string
	Observations int64 // how often it was recorded while it was not retired
	State        MemoryState
	Version      int64     // counts its changes from 1
	PromotedAt   time.Time // zero if it never was
	RetiredAt    time.Time // zero until it is
}

// ValidateMemory reports what is wrong with what is to be remembered.
func ValidateMemory(scope MemoryScope, statement string) error {
	err := textWithin("statement", statement, 1, MaxMemoryBytes)
	if scope != AgentMemory && scope != WorkspaceMemory {
		err = errors.Join(err, fmt.Errorf("scope is %q, must be agent or workspace", scope))
	}
	return err
}

// Promote makes the memory one that others may build on. Changed is false if it is that already.
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

// Retire takes the memory out of use. Changed is false if it is that already.
func (m Memory) Retire(at time.Time) (retired Memory, changed bool) {
	if m.State == RetiredMemory {
		return m, false
	}
	m.State, m.RetiredAt = RetiredMemory, at
	m.Version++
	return m, true
}
