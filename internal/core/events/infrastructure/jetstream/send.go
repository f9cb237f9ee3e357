package jetstream

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	natsjs "github.com/nats-io/nats.go/jetstream"

	"spectral/internal/core/events"
	"spectral/internal/core/events/infrastructure/postgres/dispatch"
)

var errTooLarge = fmt.Errorf("larger than %d bytes", maxPayload)

// errDuplicate says that the broker had the event before. Its message may be handled already, and does not come again:
// the event stays with Postgres.
var errDuplicate = errors.New("the broker had it before")

// Send implements [dispatch.Relay].
func (r *Relay) Send(ctx context.Context, s events.Subscription, rows []dispatch.Row) []bool {
	stored := make([]bool, len(rows))
	acks := make([]natsjs.PubAckFuture, len(rows))
	subject := r.subject(r.class(s.Channel), s.EventType)
	refused, first := 0, error(nil)
	refuse := func(err error) {
		refused++
		if first == nil {
			first = err
		}
	}
	for i := range rows {
		if len(rows[i].Envelope.Payload) > maxPayload {
			refuse(errTooLarge)
			continue
		}
		ack, err := r.js.PublishMsgAsync(toMessage(subject, &rows[i]), natsjs.WithExpectStream(r.config.Stream),
			natsjs.WithRetryAttempts(0))
		if err != nil {
			refuse(err)
			continue
		}
		acks[i] = ack
	}
	for i, ack := range acks {
		if ack == nil {
			continue
		}
		select {
		case result := <-ack.Ok():
			if stored[i] = !result.Duplicate; !stored[i] {
				refuse(errDuplicate)
			}
		case err := <-ack.Err():
			refuse(err)
		case <-ctx.Done():
			refuse(ctx.Err())
		}
	}
	if refused > 0 {
		r.refused(ctx, refused, first)
	}
	return stored
}

// refused takes in that the broker did not take events: they are handled from Postgres. If it is at fault, and not the
// events, nothing is sent until Run has seen that it works.
func (r *Relay) refused(ctx context.Context, n int, err error) {
	if slices.ContainsFunc(brokerFaults, func(fault error) bool { return errors.Is(err, fault) }) {
		r.unready(err)
		return
	}
	if all, warn := r.refusals.add(n, time.Now()); warn {
		r.config.Log.WarnContext(ctx, "the broker refused events: they are handled from Postgres", logEvents, all,
			logError, fmt.Errorf("the first of them: %w", err))
	}
}

var brokerFaults = []error{
	nats.ErrTimeout, natsjs.ErrAsyncPublishTimeout, nats.ErrNoResponders, natsjs.ErrNoStreamResponse,
	nats.ErrConnectionClosed, nats.ErrDisconnected, nats.ErrReconnectBufExceeded,
}

// refusals counts refused events between two warnings.
type refusals struct {
	mu   sync.Mutex
	n    int
	next time.Time
}

func (f *refusals) add(n int, now time.Time) (all int, warn bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.n += n
	if now.Before(f.next) {
		return 0, false
	}
	all, f.n, f.next = f.n, 0, now.Add(warnPause)
	return all, true
}
