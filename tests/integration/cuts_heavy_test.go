//go:build heavy

package integration_test

import (
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"

	"spectral/internal/app"
	"spectral/internal/core/events/infrastructure/postgres"
	"spectral/tests/pgtest"
)

// cutFlow is one event, and what is to become of it.
type cutFlow struct {
	// prepare brings about what the event is about, in workspace.
	prepare func(b *bundle, workspace uuid.UUID)
	// eventType, source and payload are published by SQL.
	eventType, source string
	payload           map[string]any
	// outcome is what is to be true afterwards, as a query about the workspace $1 that answers with a text.
	outcome, want string
}

// cutFlows are two row-locked flows of the product: one event for two contexts, and an event that is answered. Ids are made anew for each workspace.
func cutFlows() map[string]func() cutFlow {
	at := "2026-03-01T12:00:00Z"
	answered := `(select count(*) || ' told' from core.outbox where workspace_id = $1 and event_type = '%s')`
	return map[string]func() cutFlow{
		"decisions": func() cutFlow {
			return cutFlow{
				eventType: "decision.recorded", source: "platform",
				payload: map[string]any{"decision_id": uuid.New(), "rule_id": "r", "outcome": "overridden", "override_reason": "late", "decided_by": "d", "decided_at": at},
				outcome: `select (select string_agg(followed || '/' || overridden, ',') from platform.override_patterns where workspace_id = $1)
					|| ' ' || (select string_agg(reason || ' ' || overridden, ',') from platform.override_reasons where workspace_id = $1)
					|| ' ' || (select string_agg(followed || '/' || overridden, ',') from worlds.rule_health where workspace_id = $1)`,
				want: "0/1 late 1 0/1",
			}
		},
		// worlds applies it and tells platform, which records the outcome: two claims
		"curation": func() cutFlow {
			candidate, decision := uuid.New(), uuid.New()
			return cutFlow{
				prepare: func(b *bundle, workspace uuid.UUID) {
					b.exec(`insert into worlds.rule_candidates (candidate_id, workspace_id, origin, origin_id, revision, statement, occurrences, kinds,
						confidence, proposed_at, updated_at) values ($1, $2, 'memory', gen_random_uuid(), 1, 's', 1, 1, 0.5, now(), now())`, candidate, workspace)
					b.exec(`insert into platform.curation_decisions (decision_id, workspace_id, candidate_id, verdict, note, decided_by, decided_at)
						values ($1, $2, $3, 'approve', '', 'c', $4)`, decision, workspace, candidate, at)
				},
				eventType: "platform.curation.decided", source: "platform",
				payload: map[string]any{"decision_id": decision, "candidate_id": candidate, "verdict": "approve", "decided_by": "c", "decided_at": at},
				outcome: `select (select string_agg(state, ',') from worlds.rule_candidates where workspace_id = $1)
					|| ' ' || (select string_agg(outcome, ',') from worlds.curation_rulings where workspace_id = $1)
					|| ' ' || (select string_agg(outcome, ',') from platform.curation_decisions where workspace_id = $1) || ' ' || ` +
					fmt.Sprintf(answered, "worlds.curation.applied"),
				want: "approved applied applied 1 told",
			}
		},
	}
}

// The connection of the workers is lost with each statement of a flow in turn, once before the server has it and once before
// its answer comes. Every time the flow ends as if nothing had happened.
func TestFlowsSurviveACutAtEveryStatement(t *testing.T) {
	for name, flow := range cutFlows() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setupAlone(t, 10*time.Minute)
			b.sockets = &sockets{}
			parts := app.Parts{Generation: pgtest.Generation, UnitOfWork: b.uow}
			var l *listening
			for _, build := range app.ConsumerBuilders() {
				s := build(parts)
				if l == nil {
					l = b.newListener(never, pgtest.Generation, s)
					continue
				}
				must(t, l.Listen(b.ctx, s))
			}
			l.start()
			for _, sent := range []bool{false, true} {
				cuts := int64(0)
				for b.cutOnce(l, flow(), cuts+1, sent) {
					cuts++
				}
				if cuts < 5 {
					t.Fatalf("only %d statements were cut (sent: %t)", cuts, sent)
				}
				t.Logf("survived %d cuts (sent: %t)", cuts, sent)
			}
		})
	}
}

// cutOnce runs a flow with a cut at the nth statement, and reports whether it has so many.
func (b *bundle) cutOnce(l *listening, flow cutFlow, n int64, sent bool) bool {
	b.Helper()
	workspace := uuid.New()
	if flow.prepare != nil {
		flow.prepare(b, workspace)
	}
	payload, err := json.Marshal(flow.payload)
	must(b.T, err)
	b.sockets.cutSent.Store(sent)
	b.sockets.cutIn.Store(n)
	id := one[uuid.UUID](b, "select core.outbox_publish($1, $2, $3, p_workspace_id => $4)", flow.eventType, flow.source, payload, workspace)
	b.eventually(fmt.Sprintf("cut %d (sent: %t): the events are settled", n, sent), func() bool {
		return one[bool](b, "select count(*) > 0 and bool_and(status = 'delivered') from core.outbox where workspace_id = $1", workspace)
	})
	cut := b.sockets.cutIn.Swap(0) <= 0
	if got := one[string](b, flow.outcome, workspace); got != flow.want {
		b.Fatalf("cut %d (sent: %t): %s, want %s", n, sent, got, flow.want)
	}
	handled := one[int](b, `select count(*)::int from core.event_handled h where h.event_id in (select id from core.outbox where workspace_id = $1)`, workspace)
	if want := map[string]int{"decision.recorded": 2, "platform.curation.decided": 2}[flow.eventType]; handled != max(want, 1) {
		b.Fatalf("cut %d (sent: %t): %d handled keys", n, sent, handled)
	}
	if attempts := one[int](b, "select attempts from core.outbox where id = $1", id); attempts > 1 {
		b.Fatalf("cut %d (sent: %t): a lost connection cost %d attempts", n, sent, attempts-1)
	}
	for len(l.settlements) > 0 {
		if s := <-l.settlements; s.Outcome == postgres.Failed {
			b.Fatalf("cut %d (sent: %t): %s", n, sent, s.LastError)
		}
	}
	return cut
}
