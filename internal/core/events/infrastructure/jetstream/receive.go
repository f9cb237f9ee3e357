package jetstream

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	natsjs "github.com/nats-io/nats.go/jetstream"

	"spectral/internal/core/events/infrastructure/postgres/dispatch"
)

// Receive implements [dispatch.Relay]. It asks for no more than the caller handles at once: other receivers could have
// handled what waits here.
func (r *Relay) Receive(ctx context.Context, handler string, limit int) (dispatch.Messages, error) {
	consumer, err := r.consumer(ctx, handler)
	if err != nil {
		return dispatch.Messages{}, err
	}
	found, err := fetched(consumer.FetchNoWait(limit))
	if err == nil && len(found) == 0 {
		waiting, cancel := context.WithTimeout(ctx, fetchWait)
		found, err = fetched(consumer.Fetch(1, natsjs.FetchContext(waiting)))
		cancel()
		if err == nil && len(found) == 1 && limit > 1 {
			var more []natsjs.Msg
			more, err = fetched(consumer.FetchNoWait(limit - 1))
			found = append(found, more...)
		}
	}
	if len(found) > 0 {
		return r.messages(ctx, found), nil
	}
	if err != nil && ctx.Err() == nil && !errors.Is(err, natsjs.ErrNoHeartbeat) { // that one may be of a busy host
		r.unready(fmt.Errorf("fetch messages of %s: %w", handler, err)) // the next call waits until it works again
	}
	return dispatch.Messages{}, ctx.Err()
}

func fetched(batch natsjs.MessageBatch, err error) (found []natsjs.Msg, _ error) {
	if err != nil {
		return nil, err
	}
	for m := range batch.Messages() {
		found = append(found, m)
	}
	if err := batch.Error(); err != nil && !errors.Is(err, nats.ErrTimeout) && !errors.Is(err, context.DeadlineExceeded) &&
		!errors.Is(err, natsjs.ErrNoMessages) {
		return found, err
	}
	return found, nil
}

// messages reads messages, and tells the broker that they are being handled until they are acked or left. What is no
// event of ours it acks.
func (r *Relay) messages(ctx context.Context, found []natsjs.Msg) (m dispatch.Messages) {
	kept := make([]natsjs.Msg, 0, len(found))
	for _, message := range found {
		row, err := fromMessage(message.Headers(), message.Data())
		metadata, metadataErr := message.Metadata()
		if err = errors.Join(err, metadataErr); err != nil {
			r.config.Log.WarnContext(ctx, "dropped a message that is no event", logSubject, message.Subject(), logError, err)
			_ = message.Ack()
			continue
		}
		kept = append(kept, message)
		if metadata.NumDelivered > 1 {
			m.Again = append(m.Again, row)
		} else {
			m.First = append(m.First, row)
		}
	}
	over := make(chan struct{})
	end := sync.OnceFunc(func() { close(over) })
	go func() {
		tick := time.NewTicker(ackWait / 3)
		defer tick.Stop()
		for {
			select {
			case <-over:
				return
			case <-tick.C:
				for _, message := range kept {
					_ = message.InProgress()
				}
			}
		}
	}()
	m.Leave = end
	m.Ack = func() {
		end()
		for _, message := range kept {
			_ = message.Ack() // if it is lost, the message comes again, and goes back to Postgres
		}
	}
	return m
}
