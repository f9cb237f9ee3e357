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
	"spectral/internal/core/events/infrastructure/postgres"
	platform "spectral/internal/platform/contracts/events"
	"spectral/internal/platform/domain"
	platformpg "spectral/internal/platform/infrastructure/postgres"
	worldsdomain "spectral/internal/worlds/domain"
	worldspg "spectral/internal/worlds/infrastructure/postgres"
	"spectral/tests/pgtest"
)

const (
	patternAggregator = "platform.decision_recorded_aggregator"
	healthRecorder    = "worlds.rule_health_recorder"
)

// shipped is the product's own consumer of an event type.
func (b *bundle) shipped(eventType string) events.Subscription {
	b.Helper()
	for _, build := range app.ConsumerBuilders() {
		if s := build(app.Parts{Generation: pgtest.Generation, UnitOfWork: b.uow}); s.EventType == eventType {
			return s
		}
	}
	b.Fatalf("%s has no consumer", eventType)
	panic("unreachable")
}

// persistently retries quickly, for as long as a test wants it to.
var persistently = &events.RetryPolicy{MaxRetries: 1_000_000, Base: 20 * time.Millisecond, Multiplier: 1, Cap: 20 * time.Millisecond}

// retrying is s with another policy for all of its handlers.
func retrying(s events.Subscription, policy *events.RetryPolicy) events.Subscription {
	s.Primary.Retry = policy
	s.CoHandlers = slices.Clone(s.CoHandlers)
	for i := range s.CoHandlers {
		s.CoHandlers[i].Retry = policy
	}
	return s
}

func followed(rule string, at time.Time) domain.Decision {
	return domain.Decision{
		Ruling:    domain.Ruling{DecisionID: uuid.New(), RuleID: rule, Outcome: domain.Followed, DecidedAt: at},
		DecidedBy: "the harbour master",
	}
}

func overridden(rule, reason string, at time.Time) domain.Decision {
	d := followed(rule, at)
	d.Outcome, d.OverrideReason = domain.Overridden, reason
	return d
}

// record records decisions in workspace, each in a transaction of its own.
func (b *bundle) record(workspace uuid.NullUUID, decisions ...domain.Decision) {
	b.Helper()
	for _, d := range decisions {
		recorded, err := app.NewRecordDecision(b.uow).Record(b.ctx, workspace, d)
		must(b.T, err)
		if !recorded {
			b.Fatalf("decision %s was not recorded", d.DecisionID)
		}
	}
}

// tell publishes decisions by SQL, as a producer outside would: nothing is recorded.
func (b *bundle) tell(workspace uuid.NullUUID, decisions ...domain.Decision) {
	b.Helper()
	for _, d := range decisions {
		payload := map[string]any{
			"decision_id": d.DecisionID, "rule_id": d.RuleID, "outcome": d.Outcome, "decided_by": d.DecidedBy, "decided_at": d.DecidedAt,
			"unknown": []int{1},
		}
		if d.OverrideReason != "" {
			payload["override_reason"] = d.OverrideReason
		}
		b.exec("select core.outbox_publish('decision.recorded', 'platform', $1::jsonb, p_workspace_id => $2)", payload, workspace)
	}
}

// rowsOf are all rows of tables, as text and in order.
func (b *bundle) rowsOf(tables ...string) string {
	b.Helper()
	var each []string
	for _, table := range tables {
		// ids and times tell in which order rows were written
		each = append(each, "select '"+table+" ' || (to_jsonb(t) - 'id' - 'counted_at')::text as line from "+table+" t")
	}
	return one[string](b, "select coalesce(string_agg(line, e'\\n' order by line), '') from ("+strings.Join(each, " union all ")+") l")
}

// decisionRows are what the handlers of decision.recorded have written.
func (b *bundle) decisionRows() string {
	b.Helper()
	return b.rowsOf("platform.override_patterns", "platform.override_reasons", "platform.override_pattern_decisions",
		"worlds.rule_health", "worlds.rule_health_decisions")
}

func (b *bundle) wantPattern(workspace uuid.NullUUID, rule, want string) {
	b.Helper()
	var got string
	must(b.T, b.uow.Do(b.ctx, events.Platform, workspace, func(tx events.Tx, _ events.PublisherFor) error {
		p, err := platformpg.NewOverridePatterns(tx).Of(b.ctx, workspace, rule)
		got = fmt.Sprintf("%d followed %d overridden %s to %s", p.Followed, p.Overridden, minute(p.FirstDecidedAt), minute(p.LastDecidedAt))
		for _, r := range p.Reasons {
			got += fmt.Sprintf(", %d %q %s to %s", r.Overridden, r.Reason, minute(r.FirstDecidedAt), minute(r.LastDecidedAt))
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
	state := string(h.State())
	if h.RuleID != "" {
		state = one[string](b, "select state from worlds.rule_health where rule_id = $1 and workspace_id is not distinct from $2", rule, workspace)
	}
	if got := fmt.Sprintf("%s %d followed %d overridden until %s", state, h.Followed, h.Overridden, minute(h.LastDecidedAt)); got != want || state != string(h.State()) {
		b.Fatalf("the health of %s is %s (%s), want %s", rule, got, h.State(), want)
	}
}

// day is when decisions of these tests are made.
var day = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func atMinute(minute int) time.Time { return day.Add(time.Duration(minute) * time.Minute) }

func minute(t time.Time) string {
	if t.IsZero() {
		return "never"
	}
	return fmt.Sprint(int(t.Sub(day) / time.Minute))
}

func TestADecisionReachesBothContextsOnOneClaim(t *testing.T) {
	b := setup(t)
	l := b.listen(noPoll, b.shipped(platform.DecisionRecordedType))
	workspace := uuid.NullUUID{UUID: uuid.New(), Valid: true}
	decided := overridden("berth-depth", "Surveyed  last week", atMinute(0).Add(123456789).In(time.FixedZone("", 3600)))
	b.record(workspace, decided)
	l.delivered(1)

	var e events.Envelope
	must(t, b.pool.QueryRow(b.ctx, "select id, idempotency_key, payload from core.outbox").Scan(&e.EventID, &e.IdempotencyKey, &e.Payload))
	b.wantRow(e.EventID, "delivered", 1)
	if got := b.handledBy(e.IdempotencyKey); !slices.Equal(got, []string{patternAggregator, healthRecorder}) {
		t.Fatalf("handled by %v", got)
	}
	payload, err := events.Decode[platform.DecisionRecorded](e)
	must(t, err)
	want := platform.DecisionRecorded{
		DecisionID: decided.DecisionID, RuleID: "berth-depth", Outcome: "overridden", OverrideReason: "Surveyed  last week",
		DecidedBy: "the harbour master", DecidedAt: atMinute(0).Add(123456 * time.Microsecond),
	}
	if payload != want {
		t.Fatalf("published %+v\nwant %+v", payload, want)
	}
	if !one[bool](b, `select (workspace_id, decision_id, rule_id, outcome, override_reason, decided_by, decided_at) = ($1, $2, $3, $4, $5, $6, $7) from platform.decisions`,
		workspace, want.DecisionID, want.RuleID, want.Outcome, want.OverrideReason, want.DecidedBy, want.DecidedAt) {
		t.Fatalf("recorded %s", b.rowsOf("platform.decisions"))
	}
	b.wantPattern(workspace, "berth-depth", `0 followed 1 overridden 0 to 0, 1 "surveyed last week" 0 to 0`)
	b.wantHealth(workspace, "berth-depth", "unrated 0 followed 1 overridden until 0")
	for _, other := range []uuid.NullUUID{{}, {UUID: uuid.New(), Valid: true}} {
		b.wantPattern(other, "berth-depth", "0 followed 0 overridden never to never")
		b.wantHealth(other, "berth-depth", "unrated 0 followed 0 overridden until never")
	}
}

func TestADecisionIsRecordedOnce(t *testing.T) {
	b := setup(t)
	workspace := uuid.NullUUID{UUID: uuid.New(), Valid: true}
	decision := overridden("berth-depth", "surveyed", time.Now())
	const n = 8
	type result struct {
		recorded bool
		err      error
	}
	results := make(chan result, n)
	for range n {
		go func() {
			recorded, err := app.NewRecordDecision(b.uow).Record(b.ctx, workspace, decision)
			results <- result{recorded, err}
		}()
	}
	recordings := 0
	for range n {
		r := <-results
		must(t, r.err)
		if r.recorded {
			recordings++
		}
	}
	if recordings != 1 {
		t.Fatalf("%d of %d recorded it", recordings, n)
	}
	before := b.rowsOf("platform.decisions", "core.outbox")
	for want, change := range map[string]func(*domain.Decision){
		"outcome, override_reason": func(d *domain.Decision) { d.Outcome, d.OverrideReason = domain.Followed, "" },
		"decided_by":               func(d *domain.Decision) { d.DecidedBy = "an agent" },
		"decided_at":               func(d *domain.Decision) { d.DecidedAt = d.DecidedAt.Add(-time.Microsecond) },
	} {
		other := decision
		change(&other)
		_, err := app.NewRecordDecision(b.uow).Record(b.ctx, workspace, other)
		if conflict, ok := errors.AsType[*domain.DecisionConflictError](err); !ok || strings.Join(conflict.Fields, ", ") != want {
			t.Errorf("with another %s: %v", want, err)
		}
	}
	if _, err := app.NewRecordDecision(b.uow).Record(b.ctx, workspace, overridden("berth-depth", "", day)); err == nil || !strings.HasSuffix(err.Error(), ": override_reason is missing") {
		t.Errorf("overridden for no reason: %v", err)
	}
	if after := b.rowsOf("platform.decisions", "core.outbox"); after != before || strings.Count(after, "\n") != 1 {
		t.Fatalf("was\n%s\nis\n%s", before, after)
	}
	b.record(uuid.NullUUID{}, decision) // of another workspace, or none: another decision
}

// refuse makes every write to table fail, with an error that is tried again, until letIn.
func (b *bundle) refuse(table string) {
	b.Helper()
	b.exec(`create or replace function public.refuse() returns trigger language plpgsql as $$ begin raise exception 'refused on purpose'; end $$;
		create trigger refuse before insert or update on ` + table + ` for each row execute function public.refuse()`)
}

func (b *bundle) letIn(table string) {
	b.Helper()
	b.exec("drop trigger refuse on " + table)
}

func TestOneFailingHandlerOfADecisionLeavesTheOthersEffect(t *testing.T) {
	b := setup(t)
	for _, c := range []struct{ failing, failingTable, other, otherTable string }{
		{healthRecorder, "worlds.rule_health", patternAggregator, "platform.override_patterns"},
		{patternAggregator, "platform.override_reasons", healthRecorder, "worlds.rule_health"},
	} {
		b.run(c.failing, func(b *bundle) {
			for _, table := range []string{"worlds.rule_health", "platform.override_patterns", "platform.override_reasons"} {
				b.exec("delete from " + table)
			}
			b.refuse(c.failingTable)
			l := b.listen(noPoll, retrying(b.shipped(platform.DecisionRecordedType), persistently))
			b.record(uuid.NullUUID{}, overridden("berth-depth", "surveyed", atMinute(0)))

			s := l.next()
			if s.Outcome != postgres.Retried || !strings.Contains(s.LastError, c.failing+": ") || !strings.Contains(s.LastError, "refused on purpose") || strings.Contains(s.LastError, c.other) {
				b.Fatalf("%s: %s", s.Outcome, s.LastError)
			}
			key := s.Envelope.IdempotencyKey
			if got := b.handledBy(key); !slices.Equal(got, []string{c.other}) {
				b.Fatalf("handled by %v", got)
			}
			if n := one[int](b, "select count(*)::int from "+c.failingTable); n != 0 {
				b.Fatalf("%d rows in %s", n, c.failingTable)
			}
			// the system columns tell whether a row was written again, even with the same values
			written := "select xmin || ' ' || ctid::text || ' ' || t::text from " + c.otherTable + " t"
			before := one[string](b, written)
			if s = l.next(); s.Outcome != postgres.Retried || strings.Contains(s.LastError, c.other) {
				b.Fatalf("%s: %s", s.Outcome, s.LastError)
			}
			failures := b.row(s.Envelope.EventID).Failures
			if len(failures) != 1 || failures[c.failing].Failures < 2 {
				b.Fatalf("failures are %v", failures)
			}

			b.letIn(c.failingTable)
			l.until(postgres.Delivered)
			if got := b.handledBy(key); !slices.Equal(got, []string{patternAggregator, healthRecorder}) {
				b.Fatalf("handled by %v", got)
			}
			if after := one[string](b, written); after != before {
				b.Fatalf("%s ran again: %s was %s", c.other, after, before)
			}
			b.wantPattern(uuid.NullUUID{}, "berth-depth", `0 followed 1 overridden 0 to 0, 1 "surveyed" 0 to 0`)
			b.wantHealth(uuid.NullUUID{}, "berth-depth", "unrated 0 followed 1 overridden until 0")
		})
	}
}

// What one handler cannot use, the other may.
func TestADecisionOfNoUse(t *testing.T) {
	b := setup(t)
	b.publishUnchecked()
	l := b.listen(noPoll, b.shipped(platform.DecisionRecordedType))
	payload := func(id, outcome, year string) string {
		return fmt.Sprintf(`{"decision_id": %s, "rule_id": "r", "outcome": %q, "decided_at": "%s-03-01T12:00:00Z"}`, id, outcome, year)
	}
	const id = `"5a3c7a52-8f0e-4d1b-9a51-6f0f43d3ad11"`
	for _, c := range []struct {
		payload, end string // of the error
		handledBy    []string
	}{
		{payload(id, "overridden", "2026"), "override_reason is missing", []string{healthRecorder}},
		{payload("null", "followed", "2026"), "decision_id is missing", nil},
		{payload(id, "ignored", "2026"), `outcome is "ignored", must be followed or overridden`, nil},
		{payload("7", "followed", "2026"), "", nil},
		{payload(id, "followed", "9999"), "which is still to come", nil},
	} {
		useless := one[uuid.UUID](b, "select core.outbox_publish('decision.recorded', 'platform', $1::jsonb)", c.payload)
		l.until(postgres.Failed)
		r := b.wantRow(useless, "failed", 1)
		if got := b.handledBy(useless.String()); !slices.Equal(got, c.handledBy) && len(got)+len(c.handledBy) > 0 || len(r.Failures) != 2-len(got) {
			t.Errorf("%s: handled by %v, failures are %v", c.payload, got, r.Failures)
		}
		for handler, f := range r.Failures {
			if f.Class != "PayloadError" || !f.Parked || !strings.HasSuffix(f.Error, c.end) {
				t.Errorf("%s: %s: %+v", c.payload, handler, f)
			}
		}
	}
	b.wantHealth(uuid.NullUUID{}, "r", "unrated 0 followed 1 overridden until 0")
}

func TestADecisionToldAgainCountsOnce(t *testing.T) {
	b := setup(t)
	l := b.listen(noPoll, b.shipped(platform.DecisionRecordedType))
	workspace := uuid.NullUUID{UUID: uuid.New(), Valid: true}
	decisions := []domain.Decision{followed("r", atMinute(1)), overridden("r", "late", atMinute(2)), overridden("s", "late", atMinute(3))}
	b.record(workspace, decisions...)
	l.delivered(3)
	before := b.decisionRows()

	// under the same keys: no handler runs
	b.exec(`select core.outbox_publish_many(jsonb_agg(jsonb_build_object('event_id', id, 'event_type', event_type, 'source', source,
		'payload', payload, 'workspace_id', workspace_id))) from core.outbox`)
	l.delivered(3)
	if n := one[int](b, "select count(*)::int from core.event_handled"); n != 6 {
		t.Fatalf("handled %d times", n)
	}
	if after := b.decisionRows(); after != before {
		t.Fatalf("was\n%s\nis\n%s", before, after)
	}
	// under other keys: they are handled, and not counted
	b.tell(workspace, append(decisions, decisions...)...)
	l.delivered(6)
	if n := one[int](b, "select count(*)::int from core.event_handled"); n != 18 {
		t.Fatalf("handled %d times", n)
	}
	if after := b.decisionRows(); after != before {
		t.Fatalf("was\n%s\nis\n%s", before, after)
	}
	// two rows that are claimed together
	twice := overridden("twice", "late", atMinute(4))
	b.exec(`select core.outbox_publish_many(jsonb_build_array(e, e)) from (select jsonb_build_object('event_type', 'decision.recorded',
		'source', 'platform', 'workspace_id', $2::uuid, 'payload', $1::jsonb) as e) e`, map[string]any{
		"decision_id": twice.DecisionID, "rule_id": "twice", "outcome": "overridden", "override_reason": "late", "decided_by": "d", "decided_at": twice.DecidedAt,
	}, workspace)
	l.delivered(2)
	b.wantPattern(workspace, "twice", `0 followed 1 overridden 4 to 4, 1 "late" 4 to 4`)
	b.wantHealth(workspace, "twice", "unrated 0 followed 1 overridden until 4")
	// in another workspace it is another decision
	b.tell(uuid.NullUUID{}, decisions[0])
	l.delivered(1)
	b.wantPattern(uuid.NullUUID{}, "r", "1 followed 0 overridden 1 to 1")
	b.wantPattern(workspace, "r", `1 followed 1 overridden 1 to 2, 1 "late" 2 to 2`)
}

func TestDecisionsComeInAnyOrder(t *testing.T) {
	b := setup(t)
	var all []domain.Decision
	for i := range 10 { // 3 of 10 are overridden; the last one is
		d := followed("berth-depth", atMinute(i))
		if i%3 == 0 && i > 0 {
			d = overridden("berth-depth", []string{"Surveyed", "surveyed ", "dredged"}[i/3-1], atMinute(i))
		}
		all = append(all, d)
	}
	for i := range 6 {
		all = append(all, overridden("quay-toll", fmt.Sprintf("reason %d", i%2), atMinute(100-i)), followed("pilotage", atMinute(i)))
	}
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	shuffled := func(n uint64) []domain.Decision {
		s := slices.Clone(all)
		rand.New(rand.NewPCG(seed, n)).Shuffle(len(s), func(i, j int) { s[i], s[j] = s[j], s[i] })
		return s
	}
	reversed := slices.Clone(all)
	slices.Reverse(reversed)
	s := b.shipped(platform.DecisionRecordedType)
	s.Concurrency = 3
	l := b.listen(noPoll, s)
	for _, order := range [][]domain.Decision{all, reversed, append(shuffled(1), shuffled(2)...)} {
		w := aWorkspace()
		b.tell(w, order...)
		l.delivered(len(order))
		b.wantPattern(w, "berth-depth", `7 followed 3 overridden 0 to 9, 2 "surveyed" 3 to 6, 1 "dredged" 9 to 9`)
		b.wantPattern(w, "quay-toll", `0 followed 6 overridden 95 to 100, 3 "reason 0" 96 to 100, 3 "reason 1" 95 to 99`)
		b.wantHealth(w, "berth-depth", "contested 7 followed 3 overridden until 9")
		b.wantHealth(w, "quay-toll", "failing 0 followed 6 overridden until 100")
		b.wantHealth(w, "pilotage", "healthy 6 followed 0 overridden until 5")
	}
}

// Batches side by side write the rows of the same rules: none may wait for another that waits for it.
func TestManyDecisionsOnFewRules(t *testing.T) {
	b := setup(t)
	log := &notes{}
	b.log = slog.NewJSONHandler(log, &slog.HandlerOptions{Level: slog.LevelDebug})
	const n, rules = 400, 8
	payloads := make([]json.RawMessage, n)
	for i := range n {
		payloads[i] = json.RawMessage(fmt.Sprintf(`{"event_type": "decision.recorded", "source": "platform", "payload": {"decision_id": "%s",
			"rule_id": "rule-%d", "outcome": "overridden", "override_reason": "reason %d", "decided_by": "d", "decided_at": "2026-03-01T12:00:00Z"}}`,
			uuid.New(), i%rules, i/rules%2))
	}
	all, err := json.Marshal(payloads)
	must(t, err)
	b.exec("select core.outbox_publish_many($1::jsonb)", string(all))
	s := b.shipped(platform.DecisionRecordedType)
	s.Concurrency = 4
	b.listen(noPoll, s).delivered(n)
	if got := log.count(`"batch undone`); got != 0 {
		t.Errorf("%d batches were undone", got)
	}
	for i := range rules {
		b.wantPattern(uuid.NullUUID{}, fmt.Sprintf("rule-%d", i), `0 followed 50 overridden 0 to 0, 25 "reason 0" 0 to 0, 25 "reason 1" 0 to 0`)
		b.wantHealth(uuid.NullUUID{}, fmt.Sprintf("rule-%d", i), "failing 0 followed 50 overridden until 0")
	}
}
