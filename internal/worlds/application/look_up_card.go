package application

import (
	"context"

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
type LookUpCard struct{ Transact UnitOfWork[CardReader] }

// LookUpCard implements [protocols.CardLookup].
func (l *LookUpCard) LookUpCard(ctx context.Context, request protocols.CardRequest) (card protocols.Card, err error) {
	defer wrap(&err, "look up card %s", request.CardID)
	err = l.Transact(ctx, request.Workspace, func(cards CardReader, _ events.EventPublisher) error {
		card, err = cards.Card(ctx, request.Workspace, request.CardID)
		return err
	})
	return card, err
}
