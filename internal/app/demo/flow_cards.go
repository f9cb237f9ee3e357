package demo

import (
	"context"
	"encoding/json"

	"spectral/internal/app"
	"spectral/internal/worlds/domain"
)

// cardFlow publishes one card, as the demo does without flows.
func cardFlow() Flow {
	return Flow{
		Name: "cards", About: "worlds publishes a world model card, platform projects it into a system card",
		Run: func(ctx context.Context, s *Stage) error {
			card, err := harbourCard()
			if err != nil {
				return err
			}
			version, err := app.NewPublishCard(s.UnitOfWork).Publish(ctx, s.Workspace, card)
			if err != nil {
				return err
			}
			s.Say("worlds stored version %d of card %s and published it, in one transaction", version, card.ID)
			if err := s.Settled(ctx, 1); err != nil {
				return err
			}
			projected, err := latestCard(ctx, s.UnitOfWork, s.Workspace)
			if err != nil {
				return err
			}
			s.Say("platform has %s", describe(projected))
			return nil
		},
	}
}

func harbourCard() (domain.WorldModelCard, error) {
	attributes := json.RawMessage(`{"berths": 40}`)
	return domain.NewWorldModelCard("harbour", "The Harbour of Veyra", "What is known about it.", attributes)
}
