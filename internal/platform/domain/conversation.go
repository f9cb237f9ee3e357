package domain

import (
	"errors"
	"fmt"
	"time"

	"spectral/internal/core/check"

	"github.com/google/uuid"
)

// ConversationKind says who began a conversation.
type ConversationKind string

// The kinds of conversations.
const (
	Reactive  ConversationKind = "reactive"  // a person asked
	Proactive ConversationKind = "proactive" // platform began without a request
)

// Conversation groups agent tasks.
type Conversation struct {
	ID   uuid.UUID
	Kind ConversationKind
	// TriggerEvent is the id of the event that caused a proactive conversation, if an event did (docs/decisions/0018).
	// Retention may have deleted the event.
	TriggerEvent uuid.NullUUID
	CreatedAt    time.Time
}

// Validate returns an error for a conversation that is invalid.
func (c Conversation) Validate() error {
	err := errors.Join(check.ID("conversation_id", c.ID), check.OneOf("kind", c.Kind, Reactive, Proactive))
	if c.TriggerEvent.Valid && c.Kind != Proactive {
		err = errors.Join(err, fmt.Errorf("a %s conversation has no trigger event: what an event causes is %s", c.Kind,
			Proactive))
	}
	return err
}
