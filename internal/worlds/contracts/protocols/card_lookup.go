package protocols

import (
	"context"
	"encoding/json"
	"errors"

	"github.com/google/uuid"
)

// CardLookup answers for world model cards as they stand now, not as they were when an event said so.
type CardLookup interface {
	// LookUpCard returns the current version of a card. The error is [ErrCardNotFound] if the workspace has no such
	// card; any other says that worlds could not answer, and asking again may help.
	LookUpCard(ctx context.Context, request CardRequest) (Card, error)
}

// CardRequest asks for one card.
type CardRequest struct {
	// Workspace of the card; not Valid for one of no workspace.
	Workspace uuid.NullUUID `json:"workspace"`
	// CardID identifies the card within its workspace.
	CardID string `json:"card_id"`
}

// Card is one version of a world model card.
type Card struct {
	// CardID is as it was asked for.
	CardID string `json:"card_id"`
	// Version counts the card's publications from 1.
	Version int64 `json:"version"`
	// Title is one line.
	Title string `json:"title"`
	// Summary is prose, possibly empty.
	Summary string `json:"summary"`
	// Attributes is a JSON object of whatever the world model knows about the card's subject.
	Attributes json.RawMessage `json:"attributes"`
}

// ErrCardNotFound is the answer for a card that the workspace does not have.
var ErrCardNotFound = errors.New("worlds has no such card in this workspace")
