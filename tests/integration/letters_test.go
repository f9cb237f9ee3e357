package integration_test

import (
	"context"
	"errors"
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
	"spectral/tests/pgtest"
)

// What failed in a worker is found by an operator, who is told which handlers a replay would run, as long as the worker
// lives; and by the producer, in the workspace of the event.
func aDeadLetterIsFoundByOperatorAndProducer(b *bundle) {
	const fine, broken, elsewhere = "worlds.letters_fine", "worlds.letters_broken", "platform.letters_elsewhere"
	l := b.listen(noPoll, subscription(leaving(fine), leaving(elsewhere),
		handler(broken, func(context.Context, events.Tx, events.Envelope) error { return events.Terminal(errRefusing) })))
	workspace, other := uuid.NullUUID{UUID: uuid.New(), Valid: true}, uuid.NullUUID{UUID: uuid.New(), Valid: true}
	e := event(1)
	e.Target, e.WorkspaceID = events.Worlds, workspace
	b.publish(e)
	if s := l.next(); s.Outcome != postgres.Failed {
		b.Fatalf("the event is %s: %s", s.Outcome, s.LastError)
	}
	office := admin.New(pgtest.Pool(b.T, pgtest.Login(b.T, b.url, admin.Role)))
	found, err := office.Find(b.ctx, admin.Filter{Statuses: []admin.Status{admin.Failed}, Handlers: []string{broken}, NewerThan: time.Hour,
		ErrorClasses: []string{"TerminalError"}, Workspaces: []uuid.NullUUID{workspace}}, admin.Page{Limit: 10})
	must(b.T, err)
	if len(found.Events) != 1 || found.Events[0].ID != e.EventID || found.Events[0].Attempts != 1 || found.Events[0].FailedAt == nil {
		b.Fatalf("found %+v", found)
	}
	stages := func() string {
		b.Helper()
		all, err := office.Show(b.ctx, e.EventID)
		must(b.T, err)
		var text []string
		for _, h := range all[0].Handlers {
			text = append(text, fmt.Sprint(h.Handler, " ", h.Stage))
		}
		return fmt.Sprint(all[0].Workers, " ", strings.Join(text, ", "))
	}
	if have, want := stages(), "1 "+elsewhere+" not_target, "+broken+" parked, "+fine+" handled"; have != want {
		b.Errorf("the event is at %s, want %s", have, want)
	}
	l.stop()
	if have, want := stages(), "0 "+broken+" parked, "+fine+" handled"; have != want {
		b.Errorf("without a live worker the event is at %s, want %s", have, want)
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
	// platform's transaction may not ask for worlds' events
	err = b.uow.Do(b.ctx, events.Platform, workspace, func(tx events.Tx, _ events.PublisherFor) error {
		_, err := postgres.NewFailureReader(tx, events.Worlds).Failures(b.ctx, 10, events.Failure{})
		return err
	})
	var refused *events.Refusal
	if !errors.As(err, &refused) || refused.Code != events.CodeSourceForbidden {
		b.Errorf("platform asks for worlds' failures: %v", err)
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
		for _, limit := range []int{1, 100, 1000} {
			have, err := list.List(b.ctx, uuid.NullUUID{}, limit)
			must(b.T, err)
			ids := make(map[uuid.UUID]bool)
			for _, f := range have {
				ids[f.Envelope.EventID] = true
			}
			if len(have) != min(limit, 103) || len(ids) != len(have) || have[0].Envelope.EventID != envelopes[0].EventID {
				b.Errorf("%s: %d failures, %d of them different, want %d", name, len(have), len(ids), min(limit, 103))
			}
		}
		if have, err := list.List(b.ctx, uuid.NullUUID{}, 10, "worlds.other.happened"); err != nil || len(have) != 0 {
			b.Errorf("%s: %d failures of another type, %v", name, len(have), err)
		}
		if _, err := list.List(b.ctx, uuid.NullUUID{}, 0); err == nil {
			b.Errorf("%s: none at all were asked for", name)
		}
	}
}
