// Package protocols holds the synchronous interfaces that worlds offers to other contexts, with their requests and
// answers. Callers declare their own ports and do not import this package; internal/app adapts one to the other.
package protocols

import (
	"context"
	"encoding/json"
	"errors"

	"github.com/google/uuid"
)

// CardLookup returns the current version of world model cards, which may be newer than the last event.
type CardLookup interface {
	// LookUpCard returns the current version of a card. The error is [ErrCardNotFound] if the workspace has no such
	// card. After any other error a retry may help.
	LookUpCard(ctx context.Context, request CardRequest) (Card, error)
}

// CardRequest asks for one card.
type CardRequest struct {
	// Workspace is the card's workspace; not Valid for a card without one.
	Workspace uuid.NullUUID `json:"workspace"`
	// CardID identifies the card within its workspace.
	CardID string `json:"card_id"`
}

// Card is one version of a world model card.
type Card struct {
	// CardID is the id in the request.
	CardID string `json:"card_id"`
	// Version counts the card's publications from 1.
	Version int64 `json:"version"`
	// Title is one line.
	Title string `json:"title"`
	// Summary is prose, possibly empty.
	Summary string `json:"summary"`
	// Attributes is a JSON object with what the world model knows about the card's subject.
	Attributes json.RawMessage `json:"attributes"`
}

// ErrCardNotFound means that the workspace has no such card.
var ErrCardNotFound = errors.New("worlds has no such card in this workspace")
