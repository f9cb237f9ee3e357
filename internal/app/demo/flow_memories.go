package demo

import (
	"context"

	"spectral/internal/app"
	platformdomain "spectral/internal/platform/domain"
	worldsdomain "spectral/internal/worlds/domain"
)

func memoryFlow() Flow {
	return Flow{
		Name: "memories", About: "platform promotes a memory, worlds routes it to a rule candidate",
		Run: func(ctx context.Context, s *Stage) error {
			const statement = "Ask a person before a card is deleted."
			memories := app.NewManageMemories(s.UnitOfWork)
			if _, err := memories.Record(ctx, s.Workspace, platformdomain.WorkspaceMemory, statement); err != nil {
				return err
			}
			id, err := memories.Record(ctx, s.Workspace, platformdomain.WorkspaceMemory, statement)
			if err != nil {
				return err
			}
			if err := memories.Promote(ctx, s.Workspace, id); err != nil {
				return err
			}
			s.Say("platform recorded a memory twice, then promoted it and published that, in one transaction")
			if err := s.Settled(ctx, 2); err != nil {
				return err
			}
			candidate, err := s.candidate(ctx, worldsdomain.FromMemory, id)
			if err != nil {
				return err
			}
			s.sayCandidate(candidate)
			return nil
		},
	}
}
