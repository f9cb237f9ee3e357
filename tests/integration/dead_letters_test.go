package integration_test

import (
	"context"
	"slices"
	"strings"

	"github.com/google/uuid"

	"spectral/internal/core/events"
	"spectral/internal/core/events/infrastructure/postgres/dispatch"
	"spectral/internal/core/events/infrastructure/postgres/publish"
)

// A producer reads its dead letters, the discarded ones too, page by page and in its workspace only.
func aProducerReadsItsFailures(b *bundle) {
	const fails = "worlds.test_fails"
	workspace, other := newWorkspace(), newWorkspace()
	all := make([]events.Envelope, 115)
	for i := range all {
		all[i] = event(i)
		all[i].Target, all[i].WorkspaceID = events.Worlds, workspace
	}
	b.publish(all...)
	b.exec("update core.outbox set status = 'failed', claimed_at = created_at where payload ->> 'n' <> '114'")
	b.exec("update core.outbox set deleted_at = now(), discarded_at = now() where (payload ->> 'n')::int % 10 = 0")
	l := b.startWorker(noPoll, subscription(handler(fails,
		func(context.Context, events.Tx, events.Envelope) error { return events.Terminal(errOnPurpose) })))
	l.awaitOutcome(dispatch.Failed)
	slices.Reverse(all)
	for _, page := range []int{50, events.MaxFailures} {
		have := b.failures(workspace, page)
		if len(have) != len(all) {
			b.Fatalf("in pages of %d there are %d failures, want %d", page, len(have), len(all))
		}
		for i, f := range have {
			discarded := payloadN(all[i])%10 == 0
			if f.Envelope.EventID != all[i].EventID || f.DiscardedAt.IsZero() == discarded {
				b.Fatalf("in pages of %d failure %d is %+v", page, i, f)
			}
		}
		if f := have[0]; f.Envelope.WorkspaceID != workspace || f.Envelope.Target != events.Worlds ||
			string(f.Envelope.Payload) != `{"n": 114}` || f.Attempts != 1 || f.FailedAt.IsZero() ||
			!strings.HasPrefix(f.LastError, "TerminalError: "+fails+": ") {
			b.Errorf("the latest is %+v", f)
		}
	}
	for _, elsewhere := range []uuid.NullUUID{other, {}} {
		if others := b.failures(elsewhere, 10); len(others) != 0 {
			b.Errorf("in workspace %v worlds sees %+v", elsewhere, others)
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
