package jetstream

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net/url"
	"strings"
	"sync"

	"github.com/google/uuid"
	"github.com/nats-io/nats.go"
	natsjs "github.com/nats-io/nats.go/jetstream"

	"spectral/internal/core/events"
	"spectral/internal/core/events/infrastructure/postgres/dispatch"
	"spectral/internal/core/events/infrastructure/postgres/pgtx"
)

// metadataKey is the name of the stream's metadata that has the database's id.
const metadataKey = "spectral_database"

// Relay is a [dispatch.Relay] on JetStream.
type Relay struct {
	config Config
	nc     *nats.Conn
	js     natsjs.JetStream

	check    chan struct{} // asks Run to check at once
	refusals refusals

	mu        sync.Mutex
	consumers map[string]natsjs.Consumer // by handler
	ready     chan struct{}              // closed while the broker works
	isReady   bool
}

var _ dispatch.Relay = (*Relay)(nil)

// New returns a relay, which connects in the background. Call Close after use.
func New(c Config) (*Relay, error) {
	c.Stream = cmp.Or(c.Stream, DefaultStream)
	c.Log = cmp.Or(c.Log, slog.New(slog.DiscardHandler))
	r := &Relay{config: c, check: make(chan struct{}, 1), ready: make(chan struct{})}
	var err error
	r.nc, err = c.connect(
		nats.ConnectHandler(func(*nats.Conn) { r.checkNow() }), nats.ReconnectHandler(func(*nats.Conn) { r.checkNow() }),
		nats.DisconnectErrHandler(func(_ *nats.Conn, err error) { r.unready(err) }),
		nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) {
			c.Log.DebugContext(context.Background(), "NATS client", logError, err)
		}))
	if err != nil {
		return nil, fmt.Errorf("NATS: %w", err)
	}
	r.js, err = natsjs.New(r.nc, natsjs.WithPublishAsyncTimeout(ackTimeout), natsjs.WithDefaultTimeout(apiTimeout),
		natsjs.WithPublishAsyncMaxPending(1<<16))
	return r, err
}

// Close ends the connection.
func (r *Relay) Close() {
	r.setReady(false)
	r.nc.Close()
}

// Ready implements [dispatch.Relay].
func (r *Relay) Ready() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.isReady
}

// hosts returns where the broker should be, without passwords.
func (r *Relay) hosts() (all []string) {
	for _, address := range r.nc.Servers() {
		if u, err := url.Parse(address); err == nil {
			all = append(all, u.Host)
		}
	}
	return all
}

// setReady takes in whether the broker works, and reports whether it did before.
func (r *Relay) setReady(now bool) (before bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	before = r.isReady
	switch {
	case now && !before:
		close(r.ready)
	case before && !now:
		r.ready = make(chan struct{})
	}
	r.isReady = now
	return before
}

// checkNow asks Run to check the broker at once.
func (r *Relay) checkNow() {
	select {
	case r.check <- struct{}{}:
	default:
	}
}

// unready takes in that the broker does not work. Until Run has seen that it does, events are handled from Postgres.
func (r *Relay) unready(err error) {
	if r.setReady(false) {
		r.config.Log.WarnContext(context.Background(), "the broker does not work: events are handled from Postgres",
			logError, err)
	}
	r.checkNow()
}

// Run implements [dispatch.Relay].
func (r *Relay) Run(ctx context.Context, database func(context.Context) (uuid.UUID, error),
	subscriptions []events.Subscription) {
	told := ""
	for ctx.Err() == nil {
		err := r.prepare(ctx, database, subscriptions)
		pause := checkPause
		switch {
		case err == nil && !r.setReady(true):
			told = ""
			r.config.Log.InfoContext(ctx, "the broker is ready", logURL, r.nc.ConnectedUrlRedacted(), logStream, r.config.Stream)
		case err != nil && ctx.Err() == nil:
			r.setReady(false)
			pause = retryPause
			if err.Error() != told {
				told = err.Error()
				r.config.Log.WarnContext(ctx, "the broker is not ready: events are handled from Postgres", logError, err)
			}
		}
		pgtx.Pause(ctx, retryPause, nil) // a broker that fails at once is not asked more often
		pgtx.Pause(ctx, pause-retryPause, r.check)
	}
}

// prepare makes sure that the stream and the handlers' consumers are there. It does not change a stream, and refuses
// one that drops messages for newer ones, or keeps each for one handler only.
func (r *Relay) prepare(ctx context.Context, database func(context.Context) (uuid.UUID, error),
	subscriptions []events.Subscription) error {
	if !r.nc.IsConnected() {
		return fmt.Errorf("SPECTRAL_NATS_URL: not connected to %s: %w", strings.Join(r.hosts(), ", "),
			cmp.Or(r.nc.LastError(), errors.New("it does not answer")))
	}
	id, err := database(ctx)
	if err != nil {
		return fmt.Errorf("ask Postgres for the database's id: %w", err)
	}
	stream, err := r.stream(ctx, id.String())
	if err != nil {
		return err
	}
	consumers := make(map[string]natsjs.Consumer)
	for _, s := range subscriptions {
		for _, h := range s.Handlers() {
			consumers[h.Name], err = stream.CreateOrUpdateConsumer(ctx, natsjs.ConsumerConfig{
				Durable: r.durable(h.Name), FilterSubject: r.subject("*", s.EventType), AckPolicy: natsjs.AckExplicitPolicy,
				AckWait: ackWait, MaxAckPending: maxAckPending, InactiveThreshold: unused,
			})
			if err != nil {
				return fmt.Errorf("consumer %s: %w", r.durable(h.Name), err)
			}
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.consumers = consumers
	return nil
}

// insufficientStorage is the code of an error of the server.
const insufficientStorage = 10047

// belongs refuses the stream of another database.
func belongs(stream natsjs.Stream, database string) error {
	if stream.CachedInfo().Config.Metadata[metadataKey] == database {
		return nil
	}
	return errors.New("it belongs to another database, or was not made by workers: set SPECTRAL_NATS_STREAM to a name " +
		"that is free")
}

var errNoJetStream = errors.New("JetStream is off on this NATS server: start it with -js, or set jetstream in its " +
	"configuration")

func (r *Relay) stream(ctx context.Context, database string) (natsjs.Stream, error) {
	name := r.config.Stream
	stream, err := r.js.Stream(ctx, name)
	if errors.Is(err, natsjs.ErrStreamNotFound) {
		stream, err = r.js.CreateStream(ctx, natsjs.StreamConfig{
			Name: name, Subjects: []string{name + ".>"}, Retention: natsjs.InterestPolicy, Discard: natsjs.DiscardNew,
			MaxBytes: maxBytes, Duplicates: duplicates, Metadata: map[string]string{metadataKey: database},
		})
	}
	if errors.Is(err, nats.ErrNoResponders) || errors.Is(err, natsjs.ErrJetStreamNotEnabled) {
		return nil, errNoJetStream
	}
	if api, ok := errors.AsType[*natsjs.APIError](err); ok && api.ErrorCode == insufficientStorage {
		return nil, fmt.Errorf("stream %s reserves %d bytes, which the server has not: raise its "+
			"max_file_store: %w", name, maxBytes, err)
	}
	if err != nil {
		return nil, fmt.Errorf("stream %s: %w", name, err)
	}
	if err := belongs(stream, database); err != nil {
		return nil, fmt.Errorf("stream %s: %w", name, err)
	}
	if c := stream.CachedInfo().Config; c.Retention == natsjs.WorkQueuePolicy || c.Discard != natsjs.DiscardNew {
		return nil, fmt.Errorf("stream %s: its retention must be interest or limits and its discard policy new; change it, "+
			"or delete it and have workers make it again", name)
	}
	return stream, nil
}

// subject returns the subject of the events of a class and type in this generation.
func (r *Relay) subject(class, eventType string) string {
	return fmt.Sprintf("%s.g%d.%s.%s", r.config.Stream, r.config.Generation, class, eventType)
}

// durable returns the name of a handler's consumer in this generation. Names may not have dots, and those of handlers
// have exactly one.
func (r *Relay) durable(handler string) string {
	return fmt.Sprintf("g%d-%s", r.config.Generation, strings.ReplaceAll(handler, ".", "-"))
}

// class returns the class of a channel, outbox_gen_<N>_<class>.
func (r *Relay) class(channel string) string {
	prefix := events.ChannelName(r.config.Generation, "")
	return cmp.Or(strings.TrimPrefix(strings.TrimPrefix(channel, prefix), "_"), events.DefaultClass)
}

// consumer returns that of a handler, once the broker works.
func (r *Relay) consumer(ctx context.Context, handler string) (natsjs.Consumer, error) {
	r.mu.Lock()
	ready := r.ready
	r.mu.Unlock()
	select {
	case <-ready:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.consumers[handler], nil
}

// Oldest implements [dispatch.Relay].
func (r *Relay) Oldest(ctx context.Context, s events.Subscription) (id uuid.UUID, err error) {
	if !r.Ready() {
		return uuid.Nil, errors.New("the broker is not ready")
	}
	stream, err := r.js.Stream(ctx, r.config.Stream)
	if err != nil {
		return uuid.Nil, fmt.Errorf("stream %s: %w", r.config.Stream, err)
	}
	first := uint64(math.MaxUint64) // that some handler has not acked, of all types
	for _, h := range s.Handlers() {
		consumer, err := r.consumer(ctx, h.Name)
		if err != nil {
			return uuid.Nil, err
		}
		info, err := consumer.Info(ctx)
		if err != nil {
			return uuid.Nil, fmt.Errorf("consumer %s: %w", r.durable(h.Name), err)
		}
		if info.NumPending > 0 || info.NumAckPending > 0 {
			first = min(first, info.AckFloor.Stream+1)
		}
	}
	if first == math.MaxUint64 {
		return uuid.Nil, nil
	}
	m, err := stream.GetMsg(ctx, first, natsjs.WithGetMsgSubject(r.subject("*", s.EventType)))
	if errors.Is(err, natsjs.ErrMsgNotFound) {
		return uuid.Nil, nil // acked since
	}
	if err != nil {
		return uuid.Nil, fmt.Errorf("oldest message of %s: %w", s.EventType, err)
	}
	return uuid.Parse(m.Header.Get(headerID))
}
