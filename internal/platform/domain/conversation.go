package domain

import (
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
)

// ConversationKind says who began a conversation.
type ConversationKind string

// The kinds of conversations.
const (
	Reactive  ConversationKind = "reactive"  // somebody asked
	Proactive ConversationKind = "proactive" // platform began by itself
)

// Conversation is what agent tasks belong to.
type Conversation struct {
	ID   uuid.UUID
	Kind ConversationKind
	// TriggerEvent is the id of the event that caused a proactive conversation, where an event did (seed: D12). The
	// event may be gone by the time somebody looks.
	TriggerEvent uuid.NullUUID
	CreatedAt    time.Time
}

// Validate reports what is wrong with a conversation.
func (c Conversation) Validate() error {
	err := checkID("conversation_id", c.ID)
	if c.Kind != Reactive && c.Kind != Proactive {
		err = errors.Join(err, fmt.Errorf("kind is %.40q, must be %s or %s", c.Kind, Reactive, Proactive))
	}
	if c.TriggerEvent.Valid && c.Kind != Proactive {
		err = errors.Join(err, fmt.Errorf("a %s conversation has no trigger event: what an event causes is %s", c.Kind, Proactive))
	}
	return err
}
