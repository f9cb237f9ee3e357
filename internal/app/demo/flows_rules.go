package demo

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/google/uuid"

	"spectral/internal/app"
	"spectral/internal/core/events"
	contracts "spectral/internal/platform/contracts/events"
	platform "spectral/internal/platform/domain"
	platformpg "spectral/internal/platform/infrastructure/postgres"
	worlds "spectral/internal/worlds/domain"
	worldspg "spectral/internal/worlds/infrastructure/postgres"
)

// decisions has handlers of two contexts on one claim.
func (s *Stage) decisions(ctx context.Context) error {
	const rule = "berth-depth"
	record := app.NewRecordDecision(s.UnitOfWork)
	reasons := []string{"", "", "Surveyed last week", "", "surveyed  last week"} // empty for a proposal that was followed
	for _, reason := range reasons {
		decision := platform.Decision{DecidedBy: "the harbour master", DecidedAt: time.Now(), Ruling: platform.Ruling{
			DecisionID: uuid.New(), RuleID: rule, Outcome: platform.Followed, OverrideReason: reason}}
		if reason != "" {
			decision.Outcome = platform.Overridden
		}
		if _, err := record.Record(ctx, s.Workspace, decision); err != nil {
			return err
		}
	}
	s.Say("platform recorded %d decisions on rule %s, each with its event in one transaction", len(reasons), rule)
	if err := s.Settled(ctx, len(reasons)); err != nil {
		return err
	}
	pattern, err := inContext(ctx, s, events.Platform, func(tx events.Tx) (platform.OverridePattern, error) {
		return platformpg.NewOverridePatterns(tx).Of(ctx, s.Workspace, rule)
	})
	if err != nil {
		return err
	}
	s.Say("platform counts %d followed, %d overridden", pattern.Followed, pattern.Overridden)
	for _, reason := range pattern.Reasons {
		s.Say("overridden %d times because %q", reason.Overridden, reason.Reason)
	}
	health, err := inContext(ctx, s, events.Worlds, func(tx events.Tx) (worlds.RuleHealth, error) {
		return worldspg.NewRuleHealth(tx).Of(ctx, s.Workspace, rule)
	})
	s.Say("worlds has rule %s as %s", rule, health.State())
	return err
}

// clusters publishes both versions of the event until the deadline of the first.
func (s *Stage) clusters(ctx context.Context) error {
	detect, published := app.NewDetectFailureCluster(s.UnitOfWork), 1
	if deprecated := contracts.FailureClusterDetectedContract().Deprecation; time.Now().Before(deprecated.Deadline) {
		detect.AlsoPublishV1, published = true, 2
	}
	var cluster platform.FailureCluster
	for _, failures := range []platform.FailureCount{
		{Kind: "read timeout", Count: 12, Example: "no answer within 5 s"}, {Kind: "connection refused", Count: 8},
	} {
		var err error
		if cluster, err = detect.Detect(ctx, s.Workspace, loaderFailures(failures)); err != nil {
			return err
		}
		s.Say("platform stored revision %d of the cluster %s, %d failures, and published it",
			cluster.Revision, cluster.Signature, cluster.Count())
	}
	if err := s.Settled(ctx, 2*published+1); err != nil { // and the rule candidate, once
		return err
	}
	candidate, err := s.candidate(ctx, worlds.FromFailureCluster, cluster.ID)
	if err == nil && candidate.Revision != cluster.Revision {
		err = fmt.Errorf("%w: the rule candidate has revision %d, the cluster %d",
			errFlowFailed, candidate.Revision, cluster.Revision)
	}
	return err
}

// loaderFailures returns a detection of failures of the loader, seen now.
func loaderFailures(failures platform.FailureCount) platform.FailureDetection {
	return platform.FailureDetection{
		Signature: platform.FailureSignature{Component: "loader", Operation: "fetch", ErrorClass: "Timeout"},
		Failures:  []platform.FailureCount{failures}, SeenAt: time.Now(),
	}
}

// candidate returns the rule candidate of an origin, and describes it.
func (s *Stage) candidate(ctx context.Context, origin worlds.CandidateOrigin,
	id uuid.UUID) (c worlds.RuleCandidate, err error) {
	found := false
	err = s.UnitOfWork.Do(ctx, events.Worlds, s.Workspace, func(tx events.Tx, _ events.PublisherFor) error {
		c, found, err = worldspg.NewRuleCandidates(tx).LockOfOrigin(ctx, s.Workspace, origin, id)
		return err
	})
	if err == nil && !found {
		err = fmt.Errorf("%w: worlds has no rule candidate of the %s", errFlowFailed, origin)
	}
	if err == nil {
		s.Say("worlds has a rule candidate, %s, confidence %.2f of %d occurrences: %q",
			c.State, c.Confidence, c.Occurrences, c.Statement)
	}
	return c, err
}

func (s *Stage) memories(ctx context.Context) error {
	memories := app.NewManageMemories(s.UnitOfWork)
	var id uuid.UUID
	for range 2 {
		var err error
		const statement = "Ask a person before a card is deleted."
		if id, err = memories.Record(ctx, s.Workspace, platform.WorkspaceMemory, statement); err != nil {
			return err
		}
	}
	if err := memories.Promote(ctx, s.Workspace, id); err != nil {
		return err
	}
	s.Say("platform recorded a memory twice, then promoted it and published that, in one transaction")
	if err := s.Settled(ctx, 2); err != nil {
		return err
	}
	_, err := s.candidate(ctx, worlds.FromMemory, id)
	return err
}

func (s *Stage) curation(ctx context.Context) error {
	failures := loaderFailures(platform.FailureCount{Kind: "read timeout", Count: 20})
	cluster, err := app.NewDetectFailureCluster(s.UnitOfWork).Detect(ctx, s.Workspace, failures)
	if err != nil {
		return err
	}
	var candidate worlds.RuleCandidate
	if err := s.Await(ctx, "a rule is proposed", func(ctx context.Context) (bool, error) {
		candidate, err = s.candidate(ctx, worlds.FromFailureCluster, cluster.ID)
		if errors.Is(err, errFlowFailed) {
			return false, nil
		}
		return err == nil, err
	}); err != nil {
		return err
	}
	decide := app.NewDecideCuration(s.UnitOfWork)
	approval, err := decide.Decide(ctx, s.Workspace, candidate.ID, platform.ApproveCandidate, "seen often enough", "ada")
	if err != nil {
		return err
	}
	mistake, err := decide.Decide(ctx, s.Workspace, uuid.New(), platform.RejectCandidate, "", "ada")
	if err != nil {
		return err
	}
	s.Say("platform stored two decisions, one about a candidate that does not exist, and published them for worlds")
	if err := s.Settled(ctx, 6); err != nil {
		return err
	}
	if candidate, err = s.candidate(ctx, worlds.FromFailureCluster, cluster.ID); err != nil {
		return err
	}
	if candidate.State != worlds.ApprovedCandidate {
		return fmt.Errorf("%w: the rule candidate is %s", errFlowFailed, candidate.State)
	}
	s.Say("worlds has the rule candidate as %s", candidate.State)
	return errors.Join(s.outcome(ctx, approval, platform.CurationApplied),
		s.outcome(ctx, mistake, platform.CurationRefused))
}

// outcome says what platform knows of a curation decision, which must have the given outcome.
func (s *Stage) outcome(ctx context.Context, id uuid.UUID, want platform.CurationOutcome) error {
	decision, err := inContext(ctx, s, events.Platform, func(tx events.Tx) (platform.CurationDecision, error) {
		decision, _, err := platformpg.NewCurationDecisions(tx).Lock(ctx, s.Workspace, id)
		return decision, err
	})
	if err == nil && decision.Outcome != want {
		err = fmt.Errorf("%w: the decision is %q, not %s", errFlowFailed, decision.Outcome, want)
	}
	outcome := strings.TrimSuffix(string(decision.Outcome)+": "+decision.Reason, ": ")
	s.Say("platform knows the decision to %s as %s", decision.Verdict, outcome)
	return err
}
