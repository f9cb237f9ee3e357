package integration_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"spectral/internal/app"
	"spectral/internal/core/events"
	"spectral/internal/core/events/eventstest"
	"spectral/internal/core/events/infrastructure/postgres"
	"spectral/internal/core/events/infrastructure/postgres/admin"
	"spectral/internal/worlds/application"
)

// What failed in a worker is found by an operator, who is told which handlers a replay would run, as long as the worker
// lives; and by the producer, in the workspace of the event.
func aDeadLetterIsFoundByOperatorAndProducer(b *bundle) {
	const fine, broken, elsewhere = "worlds.letters_fine", "worlds.letters_broken", "platform.letters_elsewhere"
	l := b.listen(noPoll, subscription(leaving(fine), leaving(elsewhere),
		handler(broken, func(context.Context, events.Tx, events.Envelope) error { return events.Terminal(errRefusing) })))
	workspace, other := aWorkspace(), aWorkspace()
	e := event(1)
	e.Target, e.WorkspaceID = events.Worlds, workspace
	b.publish(e)
	if s := l.next(); s.Outcome != postgres.Failed {
		b.Fatalf("the event is %s: %s", s.Outcome, s.LastError)
	}
	operator := b.operator()
	found, err := operator.Find(b.ctx, admin.Filter{Statuses: []admin.Status{admin.Failed}, Handlers: []string{broken}, NewerThan: time.Hour,
		ErrorClasses: []string{"TerminalError"}, Workspaces: []uuid.NullUUID{workspace}}, admin.Page{Limit: 10})
	must(b.T, err)
	if len(found.Events) != 1 || found.Events[0].ID != e.EventID || found.Events[0].Attempts != 1 || found.Events[0].FailedAt == nil {
		b.Fatalf("found %+v", found)
	}
	shown, err := operator.Show(b.ctx, e.EventID)
	must(b.T, err)
	var stages []string
	for _, h := range shown[0].Handlers {
		stages = append(stages, fmt.Sprint(h.Handler, " ", h.Stage))
	}
	if have, want := strings.Join(stages, ", "), elsewhere+" not_target, "+broken+" parked, "+fine+" handled"; have != want {
		b.Errorf("the event is at %s, want %s", have, want)
	}

	list := app.NewListFailures(b.uow)
	mine, err := list.List(b.ctx, workspace, 10)
	must(b.T, err)
	if len(mine) != 1 {
		b.Fatalf("worlds sees %d failures of its own, want one", len(mine))
	}
	f := mine[0]
	if f.Envelope.EventID != e.EventID || f.Envelope.WorkspaceID != workspace || f.Envelope.Target != events.Worlds || f.Envelope.Source != events.Worlds ||
		string(f.Envelope.Payload) != `{"n": 1}` || f.Attempts != 1 || f.PriorReplays != 0 || !strings.HasPrefix(f.LastError, "TerminalError: "+broken+": ") ||
		f.FailedAt.IsZero() || f.FirstFailedAt.IsZero() || !f.DiscardedAt.IsZero() {
		b.Errorf("worlds sees %+v", f)
	}
	for _, elsewhere := range []uuid.NullUUID{other, {}} {
		if others, err := list.List(b.ctx, elsewhere, 10); err != nil || len(others) != 0 {
			b.Errorf("in workspace %v worlds sees %+v, %v", elsewhere, others, err)
		}
	}
}

// The port is the same with a database and without.
func failuresAreReadWithAndWithoutADatabase(b *bundle) {
	envelopes := b.publishMany(115)
	b.exec("update core.outbox set status = 'failed', claimed_at = created_at, deleted_at = case when (payload ->> 'n')::int % 10 = 0 then now() end, discarded_at = case when (payload ->> 'n')::int % 10 = 0 then now() end")
	slices.Reverse(envelopes)
	var all eventstest.Failures
	for i, e := range envelopes {
		f := events.Failure{Envelope: e}
		if n := 114 - i; n%10 == 0 {
			f.DiscardedAt = time.Now()
		}
		all = append(all, f)
	}
	fake := application.NewListFailures(func(_ context.Context, _ uuid.NullUUID, work func(events.FailureReader, events.EventPublisher) error) error {
		return work(all, nil)
	})
	for name, list := range map[string]*application.ListFailures{"of a database": app.NewListFailures(b.uow), "without one": fake} {
		for _, limit := range []int{1, 1000} {
			have, err := list.List(b.ctx, uuid.NullUUID{}, limit)
			if err != nil || len(have) != min(limit, 103) || have[0].Envelope.EventID != envelopes[0].EventID {
				b.Errorf("%s: %d failures, want %d: %v", name, len(have), min(limit, 103), err)
			}
		}
		if have, err := list.List(b.ctx, uuid.NullUUID{}, 10, otherType); err != nil || len(have) != 0 {
			b.Errorf("%s: %d failures of another type, %v", name, len(have), err)
		}
	}
}
