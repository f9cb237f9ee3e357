package worker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"spectral/internal/core/events"
	"spectral/internal/core/events/infrastructure/postgres/coredb"
	"spectral/internal/core/events/infrastructure/postgres/dispatch"
	"spectral/internal/core/events/infrastructure/postgres/journal"
	"spectral/internal/core/events/infrastructure/postgres/lease"
	"spectral/internal/core/events/infrastructure/postgres/maintenance"
	"spectral/internal/core/events/infrastructure/postgres/notify"
	"spectral/internal/core/events/infrastructure/postgres/pgtx"
	"spectral/internal/core/telemetry"
)

// Config of a Worker.
type Config struct {
	Generation events.Generation
	// Direct is the configuration of the LISTEN connection: straight to Postgres, no transaction pooler.
	Direct *pgx.ConnConfig
	// Pool serves the dispatching transactions; see [Connections].
	Pool      *pgxpool.Pool
	Contracts *events.Contracts
	Log       *slog.Logger         // nil: nothing is logged
	Telemetry *telemetry.Telemetry // nil: nothing is recorded
	// Worker identifies this process among the live ones; a new one for each start. Name is for people.
	Worker uuid.UUID
	Name   string
	// PollInterval is how often due events are looked for without a notification; zero means pgtx.DefaultPollInterval.
	PollInterval time.Duration
	// OnSettled is called after each commit for every row that it settled or made pending again, from several goroutines.
	// It must not block. Nil: nothing is called.
	OnSettled func(dispatch.Settlement)
	// Relay carries events through a broker; nil: there is none. The worker runs it from Start to Stop.
	Relay dispatch.Relay
	// Maintenance are further duties, which start and stop with the worker's own.
	Maintenance []*maintenance.Service
}

// Connections returns how many connections of the pool a consumer needs at once, with or without a relay.
func Connections(s events.Subscription, relay bool) int {
	s = s.WithDefaults()
	switch {
	case s.Mode == events.Leased:
		return lease.Connections
	case relay && dispatch.Relays(s):
		return s.Concurrency * (1 + len(s.Handlers()))
	default:
		return s.Concurrency
	}
}

// Worker runs the consumers of one process. Call Listen for each subscription, then Start. Stop may be called before
// Start, and more than once.
type Worker struct {
	config      Config
	health      *notify.Health
	journal     *journal.Journal
	reaper      *maintenance.Reaper
	observer    *maintenance.Observer
	maintenance []*maintenance.Service
	woken       atomic.Bool   // a consumer was woken
	works       chan struct{} // closed when the worker may work: receivers begin
	begin       func()        // closes works
	stopped     chan struct{} // closed when everything has ended

	mu        sync.Mutex
	consumers map[string]*dispatch.Consumer // by event type; complete once started
	started   bool
	err       error              // why it ended by itself; set before stopped is closed
	endNotify context.CancelFunc // ends the notifier
	endWork   context.CancelFunc // cancels the handlers
}

var _ events.EventListener = (*Worker)(nil)

// New returns a worker without subscriptions.
func New(config Config) (*Worker, error) {
	config.PollInterval = cmp.Or(config.PollInterval, pgtx.DefaultPollInterval)
	config.Log = cmp.Or(config.Log, slog.New(slog.DiscardHandler))
	config.Telemetry = cmp.Or(config.Telemetry, telemetry.None)
	j, err := journal.Open(config.Pool, config.Worker, config.Generation, config.Name)
	if err != nil {
		return nil, err
	}
	health := notify.NewHealth()
	reaper := maintenance.NewReaper(config.Pool, config.Log, config.Telemetry, health)
	observer := &maintenance.Observer{
		Generation: config.Generation, Pool: config.Pool, Telemetry: config.Telemetry, Log: config.Log,
	}
	works := make(chan struct{})
	return &Worker{
		works: works, begin: sync.OnceFunc(func() { close(works) }),
		config: config, health: health, journal: j, reaper: reaper, observer: observer, stopped: make(chan struct{}),
		consumers: make(map[string]*dispatch.Consumer),
		maintenance: append([]*maintenance.Service{
			maintenance.NewService(reaper.Run), observer.Service(health),
			maintenance.Partitions(config.Pool, config.Log, health),
			maintenance.Operations(config.Pool, config.Log, health),
		}, config.Maintenance...),
	}, nil
}

// Done is closed when the worker has ended. Err then says why, unless it was stopped: beside a live worker with other
// handlers it refuses to work, with a [*journal.HandlersDifferError].
func (w *Worker) Done() <-chan struct{} { return w.stopped }

// Err is nil until Done is closed, and after a Stop.
func (w *Worker) Err() error {
	select {
	case <-w.stopped:
		return w.err
	default:
		return nil
	}
}

// Health returns the state of the worker.
func (w *Worker) Health() *notify.Health { return w.health }

// Listen implements [events.EventListener]. It also refuses an event type without contract, and a channel other than
// the contract's, on which no notification would come.
func (w *Worker) Listen(_ context.Context, s events.Subscription) error {
	s = s.WithDefaults()
	if err := s.Validate(); err != nil {
		return err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := w.check(s); err != nil {
		return fmt.Errorf("subscription to %q: %w", s.EventType, err)
	}
	c := dispatch.NewConsumer(s, w.config.Pool, w.journal, w.config.Log, w.config.Telemetry)
	c.OnSettled = w.config.OnSettled
	if s.Mode == events.Leased {
		lease.Attach(c)
	} else {
		dispatch.Attach(c)
	}
	if w.config.Relay != nil && dispatch.Relays(s) {
		c.Relay = w.config.Relay
	}
	w.consumers[s.EventType] = c
	return nil
}

// check refuses s where the worker cannot have it.
func (w *Worker) check(s events.Subscription) error {
	contracts := w.config.Contracts.OfType(s.EventType)
	if len(contracts) == 0 {
		return errors.New("no contract of this event type is registered")
	}
	for _, c := range contracts {
		if c.Unconsumed {
			return fmt.Errorf("the contract of version %d declares it unconsumed: its events settle as they are published",
				c.Version)
		}
	}
	if want := events.ChannelName(w.config.Generation, contracts[0].Class); s.Channel != want {
		return fmt.Errorf("channel is %s, but its events are announced on %s", s.Channel, want)
	}
	if w.started {
		return errors.New("the worker has started")
	}
	if _, taken := w.consumers[s.EventType]; taken {
		return errors.New("there is one already; register a co-handler on it")
	}
	for _, r := range s.Handlers() {
		for eventType, other := range w.consumers {
			isName := func(o events.Registration) bool { return o.Name == r.Name }
			if slices.ContainsFunc(other.Handlers, isName) {
				return fmt.Errorf("handler name %s is taken by the consumer of %s", r.Name, eventType)
			}
		}
	}
	return nil
}

// Start begins to listen and dispatch, and returns at once; Health tells how it goes. The worker lasts until Stop, not
// until ctx is done.
func (w *Worker) Start(ctx context.Context) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.started {
		return errors.New("worker: started twice")
	}
	w.started = true
	ctx = context.WithoutCancel(ctx)
	notifying, endNotify := context.WithCancel(ctx)
	work, endWork := context.WithCancelCause(ctx)
	w.endNotify, w.endWork = endNotify, func() { endWork(events.ErrStopping) }
	notifier := w.newNotifier()
	w.startRelay(work)
	w.startBreakers(work)
	for _, service := range w.maintenance {
		service.Start(ctx)
	}
	go func() {
		defer close(w.stopped)
		w.err = notifier.Run(notifying, work)
		w.end(ctx, notifier)
	}()
	return nil
}

// startRelay adds the duties of the relay, and has the consumers that use it receive once this worker may work.
func (w *Worker) startRelay(work context.Context) {
	relayed := make(map[string]*dispatch.Consumer)
	var subscriptions []events.Subscription
	for eventType, c := range w.consumers {
		if c.Relay == nil {
			continue
		}
		relayed[eventType] = c
		subscriptions = append(subscriptions, c.Subscription)
		c.Running.Go(func() {
			select {
			case <-w.works:
				c.Receive(work)
			case <-c.Stop:
			}
		})
	}
	if len(relayed) == 0 {
		return
	}
	go func() {
		if w.health.AwaitListening(w.stopped) {
			w.begin()
		}
	}()
	database := func(ctx context.Context) (id uuid.UUID, err error) {
		err = pgtx.InTx(ctx, w.config.Pool, pgtx.WorkerRole, func(ctx context.Context, tx *pgtx.Tx) error {
			state, err := coredb.New(tx).Relay(ctx)
			id = state.ID
			return err
		})
		return id, err
	}
	w.maintenance = append(w.maintenance,
		maintenance.NewService(func(ctx context.Context) {
			select { // the consumers that it makes are only for handlers that may work
			case <-w.works:
				w.config.Relay.Run(ctx, database, subscriptions)
			case <-ctx.Done():
			}
		}),
		maintenance.Relayed(w.config.Pool, w.config.Generation, relayed, w.config.Log, w.health))
}

// startBreakers adds the duty of breakers.
func (w *Worker) startBreakers(work context.Context) {
	tripped := make(chan struct{}, 1)
	for _, c := range w.consumers {
		c.Tripped = tripped
	}
	w.maintenance = append(w.maintenance, maintenance.Breakers(work, w.config.Pool, w.config.Generation, w.consumers,
		tripped, w.config.Log, w.health))
}

func (w *Worker) newNotifier() *notify.Notifier {
	handlers := make(map[string][]events.Registration)
	consumers := make(map[string]notify.Consumer)
	var channels []string
	for eventType, c := range w.consumers {
		wake := func(ctx context.Context, crashed bool) {
			w.woken.Store(true)
			w.begin()
			c.Wake(ctx, crashed)
		}
		consumers[eventType] = notify.Consumer{Wake: wake, Watermark: &c.Watermark, Held: c.Held, Progress: c.Progress}
		handlers[eventType] = c.Handlers
		channels = append(channels, c.Subscription.Channel)
	}
	slices.Sort(channels)
	w.journal.SetHandlers(handlers)
	return notify.New(notify.Config{
		Direct: w.config.Direct, Pool: w.config.Pool, PollInterval: w.config.PollInterval, Consumers: consumers,
		Channels: slices.Compact(channels), Journal: w.journal, Reap: w.reaper.Expect, Health: w.health, Log: w.config.Log,
		Telemetry: w.config.Telemetry,
	})
}

// end ends everything but the notifier, which has ended.
func (w *Worker) end(ctx context.Context, notifier *notify.Notifier) {
	w.endNotify()
	w.health.Set(notify.Stopping, "handlers are running")
	w.halt()
	recording, giveUp := context.WithCancel(ctx)
	var recorded sync.WaitGroup
	if w.woken.Load() { // otherwise it has held nothing, and need not wait for the database
		recorded.Go(func() { w.journal.Stopping(recording) })
	}
	each(w.maintenance, (*maintenance.Service).Stop)
	if w.err != nil {
		w.endWork() // beside the other worker, none of it may go on
	}
	each(slices.Collect(maps.Values(w.consumers)), func(c *dispatch.Consumer) { c.Await() })
	w.observer.Last(ctx)
	w.endWork()
	time.AfterFunc(pgtx.StoppingTimeout, giveUp)
	recorded.Wait()
	giveUp()
	notifier.Unregister(ctx)
	w.journal.Close()
	if w.err != nil {
		w.health.Set(notify.Refused, w.err.Error())
		return
	}
	w.health.Set(notify.Stopped, "")
}

// each calls f for all at once, and waits for it.
func each[T any](all []T, f func(T)) {
	var running sync.WaitGroup
	for _, one := range all {
		running.Go(func() { f(one) })
	}
	running.Wait()
}

func (w *Worker) halt() {
	for _, c := range w.consumers {
		c.Halt()
	}
}

// Stop lets no further claim begin and waits for the handlers that run. When ctx is done first, it cancels their
// contexts with [events.ErrStopping]: what they did is rolled back, and the rows are free again with no attempt
// counted. Stop then still waits for the handlers to return or to be abandoned, but not for a database that does not
// answer. It returns nil if there was nothing to cancel. The log names what is left in flight.
func (w *Worker) Stop(ctx context.Context) error {
	w.mu.Lock()
	started := w.started
	w.mu.Unlock()
	if !started {
		w.journal.Close()
		return nil
	}
	w.halt()
	w.endNotify()
	select {
	case <-w.stopped:
		return nil
	case <-ctx.Done():
	}
	w.endWork()
	pgtx.Pause(context.WithoutCancel(ctx), pgtx.ForcedStop, w.stopped)
	select {
	case <-w.stopped:
	default:
		return fmt.Errorf("worker: handlers were cancelled when the grace period was over, and what became of their events "+
			"could not all be written in time (the database does not answer, or another session holds a lock); other "+
			"workers will recover them: %w", ctx.Err())
	}
	for _, c := range w.consumers {
		if c.ForcedStop.Load() {
			return fmt.Errorf("worker: handlers were cancelled when the grace period was over; the log says what became of "+
				"each event: %w", ctx.Err())
		}
	}
	return nil
}
