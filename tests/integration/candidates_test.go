package integration_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"spectral/internal/app"
	"spectral/internal/core/events"
	"spectral/internal/core/events/infrastructure/postgres/dispatch"
	platformapp "spectral/internal/platform/application"
	platform "spectral/internal/platform/contracts/events"
	"spectral/internal/platform/domain"
	worlds "spectral/internal/worlds/contracts/events"
)

// candidateTypes are the events around rule candidates that have a consumer.
var candidateTypes = []string{platform.FailureClusterDetectedType, platform.FailureClusterDetectedV2Type,
	platform.MemoryPromotedType, platform.CurationDecidedType, worlds.CurationAppliedType}

// startCandidateWorker starts a worker with the product's consumers of the given types, each with the given number of
// runners. It does not poll.
func (b *bundle) startCandidateWorker(runners int, types ...string) *testWorker {
	b.Helper()
	var all []events.Subscription
	for _, eventType := range types {
		s := b.productConsumer(eventType)
		s.Concurrency = runners
		all = append(all, s)
	}
	return b.startWorker(noPoll, all[0], all[1:]...)
}

// sqlProducer publishes by SQL, like a producer in another language.
type sqlProducer struct {
	*bundle
	conn      *pgx.Conn
	workspace uuid.NullUUID
}

func (b *bundle) newSQLProducer() sqlProducer {
	b.Helper()
	return sqlProducer{b, b.conn(), newWorkspace()}
}

func newWorkspace() uuid.NullUUID { return uuid.NullUUID{UUID: uuid.New(), Valid: true} }

func (o sqlProducer) publish(eventType, target, payload string) (id uuid.UUID) {
	o.Helper()
	source, _, _ := strings.Cut(eventType, ".")
	const publish = "select core.outbox_publish($1, $2, $3::jsonb, p_target => nullif($4, ''), p_workspace_id => $5)"
	must(o.T, o.conn.QueryRow(o.ctx, publish, eventType, source, payload, target, o.workspace).Scan(&id))
	return id
}

func decided(decision, candidate uuid.UUID, verdict string, at time.Time) string {
	return fmt.Sprintf(`{"decision_id": %q, "candidate_id": %q, "verdict": %q, "decided_by": "grace",
		"decided_at": %q, "unknown": 1}`, decision, candidate, verdict, at.Format(time.RFC3339Nano))
}

func detectedV1(cluster uuid.UUID, count int) string {
	return fmt.Sprintf(`{"cluster_id": %q, "signature": "loader/fetch: Timeout", "count": %d, "example": "no answer",
		"new": [1]}`, cluster, count)
}

func detectedV2(cluster uuid.UUID, revision int, counts ...int) string {
	var failures []string
	for i, n := range counts {
		failures = append(failures, fmt.Sprintf(`{"kind": "kind %d", "count": %d, "new": null}`, i, n))
	}
	return fmt.Sprintf(`{"cluster_id": %q, "revision": %d, "severity": "low",
		"first_seen_at": "2026-07-01T12:00:00Z", "last_seen_at": "2026-07-01T12:00:00Z", "signature": {"component":
			"loader", "operation": "fetch", "error_class": "Timeout"}, "failures": [%s], "new": {}}`,
		cluster, revision, strings.Join(failures, ", "))
}

func promoted(memory uuid.UUID, version, observations int) string {
	return fmt.Sprintf(`{"memory_id": %q, "version": %d, "scope": "agent", "statement": "Ask before deleting, v%[2]d.",
		"observations": %d,
		"promoted_at": "2026-07-01T12:00:00Z", "new": "field"}`, memory, version, observations)
}

func (b *bundle) candidate(origin uuid.UUID) string {
	b.Helper()
	return one[string](b, `select coalesce((select format('%s %s revision %s, %s of them: %s',
			origin, state, revision, occurrences, statement)
		from worlds.rule_candidates where origin_id = $1), 'none')`, origin)
}

func (b *bundle) wantCandidate(origin uuid.UUID, want string) {
	b.Helper()
	if got := b.candidate(origin); got != want {
		b.Fatalf("the candidate is\n%s, want\n%s", got, want)
	}
}

func (b *bundle) candidateID(origin uuid.UUID) uuid.UUID {
	b.Helper()
	return one[uuid.UUID](b, "select candidate_id from worlds.rule_candidates where origin_id = $1", origin)
}

func (b *bundle) outcome(decision uuid.UUID) string {
	b.Helper()
	return one[string](b, `select concat_ws(' ', outcome, outcome_reason) from platform.curation_decisions
		where decision_id = $1`, decision)
}

func (b *bundle) wantOutcome(decision uuid.UUID, want string) {
	b.Helper()
	if got := b.outcome(decision); got != want {
		b.Fatalf("decision %s is %s, want %s", decision, got, want)
	}
	// The outcome was published once.
	if n := one[int](b, `select count(*)::int from core.outbox where event_type = 'worlds.curation.applied'
		and payload ->> 'decision_id' = $1::text`, decision); n != 1 {
		b.Fatalf("decision %s has %d outcomes in the outbox", decision, n)
	}
}

func (b *bundle) published(workspace uuid.NullUUID, eventType string) int {
	b.Helper()
	return one[int](b, `select count(*) from core.outbox
		where event_type = $1 and workspace_id is not distinct from $2`, eventType, workspace)
}

func detection(at time.Time, counts ...domain.FailureCount) domain.FailureDetection {
	return domain.FailureDetection{
		Signature: domain.FailureSignature{Component: "loader", Operation: "fetch", ErrorClass: "Timeout"},
		Failures:  counts, SeenAt: at,
	}
}

func TestRuleCandidates(t *testing.T) {
	b := setup(t)
	l := b.startCandidateWorker(1, candidateTypes...)
	l.cases(failureClustersBecomeCandidates, promotedMemoriesBecomeCandidates, platformDecidesAndWorldsApplies,
		impossibleOutcomesFail, candidatesOfWorkspacesAreSeparate, invalidPayloadsFail)
}

// Both versions of the event are published.
func failureClustersBecomeCandidates(b *bundle, l *testWorker) {
	workspace := newWorkspace()
	detect := app.NewDetectFailureCluster(b.uow)
	detect.AlsoPublishV1 = true
	seen := time.Date(2026, time.July, 1, 12, 0, 0, 123_456_789, time.UTC)
	first, err := detect.Detect(b.ctx, workspace,
		detection(seen, domain.FailureCount{Kind: "read", Count: 4, Example: "no “answer”"}))
	must(b.T, err)
	l.awaitDelivered(2)
	b.wantCandidate(first.ID, "failure_cluster proposed revision 1, 4 of them: Keep this from failing again: "+
		"loader/fetch: Timeout")

	second, err := detect.Detect(b.ctx, workspace,
		detection(seen.Add(time.Hour), domain.FailureCount{Kind: "connect", Count: 16}))
	must(b.T, err)
	if second.ID != first.ID || second.Revision != 2 {
		b.Fatalf("raised to %+v from %+v", second, first)
	}
	l.awaitDelivered(2)
	b.wantCandidate(first.ID, "failure_cluster proposed revision 2, 20 of them: Keep this from failing again: "+
		"loader/fetch: Timeout")
	if got := one[float64](b, "select confidence from worlds.rule_candidates where workspace_id = $1",
		workspace); got != 0.5 {
		b.Errorf("confidence %g", got)
	}

	// Without the option only version 2 is published.
	_, err = app.NewDetectFailureCluster(b.uow).Detect(b.ctx, workspace,
		detection(seen, domain.FailureCount{Kind: "read", Count: 1}))
	must(b.T, err)
	l.awaitDelivered(1)
	if v1, v2 := b.published(workspace, platform.FailureClusterDetectedType),
		b.published(workspace, platform.FailureClusterDetectedV2Type); v1 != 2 || v2 != 3 {
		b.Errorf("%d of version 1, %d of version 2", v1, v2)
	}
}

func promotedMemoriesBecomeCandidates(b *bundle, l *testWorker) {
	workspace := newWorkspace()
	memories := app.NewManageMemories(b.uow)
	const statement = "Ask before deleting a “card”."
	id, err := memories.Record(b.ctx, workspace, domain.WorkspaceMemory, statement)
	must(b.T, err)
	again, err := memories.Record(b.ctx, workspace, domain.WorkspaceMemory, statement)
	must(b.T, err)
	other, err := memories.Record(b.ctx, workspace, domain.AgentMemory, statement)
	must(b.T, err)
	if again != id || other == id {
		b.Fatalf("recorded as %s, %s and %s", id, again, other)
	}
	must(b.T, memories.Promote(b.ctx, workspace, id))
	l.awaitDelivered(1)
	b.wantCandidate(id, "memory proposed revision 3, 2 of them: "+statement)

	must(b.T, memories.Promote(b.ctx, workspace, id))
	must(b.T, memories.Retire(b.ctx, workspace, id))
	if err := memories.Promote(b.ctx, workspace, id); !errors.Is(err, domain.ErrMemoryRetired) {
		b.Errorf("promoting a retired memory returns %v", err)
	}
	if err := memories.Promote(b.ctx, newWorkspace(), other); !errors.Is(err, platformapp.ErrNoMemory) {
		b.Errorf("promoting a memory of another workspace returns %v", err)
	}
	if n := b.published(workspace, platform.MemoryPromotedType); n != 1 {
		b.Errorf("promoted %d times", n)
	}
	// By SQL, in any order, and one twice.
	o := b.newSQLProducer()
	memory := uuid.New()
	for _, version := range []int{2, 5, 3, 5} {
		o.publish(platform.MemoryPromotedType, "", promoted(memory, version, version*10))
		l.awaitDelivered(1)
	}
	b.wantCandidate(memory, "memory proposed revision 5, 50 of them: Ask before deleting, v5.")
}

// platform also records the outcome.
func platformDecidesAndWorldsApplies(b *bundle, l *testWorker) {
	workspace := newWorkspace()
	cluster, err := app.NewDetectFailureCluster(b.uow).Detect(b.ctx, workspace,
		detection(time.Now(), domain.FailureCount{Kind: "read", Count: 4}))
	must(b.T, err)
	l.awaitDelivered(1)
	candidate := b.candidateID(cluster.ID)
	decide := app.NewDecideCuration(b.uow)
	state := func(want string) {
		b.Helper()
		if got := one[string](b, "select state from worlds.rule_candidates where candidate_id = $1", candidate); got != want {
			b.Fatalf("the candidate is %s, want %s", got, want)
		}
	}

	approval, err := decide.Decide(b.ctx, workspace, candidate, domain.ApproveCandidate, "good “rule”", "ada")
	must(b.T, err)
	l.awaitDelivered(2)
	state("approved")
	b.wantOutcome(approval, "applied")
	rejection, err := decide.Decide(b.ctx, workspace, candidate, domain.RejectCandidate, "", "grace")
	must(b.T, err)
	l.awaitDelivered(2)
	b.wantOutcome(rejection, "applied")

	// A later fact does not propose the candidate again, and does not change the decision.
	_, err = app.NewDetectFailureCluster(b.uow).Detect(b.ctx, workspace,
		detection(time.Now(), domain.FailureCount{Kind: "read", Count: 4}))
	must(b.T, err)
	l.awaitDelivered(1)
	b.wantCandidate(cluster.ID, "failure_cluster rejected revision 2, 8 of them: Keep this from failing again: "+
		"loader/fetch: Timeout")
	if n := b.published(workspace, worlds.RuleCandidateProposedType); n != 1 {
		b.Errorf("proposed %d times", n)
	}

	elsewhere, err := decide.Decide(b.ctx, newWorkspace(), candidate, domain.ApproveCandidate, "", "ada")
	must(b.T, err)
	l.awaitDelivered(2)
	b.wantOutcome(elsewhere, "refused unknown_candidate")
	state("rejected")
}

func invalidPayloadsFail(b *bundle, l *testWorker) {
	const rows = "select (select count(*) from worlds.rule_candidates) + (select count(*) from worlds.curation_rulings)"
	before := one[int](b, rows)
	b.publishUnchecked()
	o := b.newSQLProducer()
	id := uuid.NewString()
	for _, c := range []struct{ eventType, payload, want string }{
		{platform.FailureClusterDetectedV2Type, detectedV1(uuid.New(), 1), "cannot unmarshal string"}, // a version 1 payload
		{platform.MemoryPromotedType, promoted(uuid.New(), 0, 1), "version is 0"},
		{platform.CurationDecidedType, decided(uuid.New(), uuid.New(), "maybe", time.Now()), `verdict is "maybe"`},
		{worlds.CurationAppliedType, `{"decision_id": "` + id + `", "outcome": "refused",
			"applied_at": "2026-07-01T12:00:00Z"}`, "reason is missing"},
	} {
		o.publish(c.eventType, "", c.payload)
		if s := l.nextSettlement(); s.Outcome != dispatch.Failed || !strings.HasPrefix(s.LastError, "PayloadError: ") ||
			!strings.Contains(s.LastError, c.want) {
			b.Errorf("%s %.100s is %s: %.300s", c.eventType, c.payload, s.Outcome, s.LastError)
		}
	}
	if after := one[int](b, rows); after != before {
		b.Errorf("there are %d rows, want %d", after, before)
	}
}

// An outcome without its decision, or a second, different one, is a dead letter.
func impossibleOutcomesFail(b *bundle, l *testWorker) {
	o := b.newSQLProducer()
	decide := app.NewDecideCuration(b.uow)
	decision, err := decide.Decide(b.ctx, o.workspace, uuid.New(), domain.ApproveCandidate, "", "ada")
	must(b.T, err)
	l.awaitDelivered(2)
	b.wantOutcome(decision, "refused unknown_candidate")
	for want, id := range map[string]uuid.UUID{
		"is not in platform.curation_decisions": uuid.New(), "has the outcome refused already": decision,
	} {
		o.publish(worlds.CurationAppliedType, "platform", fmt.Sprintf(`{"decision_id": %q, "candidate_id": %q,
			"outcome": "applied", "applied_at": "2026-07-01T12:00:00Z"}`, id, uuid.New()))
		if s := l.nextSettlement(); s.Outcome != dispatch.Failed ||
			!strings.HasPrefix(s.LastError, "TerminalError: platform.curation_outcome_recorder: ") ||
			!strings.Contains(s.LastError, want) {
			b.Errorf("the event is %s: %s", s.Outcome, s.LastError)
		}
	}
	if got := b.outcome(decision); got != "refused unknown_candidate" {
		b.Errorf("the decision is now %s", got)
	}
}

// The same cluster id in two workspaces, and in none, makes three candidates.
func candidatesOfWorkspacesAreSeparate(b *bundle, l *testWorker) {
	o := b.newSQLProducer()
	cluster := uuid.New()
	for i, workspace := range []uuid.NullUUID{newWorkspace(), newWorkspace(), {}} {
		o.workspace = workspace
		for range 2 {
			o.publish(platform.FailureClusterDetectedV2Type, "", detectedV2(cluster, i+1, 10*(i+1)))
			l.awaitDelivered(1)
		}
	}
	if got := one[string](b, `select string_agg(format('%s %s %s', workspace_id is null, revision, occurrences), ', '
		order by revision) from worlds.rule_candidates where origin_id = $1`, cluster); got != "f 1 10, f 2 20, t 3 30" {
		b.Errorf("the candidates are %s", got)
	}
}
