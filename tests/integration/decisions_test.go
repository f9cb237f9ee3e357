package integration_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"spectral/internal/app"
	"spectral/internal/core/events"
	"spectral/internal/core/events/infrastructure/postgres/dispatch"
	platform "spectral/internal/platform/contracts/events"
	"spectral/internal/platform/domain"
	platformpg "spectral/internal/platform/infrastructure/postgres"
	worlds "spectral/internal/worlds/contracts/events"
	worldsdomain "spectral/internal/worlds/domain"
	worldspg "spectral/internal/worlds/infrastructure/postgres"
	"spectral/tests/pgtest"
)

const (
	patternAggregator = "platform.decision_recorded_aggregator"
	healthRecorder    = "worlds.rule_health_recorder"
)

func TestProductConsumers(t *testing.T) {
	b := setup(t)
	l := b.startWorker(noPoll, projection(), b.productConsumer(platform.DecisionRecordedType),
		b.productConsumer(worlds.ScanCompletedType))
	l.cases(aPublishedCardIsNotifiedAndProjected, anOlderVersionNeverOverwritesANewerOne,
		aDecisionReachesBothContextsOnOneClaim, aDecisionThatOneHandlerRejectsIsHandledByTheOther,
		decisionsMayArriveInAnyOrder, aCompletedScanIsIndexed, anEarlierScanNeverOverwritesALaterOne,
		manyDecisionsOnFewRulesDoNotDeadlock, // stops the worker
		concurrentVersionsOfACardDiffer, aDecisionIsRecordedOnce, aScanIsCompletedOnce, aRollbackPublishesNothing,
		aRefusalNamesThePlaceInTheWholePublish, aUnitSendsWhatItPublishesInOrder,
		aLostAnswerIsTheCommitsError)
}

func (b *bundle) productConsumer(eventType string) events.Subscription {
	b.Helper()
	for _, build := range app.ConsumerBuilders() {
		if s := build(app.Deps{Generation: pgtest.Generation, UnitOfWork: b.uow}); s.EventType == eventType {
			return s
		}
	}
	b.Fatalf("%s has no consumer", eventType)
	panic("unreachable")
}

func followed(rule string, at time.Time) domain.Decision {
	return domain.Decision{
		Ruling:    domain.Ruling{DecisionID: uuid.New(), RuleID: rule, Outcome: domain.Followed},
		DecidedBy: "the harbour master", DecidedAt: at,
	}
}

func overridden(rule, reason string, at time.Time) domain.Decision {
	d := followed(rule, at)
	d.Outcome, d.OverrideReason = domain.Overridden, reason
	return d
}

func (b *bundle) recordDecisions(workspace uuid.NullUUID, decisions ...domain.Decision) {
	b.Helper()
	for _, d := range decisions {
		recorded, err := app.NewRecordDecision(b.uow).Record(b.ctx, workspace, d)
		must(b.T, err)
		if !recorded {
			b.Fatalf("decision %s was not recorded", d.DecisionID)
		}
	}
}

// publishDecisions publishes decisions by SQL and records none.
func (b *bundle) publishDecisions(workspace uuid.NullUUID, decisions ...domain.Decision) {
	b.Helper()
	for _, d := range decisions {
		payload := map[string]any{
			"decision_id": d.DecisionID, "rule_id": d.RuleID, "outcome": d.Outcome,
			"decided_by": d.DecidedBy, "decided_at": d.DecidedAt, "unknown": []int{1},
		}
		if d.OverrideReason != "" {
			payload["override_reason"] = d.OverrideReason
		}
		b.exec("select core.outbox_publish('decision.recorded', 'platform', $1::jsonb, p_workspace_id => $2)",
			payload, workspace)
	}
}

func (b *bundle) rowsOf(tables ...string) string {
	b.Helper()
	var each []string
	for _, table := range tables {
		// ids and times depend on the order of the writes
		each = append(each, "select '"+table+" ' || (to_jsonb(t) - 'id' - 'counted_at')::text as line from "+table+" t")
	}
	return one[string](b, "select coalesce(string_agg(line, e'\\n' order by line), '') from ("+
		strings.Join(each, " union all ")+") l")
}

func (b *bundle) wantPattern(workspace uuid.NullUUID, rule, want string) {
	b.Helper()
	var got string
	must(b.T, b.uow.Do(b.ctx, events.Platform, workspace, func(tx events.Tx, _ events.PublisherFor) error {
		p, err := platformpg.NewOverridePatterns(tx).Of(b.ctx, workspace, rule)
		got = fmt.Sprintf("%d followed %d overridden", p.Followed, p.Overridden)
		for _, r := range p.Reasons {
			got += fmt.Sprintf(", %d %q", r.Overridden, r.Reason)
		}
		return err
	}))
	if got != want {
		b.Fatalf("the pattern of %s is\n%s, want\n%s", rule, got, want)
	}
}

func (b *bundle) wantHealth(workspace uuid.NullUUID, rule, want string) {
	b.Helper()
	var h worldsdomain.RuleHealth
	must(b.T, b.uow.Do(b.ctx, events.Worlds, workspace, func(tx events.Tx, _ events.PublisherFor) (err error) {
		h, err = worldspg.NewRuleHealth(tx).Of(b.ctx, workspace, rule)
		return err
	}))
	if got := fmt.Sprintf("%s %d followed %d overridden", h.State(), h.Followed, h.Overridden); got != want {
		b.Fatalf("the health of %s is %s, want %s", rule, got, want)
	}
}

var day = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func atMinute(minute int) time.Time { return day.Add(time.Duration(minute) * time.Minute) }

func aDecisionReachesBothContextsOnOneClaim(b *bundle, l *testWorker) {
	workspace := newWorkspace()
	decided := overridden("berth-depth", "Surveyed  last week", atMinute(0).Add(123456789).In(time.FixedZone("", 3600)))
	b.recordDecisions(workspace, decided)
	l.awaitDelivered(1)

	var e events.Envelope
	must(b.T, b.pool.QueryRow(b.ctx, "select id, idempotency_key, payload from core.outbox").Scan(&e.EventID,
		&e.IdempotencyKey, &e.Payload))
	b.wantRow(e.EventID, "delivered", 1)
	if got := b.handledBy(e.IdempotencyKey); !slices.Equal(got, []string{patternAggregator, healthRecorder}) {
		b.Fatalf("handled by %v", got)
	}
	payload, err := events.Decode[platform.DecisionRecorded](e)
	must(b.T, err)
	if !one[bool](b, `select (workspace_id, decision_id, rule_id, outcome, override_reason, decided_by, decided_at)
		= ($1, $2, 'berth-depth', 'overridden', 'Surveyed  last week', 'the harbour master', $3) from platform.decisions`,
		workspace, payload.DecisionID, payload.DecidedAt) || payload.DecisionID != decided.DecisionID {
		b.Fatalf("published %+v, recorded %s", payload, b.rowsOf("platform.decisions"))
	}
	b.wantPattern(workspace, "berth-depth", `0 followed 1 overridden, 1 "surveyed last week"`)
	b.wantHealth(workspace, "berth-depth", "unrated 0 followed 1 overridden")
	for _, other := range []uuid.NullUUID{{}, {UUID: uuid.New(), Valid: true}} {
		b.wantPattern(other, "berth-depth", "0 followed 0 overridden")
		b.wantHealth(other, "berth-depth", "unrated 0 followed 0 overridden")
	}
}

func aDecisionIsRecordedOnce(b *bundle, _ *testWorker) {
	workspace := newWorkspace()
	decision := overridden("berth-depth", "surveyed", time.Now())
	n := countOf(b.T, 4, func() (bool, error) {
		return app.NewRecordDecision(b.uow).Record(b.ctx, workspace, decision)
	})
	if n != 1 {
		b.Fatalf("%d of 4 recorded it", n)
	}
	before := b.rowsOf("platform.decisions", "core.outbox")
	other := decision
	other.DecidedBy = "an agent"
	_, err := app.NewRecordDecision(b.uow).Record(b.ctx, workspace, other)
	if !errors.Is(err, domain.ErrDecisionRecorded) {
		b.Errorf("by another: %v", err)
	}
	after := b.rowsOf("platform.decisions", "core.outbox")
	if after != before || one[int](b, "select count(*) from core.outbox") != 1 {
		b.Fatalf("before\n%s\nafter\n%s", before, after)
	}
	b.recordDecisions(uuid.NullUUID{}, decision) // outside the workspace it is another decision
}

// countOf calls do n times concurrently and returns how often it returned true.
func countOf(t *testing.T, n int, do func() (bool, error)) (yes int) {
	t.Helper()
	type result struct {
		done bool
		err  error
	}
	results := make(chan result, n)
	for range n {
		go func() {
			done, err := do()
			results <- result{done, err}
		}()
	}
	for range n {
		r := <-results
		must(t, r.err)
		if r.done {
			yes++
		}
	}
	return yes
}

func aDecisionThatOneHandlerRejectsIsHandledByTheOther(b *bundle, l *testWorker) {
	b.publishUnchecked()
	payload := func(id, outcome string) string {
		return fmt.Sprintf(`{"decision_id": %s, "rule_id": "r", "outcome": %q}`, id, outcome)
	}
	const id = `"5a3c7a52-8f0e-4d1b-9a51-6f0f43d3ad11"`
	for _, c := range []struct {
		payload, end string // end is the end of the error
		handledBy    []string
	}{
		{payload(id, "overridden"), "override_reason is missing", []string{healthRecorder}},
		{payload(id, "ignored"), `outcome is "ignored", must be followed or overridden`, nil},
		{payload(`"00000000-0000-0000-0000-000000000000"`, "followed"), "decision_id is missing", nil},
	} {
		invalid := one[uuid.UUID](b, "select core.outbox_publish('decision.recorded', 'platform', $1::jsonb)", c.payload)
		l.awaitOutcome(dispatch.Failed)
		r := b.wantRow(invalid, "failed", 1)
		if got := b.handledBy(invalid.String()); !slices.Equal(got, c.handledBy) && len(got)+len(c.handledBy) > 0 ||
			len(r.Failures) != 2-len(got) {
			b.Errorf("%s: handled by %v, failures are %v", c.payload, got, r.Failures)
		}
		for handler, f := range r.Failures {
			if f.Class != "PayloadError" || !f.Parked || !strings.HasSuffix(f.Error, c.end) {
				b.Errorf("%s: %s: %+v", c.payload, handler, f)
			}
		}
	}
	b.wantHealth(uuid.NullUUID{}, "r", "unrated 0 followed 1 overridden")
}

func decisionsMayArriveInAnyOrder(b *bundle, l *testWorker) {
	var all []domain.Decision
	for i := range 10 { // three are overridden, the last one among them
		d := followed("berth-depth", atMinute(i))
		if i%3 == 0 && i > 0 {
			d = overridden("berth-depth", []string{"Surveyed", "surveyed ", "dredged"}[i/3-1], atMinute(i))
		}
		all = append(all, d)
	}
	for i := range 6 {
		all = append(all, overridden("quay-toll", fmt.Sprintf("reason %d", i%2), atMinute(100-i)),
			followed("pilotage", atMinute(i)))
	}
	shuffled := append(slices.Clone(all), all...) // each twice
	rand.Shuffle(len(shuffled), func(i, j int) { shuffled[i], shuffled[j] = shuffled[j], shuffled[i] })
	w := newWorkspace()
	b.publishDecisions(w, shuffled...)
	l.awaitDelivered(len(shuffled))
	b.wantPattern(w, "berth-depth", `7 followed 3 overridden, 2 "surveyed", 1 "dredged"`)
	b.wantPattern(w, "quay-toll", `0 followed 6 overridden, 3 "reason 0", 3 "reason 1"`)
	b.wantHealth(w, "berth-depth", "contested 7 followed 3 overridden")
	b.wantHealth(w, "quay-toll", "failing 0 followed 6 overridden")
	b.wantHealth(w, "pilotage", "healthy 6 followed 0 overridden")
}

// Concurrent batches write the rows of the same rules.
func manyDecisionsOnFewRulesDoNotDeadlock(b *bundle, l *testWorker) {
	l.stop()
	log := &logBuffer{}
	b.log = slog.NewJSONHandler(log, &slog.HandlerOptions{Level: slog.LevelDebug})
	const n, rules = 200, 8
	payloads := make([]json.RawMessage, n)
	for i := range n {
		payloads[i] = json.RawMessage(fmt.Sprintf(`{"event_type": "decision.recorded", "source": "platform", "payload":
			{"decision_id": "%s",
			"rule_id": "rule-%d", "outcome": "overridden", "override_reason": "reason %d", "decided_by": "d", "decided_at":
				"2026-03-01T12:00:00Z"}}`,
			uuid.New(), i%rules, i/rules%2))
	}
	all, err := json.Marshal(payloads)
	must(b.T, err)
	b.exec("select core.outbox_publish_many($1::jsonb)", string(all))
	s := b.productConsumer(platform.DecisionRecordedType)
	s.Concurrency = 4
	b.poolURL += "&pool_max_conns=8"
	l = b.startWorker(noPoll, s)
	l.awaitDelivered(n)
	l.stop()
	if got := log.count("batch rolled back"); got != 0 {
		b.Errorf("%d batches were undone", got)
	}
	for i := range rules {
		rule := fmt.Sprintf("rule-%d", i)
		b.wantPattern(uuid.NullUUID{}, rule, `0 followed 25 overridden, 13 "reason 0", 12 "reason 1"`)
		b.wantHealth(uuid.NullUUID{}, rule, "failing 0 followed 25 overridden")
	}
}
