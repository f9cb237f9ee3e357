package demo

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"spectral/internal/app"
	"spectral/internal/core/events"
	"spectral/internal/worlds/domain"
	worldspg "spectral/internal/worlds/infrastructure/postgres"
)

// scanFlow stays within one context.
func scanFlow() Flow {
	return Flow{
		Name: "scans", About: "worlds scans a card, and indexes the findings of the completed scan",
		Run: func(ctx context.Context, s *Stage) error {
			const subject = "card:harbour"
			findings, err := domain.NewFindings(domain.Finding{Kind: "stale_figure", Occurrences: 3},
				domain.Finding{Kind: "broken_link", Occurrences: 2})
			if err != nil {
				return err
			}
			scans := app.NewManageScans(s.UnitOfWork)
			id, err := scans.Start(ctx, s.Workspace, subject)
			if err != nil {
				return err
			}
			if _, err := scans.Complete(ctx, s.Workspace, id, findings); err != nil {
				return err
			}
			s.Say("worlds completed a scan of %s and published it, in one transaction", subject)
			again, err := scans.Complete(ctx, s.Workspace, id, findings)
			if err != nil {
				return err
			}
			if _, err = scans.Complete(ctx, s.Workspace, id, nil); again || !errors.Is(err, domain.ErrScanCompleted) {
				return fmt.Errorf("%w: a scan was completed twice: %w", ErrFlowFailed, err)
			}
			s.Say("completing it again changed nothing, and with other findings it was refused")
			if err := s.Settled(ctx, 1); err != nil {
				return err
			}
			search := func(tx events.Tx) ([]domain.FoundIn, error) {
				return worldspg.NewScanIndex(tx).Search(ctx, s.Workspace, "broken_link", 10)
			}
			found, err := inContext(ctx, s.UnitOfWork, events.Worlds, s.Workspace, search)
			if err != nil {
				return err
			}
			for _, f := range found {
				s.Say("searched for broken_link: %d in %s, of %d findings: %s",
					f.Occurrences, f.Subject, f.Total, strings.Join(f.Kinds, ", "))
			}
			return nil
		},
	}
}
