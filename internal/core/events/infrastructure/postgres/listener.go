package postgres

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"spectral/internal/core/events"
)

// DefaultPollInterval is the seed's polling cadence.
const DefaultPollInterval = 5 * time.Second

// Config of a Listener.
type Config struct {
	Generation events.Generation
	// Direct is the LISTEN connection's configuration: straight to Postgres, no transaction pooler.
	Direct *pgx.ConnConfig
	// Pool serves the dispatching transactions; see [PoolConfig].
	Pool      *pgxpool.Pool
	Contracts *events.Contracts
	Log       *slog.Logger
	// Worker identifies this process among the live ones; a new one for each start. Name says to
	// people which it is.
	Worker uuid.UUID
	Name   string
	// PollInterval between looks without any notification; zero means DefaultPollInterval.
	PollInterval time.Duration
	// OnSettled is called after each commit for every row that it settled or re-pended, from
	// several goroutines. Nil means nobody asks. It must not block.
	OnSettled func(Settlement)
}

// Listener runs the consumers of one process: one doorbell, and one consumer per subscription.
// Listen for each subscription, then Start; Stop once is enough, more do no harm.
type Listener struct {
	config  Config
	health  *Health
	bell    *doorbell
	journal *journal

	mu        sync.Mutex
	consumers map[string]*consumer // by event type; complete once started
	started   bool
	stopped   chan struct{} // closed when everything is over
	reaper    *reaper
	meter     *ackMeter
	err       error // why it ended by itself; set before stopped closes
	endBell   context.CancelFunc
	endWork   context.CancelFunc
}

var _ events.EventListener = (*Listener)(nil)

// NewListener returns a listener without subscriptions.
func NewListener(config Config) (*Listener, error) {
	config.PollInterval = cmp.Or(config.PollInterval, DefaultPollInterval)
	journal, err := newJournal(config)
	if err != nil {
		return nil, err
	}
	l := &Listener{
		config: config, health: newHealth(), journal: journal, consumers: make(map[string]*consumer),
		stopped: make(chan struct{}), reaper: newReaper(config.Pool, config.Log),
	}
	l.meter = &ackMeter{
		pool: config.Pool, log: config.Log, health: l.health, generation: config.Generation, listens: make(chan struct{}, 1),
	}
	l.bell = &doorbell{
		config: config, health: l.health, journal: journal, reaper: l.reaper, consumers: l.consumers, listens: l.meter.listens,
	}
	return l, nil
}

// Done is closed when the listener has ended, and Err then says why if nobody stopped it: beside a
// live worker with other handlers it refuses to work, with a [*HandlersDifferError].
func (l *Listener) Done() <-chan struct{} { return l.stopped }

// Err is nil until Done is closed, and after a Stop.
func (l *Listener) Err() error {
	select {
	case <-l.stopped:
		return l.err
	default:
		return nil
	}
}

// Health of the doorbell.
func (l *Listener) Health() *Health { return l.health }

// Listen implements [events.EventListener]. It also refuses an event type without contract, and
// a channel other than the contract's: the consumer would never be woken.
func (l *Listener) Listen(_ context.Context, s events.Subscription) error {
	s = s.WithDefaults()
	if err := s.Validate(); err != nil {
		return err
	}
	contracts := l.config.Contracts.OfType(s.EventType)
	if len(contracts) == 0 {
		return fmt.Errorf("subscription to %q: no contract of this event type is registered", s.EventType)
	}
	for _, c := range contracts {
		if c.Unconsumed {
			return fmt.Errorf("subscription to %q: the contract of version %d declares it unconsumed: its events settle as they are published", s.EventType, c.Version)
		}
	}
	if want := events.ChannelName(l.config.Generation, contracts[0].Class); s.Channel != want {
		return fmt.Errorf("subscription to %q: channel is %s, but its events are announced on %s", s.EventType, s.Channel, want)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.started {
		return fmt.Errorf("subscription to %q: the listener has started", s.EventType)
	}
	if _, taken := l.consumers[s.EventType]; taken {
		return fmt.Errorf("subscription to %q: there is one already; register a co-handler on it", s.EventType)
	}
	for _, r := range s.Handlers() {
		for _, other := range l.consumers {
			if slices.ContainsFunc(other.handlers, func(o events.Registration) bool { return o.Name == r.Name }) {
				return fmt.Errorf("subscription to %q: handler name %s is taken by the consumer of %s", s.EventType, r.Name, other.subscription.EventType)
			}
		}
	}
	l.consumers[s.EventType] = newConsumer(l.config, s, l.journal)
	return nil
}

// Start begins to listen and dispatch, and returns at once; Health tells how it goes. The
// goroutines live until Stop, not on ctx.
func (l *Listener) Start(ctx context.Context) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.started {
		return errors.New("listener: started twice")
	}
	l.started = true
	ctx = context.WithoutCancel(ctx)
	bell, endBell := context.WithCancel(ctx)
	work, endWork := context.WithCancelCause(ctx)
	l.endBell, l.endWork = endBell, func() { endWork(events.ErrStopping) }

	b := l.bell
	b.work = work
	l.journal.handlers = handlerNames(l.consumers)
	for eventType, c := range l.consumers {
		b.eventTypes = append(b.eventTypes, eventType)
		b.channels = append(b.channels, c.subscription.Channel)
	}
	slices.Sort(b.eventTypes)
	slices.Sort(b.channels)
	b.channels = slices.Compact(b.channels)

	var duties sync.WaitGroup
	duties.Go(func() { l.reaper.run(bell) })
	duties.Go(func() { l.meter.run(bell) })
	go func() {
		defer close(l.stopped)
		l.err = b.run(bell)
		endBell()
		duties.Wait()
		l.health.set(Stopping, "handlers are at work")
		for _, c := range l.consumers {
			c.mode.halt()
		}
		if l.err != nil {
			l.endWork() // it must not go on beside the other
		}
		var held sync.WaitGroup
		for _, c := range l.consumers {
			held.Go(c.mode.await)
		}
		held.Wait()
		l.endWork()
		l.journal.leave(ctx, b.held, b.channels)
		if l.err != nil {
			l.health.set(Refused, l.err.Error())
			return
		}
		l.health.set(Stopped, "")
	}()
	return nil
}

// Stop lets no further claim begin and waits for the handlers at work. When ctx is done first,
// their contexts are cancelled with [events.ErrStopping], what they did is rolled back and the rows are free
// again with no attempt counted; Stop then still waits for the handlers to return, or to be abandoned, but not
// for a database that no longer answers. It returns nil if there was nothing to cancel; what it leaves in flight it logs.
func (l *Listener) Stop(ctx context.Context) error {
	l.mu.Lock()
	if !l.started {
		l.mu.Unlock()
		ClosePool(l.journal.pool)
		return nil
	}
	l.mu.Unlock()
	for _, c := range l.consumers {
		c.mode.halt()
	}
	l.endBell()
	select {
	case <-l.stopped:
		return nil
	case <-ctx.Done():
	}
	l.endWork()
	giveUp := time.NewTimer(giveUpAfter)
	defer giveUp.Stop()
	select {
	case <-l.stopped:
		for _, c := range l.consumers {
			if c.cutOff.Load() {
				return fmt.Errorf("listener: the time to stop was over, and what was still at work was cut off; the log says what became of each event: %w", ctx.Err())
			}
		}
		return nil
	case <-giveUp.C:
	}
	return fmt.Errorf("listener: the time to stop was over, what was still at work was cut off, and what became of each event could not all "+
		"be written in time (the database does not answer, or somebody holds a lock): other workers will find out by themselves: %w", ctx.Err())
}

// giveUpAfter is how long Stop waits after it has cancelled the handlers.
const giveUpAfter = abandonAfter + 3*time.Second
