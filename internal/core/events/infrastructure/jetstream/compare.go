package jetstream

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/nats-io/nats.go"
	natsjs "github.com/nats-io/nats.go/jetstream"

	"spectral/internal/core/events"
)

// Copy is a copy of everything that is sent, of all generations. The broker deletes it when it is not read for a
// minute.
type Copy struct {
	nc       *nats.Conn
	js       natsjs.JetStream
	stream   string
	consumer natsjs.Consumer
}

// OpenCopy begins a copy of what a database sends. Call Close after use.
func OpenCopy(ctx context.Context, c Config, database uuid.UUID) (*Copy, error) {
	c.Stream = cmp.Or(c.Stream, DefaultStream)
	c.Log = slog.New(slog.DiscardHandler)
	nc, err := c.connect(nats.RetryOnFailedConnect(false))
	if err != nil {
		return nil, fmt.Errorf("NATS: %w", err)
	}
	copied := &Copy{nc: nc, stream: c.Stream}
	if copied.js, err = natsjs.New(nc, natsjs.WithDefaultTimeout(apiTimeout)); err == nil {
		err = copied.check(ctx, database.String())
	}
	if err == nil {
		copied.consumer, err = copied.js.CreateConsumer(ctx, c.Stream, natsjs.ConsumerConfig{
			DeliverPolicy: natsjs.DeliverNewPolicy, AckPolicy: natsjs.AckExplicitPolicy, MaxAckPending: maxAckPending,
			InactiveThreshold: time.Minute,
		})
	}
	switch {
	case errors.Is(err, natsjs.ErrStreamNotFound):
		err = errors.New("there is none: run workers with --relay jetstream first")
	case errors.Is(err, nats.ErrNoResponders), errors.Is(err, natsjs.ErrJetStreamNotEnabled):
		err = errNoJetStream
	}
	if err != nil {
		nc.Close()
		return nil, fmt.Errorf("stream %s: %w", c.Stream, err)
	}
	return copied, nil
}

func (c *Copy) check(ctx context.Context, database string) error {
	stream, err := c.js.Stream(ctx, c.stream)
	if err != nil {
		return err
	}
	return belongs(stream, database)
}

// Close ends the copy.
func (c *Copy) Close() {
	ctx, cancel := context.WithTimeout(context.Background(), apiTimeout)
	defer cancel()
	_ = c.js.DeleteConsumer(ctx, c.stream, c.consumer.CachedInfo().Name)
	c.nc.Close()
}

// Read calls use with what has arrived, and returns when nothing more is there.
func (c *Copy) Read(use func(e *events.Envelope, contentClass string)) error {
	for {
		found, err := fetched(c.consumer.FetchNoWait(events.MaxBatchSize))
		for _, m := range found {
			if row, err := fromMessage(m.Headers(), m.Data()); err == nil {
				use(&row.Envelope, row.ContentClass)
			}
			_ = m.Ack()
		}
		if err != nil {
			return fmt.Errorf("read from stream %s: %w", c.stream, err)
		}
		if len(found) == 0 {
			return nil
		}
	}
}

// Waiting returns, for the consumer of each handler of some generations, how many messages it has not had an ack for.
func (c *Copy) Waiting(ctx context.Context, generations []events.Generation) (map[string]uint64, error) {
	stream, err := c.js.Stream(ctx, c.stream)
	if err != nil {
		return nil, err
	}
	waiting := make(map[string]uint64)
	list := stream.ListConsumers(ctx)
	for info := range list.Info() {
		if slices.ContainsFunc(generations, func(g events.Generation) bool {
			return strings.HasPrefix(info.Config.Durable, fmt.Sprintf("g%d-", g))
		}) {
			waiting[info.Name] = info.NumPending + uint64(info.NumAckPending) //nolint:gosec // not negative
		}
	}
	return waiting, list.Err()
}
