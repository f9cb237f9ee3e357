package integration_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"spectral/internal/core/events"
	"spectral/internal/core/events/infrastructure/postgres/dispatch"
	"spectral/internal/core/events/infrastructure/postgres/operator"
	"spectral/internal/core/events/infrastructure/postgres/publish"
)

// An operator finds a failed event and sees which handlers a replay would run. Its producer finds it in its workspace
// only.
func aDeadLetterIsFoundByOperatorAndProducer(b *bundle) {
	const succeeds, fails, notTarget = "worlds.test_succeeds", "worlds.test_fails", "platform.test_not_target"
	l := b.startWorker(noPoll, subscription(effectHandler(succeeds), effectHandler(notTarget),
		handler(fails, func(context.Context, events.Tx, events.Envelope) error { return events.Terminal(errOnPurpose) })))
	workspace, other := newWorkspace(), newWorkspace()
	e := event(1)
	e.Target, e.WorkspaceID = events.Worlds, workspace
	b.publish(e)
	if s := l.nextSettlement(); s.Outcome != dispatch.Failed {
		b.Fatalf("the event is %s: %s", s.Outcome, s.LastError)
	}
	client := b.operator()
	found, err := client.Find(b.ctx,
		operator.Filter{Statuses: []operator.Status{operator.Failed}, Handlers: []string{fails}, NewerThan: time.Hour,
			ErrorClasses: []string{"TerminalError"}, Workspaces: []uuid.NullUUID{workspace}}, operator.Page{Limit: 10})
	must(b.T, err)
	if len(found.Events) != 1 || found.Events[0].ID != e.EventID || found.Events[0].Attempts != 1 ||
		found.Events[0].FailedAt == nil {
		b.Fatalf("found %+v", found)
	}
	shown, err := client.Show(b.ctx, e.EventID)
	must(b.T, err)
	var stages []string
	for _, h := range shown[0].Handlers {
		stages = append(stages, fmt.Sprint(h.Handler, " ", h.Stage))
	}
	if have, want := strings.Join(stages, ", "),
		notTarget+" not_target, "+fails+" parked, "+succeeds+" handled"; have != want {
		b.Errorf("the handlers are %s, want %s", have, want)
	}

	own := b.failures(workspace, 10)
	if len(own) != 1 {
		b.Fatalf("worlds sees %d failures, want one", len(own))
	}
	f := own[0]
	if f.Envelope.EventID != e.EventID || f.Envelope.WorkspaceID != workspace || f.Envelope.Target != events.Worlds ||
		f.Envelope.Source != events.Worlds ||
		string(f.Envelope.Payload) != `{"n": 1}` || f.Attempts != 1 || f.PriorReplays != 0 ||
		!strings.HasPrefix(f.LastError, "TerminalError: "+fails+": ") ||
		f.FailedAt.IsZero() || f.FirstFailedAt.IsZero() || !f.DiscardedAt.IsZero() {
		b.Errorf("worlds sees %+v", f)
	}
	for _, elsewhere := range []uuid.NullUUID{other, {}} {
		if others := b.failures(elsewhere, 10); len(others) != 0 {
			b.Errorf("in workspace %v worlds sees %+v", elsewhere, others)
		}
	}
}

// The pages include discarded events.
func failuresAreReadInPages(b *bundle) {
	envelopes := b.publishMany(115)
	b.exec("update core.outbox set status = 'failed', claimed_at = created_at")
	b.exec("update core.outbox set deleted_at = now(), discarded_at = now() where (payload ->> 'n')::int % 10 = 0")
	slices.Reverse(envelopes)
	for _, page := range []int{50, events.MaxFailures} {
		have := b.failures(uuid.NullUUID{}, page)
		if len(have) != len(envelopes) {
			b.Fatalf("in pages of %d there are %d failures, want %d", page, len(have), len(envelopes))
		}
		for i, f := range have {
			if isDiscarded := (len(envelopes)-1-i)%10 == 0; f.Envelope.EventID != envelopes[i].EventID ||
				f.DiscardedAt.IsZero() == isDiscarded {
				b.Fatalf("in pages of %d failure %d is %+v", page, i, f)
			}
		}
	}
}

// failures returns the failed events of worlds in a workspace, which it reads page by page.
func (b *bundle) failures(workspace uuid.NullUUID, page int) (all []events.Failure) {
	b.Helper()
	must(b.T, b.uow.Do(b.ctx, events.Worlds, workspace, func(tx events.Tx, _ events.PublisherFor) error {
		reader := publish.NewFailureReader(tx, events.Worlds)
		var last events.Failure
		for {
			found, err := reader.Failures(b.ctx, page, last)
			if err != nil || len(found) == 0 {
				return err
			}
			all = append(all, found...)
			last = found[len(found)-1]
		}
	}))
	return all
}
