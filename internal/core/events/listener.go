package events

import (
	"context"
	"time"
)

// EventListener dispatches the events of its deployment generation to the handlers of its
// subscriptions, at least once each, until it is stopped.
type EventListener interface {
	// Listen adds s. It refuses an invalid subscription, a second one of the same event type (a
	// claim is exclusive: another handler joins as a co-handler), and a handler name that is
	// taken. All subscriptions are made before the listener starts.
	Listen(ctx context.Context, s Subscription) error
}

// Subscription is one consumer: an event type and every handler that runs for it.
type Subscription struct {
	// Channel whose notifications wake the consumer; see [ChannelName].
	Channel   string
	EventType string
	Primary   Registration
	// CoHandlers run in the same claim, each with its own dedup row and retries.
	// They share the row's fate: while one keeps failing, the row is not delivered.
	CoHandlers []Registration
	// Mode defaults to RowLocked.
	Mode Mode
	// BatchSize is how many rows one claim takes at first; zero means [DefaultBatchSize]. It grows
	// under backlog, except for a size of one, which stays. A leased consumer takes as many as it can start at once, at
	// most BatchSize; zero means no further limit.
	BatchSize int
	// Concurrency is how many claims run side by side in one process, or how many leased events are
	// worked on; zero means [DefaultConcurrency].
	Concurrency int
	// Lease is how long a leased event stays with a worker that is not heard of; zero means [DefaultLease]. It is renewed
	// three times in its length, for as long as the work goes on. Unset in row-locked mode.
	Lease time.Duration
}

// The defaults and bounds of a subscription.
const (
	DefaultBatchSize     = 10
	MaxBatchSize         = 1000
	DefaultConcurrency   = 2
	MaxConcurrency       = 64
	MaxLeasedConcurrency = 1000            // more: work on a leased event needs no connection
	DefaultLease         = 5 * time.Minute // a worker reconnects in less, and an operator can wait for it
	MinLease             = 100 * time.Millisecond
	MaxLease             = 24 * time.Hour
)

// Handlers returns the primary handler, then the co-handlers in order.
func (s Subscription) Handlers() []Registration {
	return append([]Registration{s.Primary}, s.CoHandlers...)
}

// WithDefaults fills mode, batch size, concurrency and lease where they are zero.
func (s Subscription) WithDefaults() Subscription {
	if s.Mode == "" {
		s.Mode = RowLocked
	}
	if s.Concurrency == 0 {
		s.Concurrency = DefaultConcurrency
	}
	if s.Mode == Leased {
		if s.BatchSize == 0 {
			s.BatchSize = min(s.Concurrency, MaxBatchSize)
		}
		if s.Lease == 0 {
			s.Lease = DefaultLease
		}
	}
	if s.BatchSize == 0 {
		s.BatchSize = DefaultBatchSize
	}
	return s
}

// Validate reports what is wrong with a subscription whose defaults are filled.
func (s Subscription) Validate() error {
	var f faults
	f.require(eventTypeForm.MatchString(s.EventType), "event type must be lower-case words joined by dots")
	f.require(s.Mode == RowLocked || s.Mode == Leased, "mode is %q, must be %s or %s", s.Mode, RowLocked, Leased)
	f.require(s.BatchSize >= 1 && s.BatchSize <= MaxBatchSize, "batch size is %d, must be from 1 to %d", s.BatchSize,
		MaxBatchSize)
	most := MaxConcurrency
	if s.Mode == Leased {
		most = MaxLeasedConcurrency
		f.require(s.Lease >= MinLease && s.Lease <= MaxLease, "lease is %s, must be from %s to %s", s.Lease, MinLease,
			MaxLease)
	} else {
		f.require(s.Lease == 0, "lease is %s, but a %s consumer has none", s.Lease, s.Mode)
	}
	f.require(s.Concurrency >= 1 && s.Concurrency <= most, "concurrency is %d, must be from 1 to %d", s.Concurrency, most)
	names := make(map[string]bool)
	for _, r := range s.Handlers() {
		if err := r.Validate(s.Mode); err != nil {
			f = append(f, err)
		}
		f.require(!names[r.Name], "handler %q is registered twice", r.Name)
		names[r.Name] = true
	}
	return f.of("subscription to %q", s.EventType)
}
