package application

import (
	"context"
	"fmt"

	"github.com/google/uuid"

	"spectral/internal/core/events"
	"spectral/internal/worlds/contracts/protocols"
)

// CardReader reads world model cards in one transaction.
type CardReader interface {
	// Card returns a card, or [protocols.ErrCardNotFound].
	Card(ctx context.Context, workspace uuid.NullUUID, cardID string) (protocols.Card, error)
}

// LookUpCard implements [protocols.CardLookup] for other contexts. Safe for concurrent use.
type LookUpCard struct{ transact UnitOfWork[CardReader] }

// NewLookUpCard returns the use case.
func NewLookUpCard(transact UnitOfWork[CardReader]) *LookUpCard {
	return &LookUpCard{transact: transact}
}

// LookUpCard implements [protocols.CardLookup].
func (l *LookUpCard) LookUpCard(ctx context.Context, request protocols.CardRequest) (card protocols.Card, err error) {
	err = l.transact(ctx, request.Workspace, func(cards CardReader, _ events.EventPublisher) error {
		card, err = cards.Card(ctx, request.Workspace, request.CardID)
		return err
	})
	if err != nil {
		return protocols.Card{}, fmt.Errorf("look up card %s: %w", request.CardID, err)
	}
	return card, nil
}
