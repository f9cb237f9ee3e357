package demo

import (
	"context"
	"fmt"

	"spectral/internal/core/events"
	worlds "spectral/internal/worlds/contracts/events"
)

// targetFlow shows what target means: the same event for every context, for one, and for one that has no handler of it.
func targetFlow() Flow {
	return Flow{
		Name: "targets", About: "an event for every context, one for platform alone, and one for a context that does not handle it",
		Run: func(ctx context.Context, s *Stage) error {
			contract := worlds.WorldModelCardPublishedContract()
			for i, target := range []events.Scope{"", events.Platform, events.Worlds} {
				envelope, err := events.NewEnvelope(contract, worlds.WorldModelCardPublished{CardID: fmt.Sprintf("card-%d", i), Version: 1, Title: "A card"})
				if err != nil {
					return err
				}
				envelope.WorkspaceID, envelope.Target = s.Workspace, target
				if err := s.UnitOfWork.Do(ctx, events.Worlds, s.Workspace, func(_ events.Tx, publisherFor events.PublisherFor) error {
					return publisherFor().Publish(ctx, envelope)
				}); err != nil {
					return err
				}
				name := "every context"
				if target != "" {
					name = string(target) + " alone"
				}
				s.Say("published for %s", name)
			}
			trail, err := s.trail(ctx, 3)
			if err != nil {
				return err
			}
			for i, want := range []string{"delivered", "delivered", "failed"} {
				if trail[i].Status != want {
					return fmt.Errorf("%w: the event is %s, not %s: %s", ErrFlowFailed, trail[i].Status, want, trail[i].LastError)
				}
			}
			s.Say("the last is a dead letter: worlds has no handler of it")
			return nil
		},
	}
}
