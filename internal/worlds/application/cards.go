package application

import (
	"context"
	"encoding/json"
	"time"

	"github.com/google/uuid"

	"spectral/internal/core/events"
	contracts "spectral/internal/worlds/contracts/events"
	"spectral/internal/worlds/contracts/protocols"
	"spectral/internal/worlds/domain"
)

// Cards stores world model cards in one transaction.
type Cards interface {
	// ReserveVersion returns the card's next version and locks the card until the transaction ends.
	ReserveVersion(ctx context.Context, workspace uuid.NullUUID, cardID string, at time.Time) (int64, error)
	// Put stores the card's document under a version that was reserved in this transaction.
	Put(ctx context.Context, workspace uuid.NullUUID, cardID string, version int64, document json.RawMessage,
		at time.Time) error
}

// PublishCard publishes a new version of a world model card. The card and its event commit together or not at all. Safe
// for concurrent use.
type PublishCard struct {
	Transact UnitOfWork[Cards]
	Now      func() time.Time
}

// Publish stores card in workspace under its next version, which it returns, and publishes
// worlds.world_model_card.published. The error is a [*events.Refusal] if the event is refused.
func (p *PublishCard) Publish(ctx context.Context, workspace uuid.NullUUID,
	card domain.WorldModelCard) (version int64, err error) {
	defer wrap(&err, "publish card %s", card.ID)
	err = p.Transact(ctx, workspace, func(cards Cards, publisher events.EventPublisher) error {
		now := p.Now()
		version, err = cards.ReserveVersion(ctx, workspace, card.ID, now)
		if err != nil {
			return err
		}
		envelope, err := envelopeOf(contracts.WorldModelCardPublishedContract(), contracts.WorldModelCardPublished{
			CardID: card.ID, Version: version, Title: card.Title, Summary: card.Summary, Attributes: card.Attributes,
		}, workspace, now)
		if err != nil {
			return err
		}
		if err := publisher.Publish(ctx, envelope); err != nil {
			return err
		}
		return cards.Put(ctx, workspace, card.ID, version, envelope.Payload, now)
	})
	return version, err
}

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
