package integration_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
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
	platformpg "spectral/internal/platform/infrastructure/postgres"
	worlds "spectral/internal/worlds/contracts/events"
)

// candidateTypes are the events around rule candidates that have a consumer.
var candidateTypes = []string{platform.FailureClusterDetectedType, platform.FailureClusterDetectedV2Type,
	platform.MemoryPromotedType, platform.CurationDecidedType, worlds.CurationAppliedType}

// startCandidateWorker starts a worker with the product's consumers of the given types, each with the given number of
// runners. It does not poll.
func (b *bundle) startCandidateWorker(runners int, types ...string) *testWorker {
	b.Helper()
	var l *testWorker
	for i, eventType := range types {
		s := b.productConsumer(eventType)
		s.Concurrency = runners
		if i == 0 {
			l = b.newWorker(noPoll, s)
			continue
		}
		must(b.T, l.Listen(b.ctx, s))
	}
	l.start()
	return l
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

// publish publishes a payload. target may be empty.
func (o sqlProducer) publish(eventType, target, payload string) (id uuid.UUID) {
	o.Helper()
	source, _, _ := strings.Cut(eventType, ".")
	const publish = "select core.outbox_publish($1, $2, $3::jsonb, p_target => nullif($4, ''), p_workspace_id => $5)"
	must(o.T, o.conn.QueryRow(o.ctx, publish, eventType, source, payload, target, o.workspace).Scan(&id))
	return id
}

// decide stores and publishes a decision in one transaction.
func (o sqlProducer) decide(candidate uuid.UUID, verdict string, at time.Time) (decision uuid.UUID) {
	o.Helper()
	decision = uuid.New()
	must(o.T, pgx.BeginFunc(o.ctx, o.conn, func(tx pgx.Tx) error {
		if _, err := tx.Exec(o.ctx, "select set_config('spectral.workspace_id', $1::text, true)",
			o.workspace.UUID); err != nil {
			return err
		}
		if _, err := tx.Exec(o.ctx, `insert into platform.curation_decisions
			(decision_id, workspace_id, candidate_id, verdict, note, decided_by, decided_at)
			values ($1, $2, $3, $4, '', 'grace', $5)`,
			decision, o.workspace, candidate, verdict, at); err != nil {
			return err
		}
		_, err := tx.Exec(o.ctx, `select core.outbox_publish('platform.curation.decided', 'platform', $1::jsonb,
			p_target => 'worlds', p_workspace_id => $2)`,
			decided(decision, candidate, verdict, at), o.workspace)
		return err
	}))
	return decision
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

// candidate describes a rule candidate in one line.
func (b *bundle) candidate(origin uuid.UUID) string {
	b.Helper()
	return one[string](b, `select coalesce((select format('%s %s revision %s, %s of %s kinds: %s',
			origin, state, revision, occurrences, kinds, statement)
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

// outcome returns the outcome that platform recorded for a decision.
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

// contents returns every row of the tables around rule candidates.
func (b *bundle) contents() string {
	b.Helper()
	return one[string](b, `select string_agg(line, E'\n' order by line) from (
		select 'candidate ' || r::text as line from worlds.rule_candidates r
		union all select 'ruling ' || r::text from worlds.curation_rulings r
		union all select 'decision ' || d::text from platform.curation_decisions d
		union all select 'memory ' || m::text from platform.memories m
		union all select 'cluster ' || c::text from platform.failure_clusters c
		union all select 'published ' || event_type || ' ' || count(*) from core.outbox
			where event_type in ('worlds.rule_candidate.proposed', 'worlds.curation.applied') group by event_type) as lines`)
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
	for _, c := range []struct {
		name string
		test func(*bundle, *testWorker)
	}{
		{"failure clusters become candidates", failureClustersBecomeCandidates},
		{"promoted memories become candidates", promotedMemoriesBecomeCandidates},
		{"platform decides and worlds applies", platformDecidesAndWorldsApplies},
		{"an impossible outcome fails", impossibleOutcomesFail},
		{"candidates of workspaces are separate", candidatesOfWorkspacesAreSeparate},
		{"an invalid payload fails at once", invalidPayloadsFail},
		{"redelivered events change nothing", redeliveredEventsChangeNothing},
		{"many decisions on few candidates do not deadlock", manyDecisionsOnFewCandidates}, // stops the worker
	} {
		b.run(c.name, func(b *bundle) { c.test(b, l.in(b)) })
	}
}

// Both versions of the event are published.
func failureClustersBecomeCandidates(b *bundle, l *testWorker) {
	workspace := newWorkspace()
	detect := app.NewDetectFailureCluster(b.uow, platformapp.AlsoPublishV1())
	seen := time.Date(2026, time.July, 1, 12, 0, 0, 123_456_789, time.UTC)
	first, err := detect.Detect(b.ctx, workspace,
		detection(seen, domain.FailureCount{Kind: "read", Count: 4, Example: "no “answer”"}))
	must(b.T, err)
	l.awaitDelivered(2)
	b.wantCandidate(first.ID, "failure_cluster proposed revision 1, 4 of 1 kinds: Keep this from failing again: "+
		"loader/fetch: Timeout")

	second, err := detect.Detect(b.ctx, workspace,
		detection(seen.Add(time.Hour), domain.FailureCount{Kind: "connect", Count: 16}))
	must(b.T, err)
	if second.ID != first.ID || second.Revision != 2 {
		b.Fatalf("raised to %+v from %+v", second, first)
	}
	l.awaitDelivered(2)
	b.wantCandidate(first.ID, "failure_cluster proposed revision 2, 20 of 2 kinds: Keep this from failing again: "+
		"loader/fetch: Timeout")
	if got := one[float64](b, "select confidence from worlds.rule_candidates where workspace_id = $1",
		workspace); got != 0.5 {
		b.Errorf("confidence %g", got)
	}

	if got := one[string](b, `select payload::text from core.outbox
		where event_type = 'platform.failure_cluster.detected' order by id desc limit 1`); got !=
		fmt.Sprintf(`{"count": 20, "example": "no “answer”", "signature": "loader/fetch: Timeout", "cluster_id": %q}`,
			first.ID) {
		b.Errorf("version 1 says %s", got)
	}
	if got := one[string](b, `select payload::text from core.outbox
		where event_type = 'platform.failure_cluster.detected.v2' order by id desc limit 1`); got !=
		fmt.Sprintf(`{"failures": [{"kind": "connect", "count": 16}, `+
			`{"kind": "read", "count": 4, "example": "no “answer”"}], "revision": 2, "severity": "medium", `+
			`"signature": {"component": "loader", "operation": "fetch", "error_class": "Timeout"}, "cluster_id": %q, `+
			`"last_seen_at": "2026-07-01T13:00:00.123456Z", "first_seen_at": "2026-07-01T12:00:00.123456Z"}`, first.ID) {
		b.Errorf("version 2 says %s", got)
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

// publishMany publishes payloads in one statement, in order.
func (o sqlProducer) publishMany(eventType, target string, payloads ...string) {
	o.Helper()
	source, _, _ := strings.Cut(eventType, ".")
	_, err := o.conn.Exec(o.ctx, `select core.outbox_publish_many((select
		jsonb_agg(jsonb_strip_nulls(jsonb_build_object('event_type', $1::text, 'source', $2::text,
		'target', nullif($3::text, ''), 'workspace_id', $4::uuid, 'payload', p.payload::jsonb)) order by p.n)
			from unnest($5::text[]) with ordinality p (payload, n)))`,
		eventType, source, target, o.workspace, payloads)
	must(o.T, err)
}

// Concurrent batches contain facts and decisions on the same candidates, and some decisions twice.
func manyDecisionsOnFewCandidates(b *bundle, l *testWorker) {
	o := b.newSQLProducer()
	const n, memories = 100, 10
	ids := make([]uuid.UUID, memories)
	var facts, decisions []string
	for i := range ids {
		ids[i] = uuid.New()
		facts = append(facts, promoted(ids[i], 2, 1))
	}
	o.publishMany(platform.MemoryPromotedType, "", facts...)
	l.awaitDelivered(memories)
	l.stop()
	facts = nil
	now := time.Now()
	for i := range n {
		verdict := []string{"approve", "reject"}[i/memories%2]
		decisions = append(decisions, decided(uuid.New(), b.candidateID(ids[i*7%memories]), verdict,
			now.Add(time.Duration(i-n)*time.Second)))
		if i%10 == 0 {
			decisions = append(decisions, decisions[i/2])
		}
		facts = append(facts, promoted(ids[(n-i)*3%memories], 3+i/memories, 2))
	}
	o.publishMany(platform.CurationDecidedType, "worlds", decisions...)
	o.publishMany(platform.MemoryPromotedType, "", facts...)
	log := &logBuffer{}
	b.log = slog.NewJSONHandler(log, &slog.HandlerOptions{Level: slog.LevelDebug})
	b.poolURL += "&pool_max_conns=12"
	b.startCandidateWorker(4, platform.CurationDecidedType,
		platform.MemoryPromotedType).awaitSettled(len(decisions)+n, 0)
	if got := log.count(`"batch undone`); got != 0 {
		b.Errorf("%d batches were undone", got)
	}
	for _, id := range ids { // the last decision on each rejects it
		statement := one[string](b, "select statement from worlds.rule_candidates where origin_id = $1", id)
		b.wantCandidate(id, "memory rejected revision 12, 2 of 1 kinds: "+statement)
	}
	if got := b.published(o.workspace, worlds.CurationAppliedType); got != n {
		b.Errorf("%d outcomes of %d decisions", got, n)
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
	b.wantCandidate(id, "memory proposed revision 3, 2 of 1 kinds: "+statement)

	must(b.T, memories.Promote(b.ctx, workspace, id))
	must(b.T, memories.Retire(b.ctx, workspace, id))
	must(b.T, memories.Retire(b.ctx, workspace, id))
	if err := memories.Promote(b.ctx, workspace, id); !errors.Is(err, domain.ErrMemoryRetired) {
		b.Errorf("promoting a retired memory returns %v", err)
	}
	for name, err := range map[string]error{
		"unknown":              memories.Promote(b.ctx, workspace, uuid.New()),
		"of another workspace": memories.Promote(b.ctx, newWorkspace(), other),
		"of no workspace":      memories.Retire(b.ctx, uuid.NullUUID{}, other),
	} {
		if !errors.Is(err, platformapp.ErrNoMemory) {
			b.Errorf("%s: %v", name, err)
		}
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
	b.wantCandidate(memory, "memory proposed revision 5, 50 of 1 kinds: Ask before deleting, v5.")
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
	state("rejected")
	b.wantOutcome(approval, "applied")
	b.wantOutcome(rejection, "applied")

	// A later fact does not propose the candidate again, and does not change the decision.
	_, err = app.NewDetectFailureCluster(b.uow).Detect(b.ctx, workspace,
		detection(time.Now(), domain.FailureCount{Kind: "read", Count: 4}))
	must(b.T, err)
	l.awaitDelivered(1)
	b.wantCandidate(cluster.ID, "failure_cluster rejected revision 2, 8 of 1 kinds: Keep this from failing again: "+
		"loader/fetch: Timeout")
	if n := b.published(workspace, worlds.RuleCandidateProposedType); n != 1 {
		b.Errorf("proposed %d times", n)
	}

	unknown, err := decide.Decide(b.ctx, workspace, uuid.New(), domain.ApproveCandidate, "", "ada")
	must(b.T, err)
	elsewhere, err := decide.Decide(b.ctx, newWorkspace(), candidate, domain.ApproveCandidate, "", "ada")
	must(b.T, err)
	l.awaitDelivered(4)
	b.wantOutcome(unknown, "refused unknown_candidate")
	b.wantOutcome(elsewhere, "refused unknown_candidate")
	state("rejected")

	if got := one[string](b, `select string_agg(distinct format('%s from %s to %s', event_type, source, target), '; ')
		from core.outbox
		where event_type in ('platform.curation.decided', 'worlds.curation.applied')`); got !=
		"platform.curation.decided from platform to worlds; worlds.curation.applied from worlds to platform" {
		b.Errorf("published %s", got)
	}
	got := one[string](b, `select format('%s %s %s %s', payload ->> 'verdict', payload ->> 'note',
			payload ->> 'decided_by', (payload ->> 'decided_at')::timestamptz = decided_at)
		from platform.curation_decisions join core.outbox on payload ->> 'decision_id' = decision_id::text
		where decision_id = $1 and event_type = 'platform.curation.decided'`, approval)
	if got != "approve good “rule” ada t" {
		b.Errorf("decided %s", got)
	}
	all := []uuid.UUID{approval, rejection, unknown, elsewhere}
	if got := one[bool](b, `select bool_and(d.outcome_at = r.ruled_at and r.candidate_id = d.candidate_id) and count(*) = 4
		from platform.curation_decisions d join worlds.curation_rulings r using (decision_id) where decision_id = any
			($1)`, all); !got {
		b.Error("the outcomes in platform differ from the rulings in worlds")
	}
	// A later decision has a later time, even if its clock is slow.
	clock := time.Now()
	slow := platformapp.NewDecideCuration(func(ctx context.Context, workspace uuid.NullUUID,
		work func(platformapp.CurationDecisions, events.EventPublisher) error) error {
		return b.uow.Do(ctx, events.Platform, workspace, func(tx events.Tx, publisherFor events.PublisherFor) error {
			return work(platformpg.NewCurationDecisions(tx), publisherFor())
		})
	}, uuid.New, func() time.Time { return clock.Add(-time.Minute) })
	late, err := slow.Decide(b.ctx, workspace, candidate, domain.ApproveCandidate, "", "ada")
	must(b.T, err)
	l.awaitDelivered(2)
	b.wantOutcome(late, "applied")
	state("approved")
}

// Every event is redelivered without its dedup keys, the last one first.
func redeliveredEventsChangeNothing(b *bundle, l *testWorker) {
	o := b.newSQLProducer()
	cluster, memory := uuid.New(), uuid.New()
	o.publish(platform.FailureClusterDetectedType, "", detectedV1(cluster, 3))
	l.awaitDelivered(1)
	o.publish(platform.FailureClusterDetectedV2Type, "", detectedV2(cluster, 2, 3, 4))
	o.publish(platform.MemoryPromotedType, "", promoted(memory, 2, 1))
	l.awaitDelivered(2)
	now := time.Now()
	o.decide(b.candidateID(cluster), "approve", now)
	o.decide(b.candidateID(memory), "reject", now)
	o.decide(uuid.New(), "approve", now)
	l.awaitDelivered(6)
	late := o.decide(b.candidateID(memory), "approve", now.Add(-time.Hour))
	l.awaitDelivered(2)
	b.wantOutcome(late, "refused superseded")
	o.publish(platform.FailureClusterDetectedV2Type, "", detectedV2(cluster, 1, 99)) // an older revision
	o.publish(platform.FailureClusterDetectedType, "", detectedV1(cluster, 99))
	l.awaitDelivered(2)
	b.wantCandidate(cluster, "failure_cluster approved revision 2, 7 of 2 kinds: Keep this from failing again: "+
		"loader/fetch: Timeout")
	b.wantCandidate(memory, "memory rejected revision 2, 1 of 1 kinds: Ask before deleting, v2.")
	before := b.contents()
	const again = 5 + 2*4
	b.exec("delete from core.event_handled")
	if n := one[int](b, `with again as (update core.outbox o set status = 'pending', delivered_at = null,
			available_at = clock_timestamp() - r.n * interval '1 microsecond'
		from (select id, row_number() over (order by id) as n from core.outbox where workspace_id = $1) r
		where r.id = o.id and event_type <> 'worlds.rule_candidate.proposed' returning pg_notify(channel, ''))
		select count(*) from again`, o.workspace); n != again {
		b.Fatalf("%d events are pending again", n)
	}
	l.awaitSettled(again, 0)
	if n := one[int](b, "select count(*) from core.event_handled"); n != again {
		b.Errorf("%d were handled", n)
	}
	if after := b.contents(); after != before {
		b.Errorf("before\n%s\nand after\n%s", before, after)
	}
}

func invalidPayloadsFail(b *bundle, l *testWorker) {
	const rows = "select (select count(*) from worlds.rule_candidates) + (select count(*) from worlds.curation_rulings)"
	before := one[int](b, rows)
	b.publishUnchecked()
	o := b.newSQLProducer()
	id := uuid.NewString()
	for _, c := range []struct{ eventType, payload, want string }{
		{platform.FailureClusterDetectedType, `{}`, "cluster_id is missing"},
		{platform.FailureClusterDetectedV2Type, detectedV2(uuid.New(), 1, math.MaxInt64, math.MaxInt64),
			"more failures than can be counted"},
		{platform.FailureClusterDetectedV2Type, detectedV1(uuid.New(), 1), "cannot unmarshal string"}, // a version 1 payload
		{platform.MemoryPromotedType, promoted(uuid.New(), 0, 1), "version is 0"},
		{platform.CurationDecidedType, decided(uuid.New(), uuid.New(), "maybe", time.Now()), `verdict is "maybe"`},
		{platform.CurationDecidedType,
			decided(uuid.New(), uuid.New(), "approve", time.Date(2999, 1, 1, 0, 0, 0, 0, time.UTC)),
			"decided_at is 2999-01-01T00:00:00Z, which is in the future"},
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
	decision := o.decide(uuid.New(), "approve", time.Now())
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
