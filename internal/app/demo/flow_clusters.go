package demo

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"

	"spectral/internal/app"
	"spectral/internal/core/events"
	platform "spectral/internal/platform/contracts/events"
	platformdomain "spectral/internal/platform/domain"
	worldsdomain "spectral/internal/worlds/domain"
	worldspg "spectral/internal/worlds/infrastructure/postgres"
)

// clusterFlow publishes both versions of the event until the deadline of the first.
func clusterFlow() Flow {
	return Flow{
		Name: "clusters", About: "platform detects a failure cluster, worlds proposes a rule (both versions)",
		Run: func(ctx context.Context, s *Stage) error {
			detect, published := app.NewDetectFailureCluster(s.UnitOfWork), 1
			if deprecated := platform.FailureClusterDetectedContract().Deprecation; time.Now().Before(deprecated.Deadline) {
				detect.AlsoPublishV1, published = true, 2
			}
			var cluster platformdomain.FailureCluster
			for _, failures := range []platformdomain.FailureCount{
				{Kind: "read timeout", Count: 12, Example: "no answer within 5 s"}, {Kind: "connection refused", Count: 8},
			} {
				var err error
				if cluster, err = detect.Detect(ctx, s.Workspace, demoFailures(failures)); err != nil {
					return err
				}
				s.Say("platform stored revision %d of the cluster %s, %d failures, and published it",
					cluster.Revision, cluster.Signature, cluster.Count())
			}
			if err := s.Settled(ctx, 2*published+1); err != nil { // and the rule candidate, once
				return err
			}
			candidate, err := s.candidate(ctx, worldsdomain.FromFailureCluster, cluster.ID)
			if err != nil {
				return err
			}
			if candidate.Revision != cluster.Revision {
				return fmt.Errorf("%w: the rule candidate has revision %d, the cluster %d",
					ErrFlowFailed, candidate.Revision, cluster.Revision)
			}
			s.sayCandidate(candidate)
			return nil
		},
	}
}

// demoFailures returns a detection of failures of the loader, seen now.
func demoFailures(failures ...platformdomain.FailureCount) platformdomain.FailureDetection {
	return platformdomain.FailureDetection{
		Signature: platformdomain.FailureSignature{Component: "loader", Operation: "fetch", ErrorClass: "Timeout"},
		Failures:  failures, SeenAt: time.Now(),
	}
}

// candidate returns the rule candidate of an origin.
func (s *Stage) candidate(ctx context.Context, origin worldsdomain.CandidateOrigin,
	id uuid.UUID) (candidate worldsdomain.RuleCandidate, err error) {
	found := false
	err = s.UnitOfWork.Do(ctx, events.Worlds, s.Workspace, func(tx events.Tx, _ events.PublisherFor) error {
		candidate, found, err = worldspg.NewRuleCandidates(tx).LockOfOrigin(ctx, s.Workspace, origin, id)
		return err
	})
	if err == nil && !found {
		err = fmt.Errorf("%w: worlds has no rule candidate of the %s", ErrFlowFailed, origin)
	}
	return candidate, err
}

func (s *Stage) sayCandidate(c worldsdomain.RuleCandidate) {
	s.Say("worlds has a rule candidate, %s, confidence %.2f of %d occurrences: %q",
		c.State, c.Confidence, c.Occurrences, c.Statement)
}
