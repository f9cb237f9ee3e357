package demo

import (
	"context"
	"fmt"

	"spectral/internal/core/events"
	worlds "spectral/internal/worlds/contracts/events"
)

// targetFlow publishes an event for every context, for one context, and for a context that has no handler of it.
func targetFlow() Flow {
	return Flow{
		Name: "targets", About: "an event for every context, one for platform, and one for a context without a handler",
		Run: func(ctx context.Context, s *Stage) error {
			contract := worlds.WorldModelCardPublishedContract()
			for i, target := range []events.Scope{"", events.Platform, events.Worlds} {
				payload := worlds.WorldModelCardPublished{CardID: fmt.Sprintf("card-%d", i), Version: 1, Title: "A card"}
				envelope, err := events.NewEnvelope(contract, payload)
				if err != nil {
					return err
				}
				envelope.WorkspaceID, envelope.Target = s.Workspace, target
				work := func(_ events.Tx, publisherFor events.PublisherFor) error {
					return publisherFor().Publish(ctx, envelope)
				}
				if err := s.UnitOfWork.Do(ctx, events.Worlds, s.Workspace, work); err != nil {
					return err
				}
				name := "every context"
				if target != "" {
					name = "only " + string(target)
				}
				s.Say("published for %s", name)
			}
			trail, err := s.trail(ctx, 3)
			if err != nil {
				return err
			}
			for i, want := range []string{"delivered", "delivered", "failed"} {
				if trail[i].Status != want {
					return fmt.Errorf("%w: the event is %s, not %s: %s",
						ErrFlowFailed, trail[i].Status, want, trail[i].LastError)
				}
			}
			s.Say("the last is a dead letter: worlds has no handler of it")
			return nil
		},
	}
}
