package pgtx

import (
	"context"
	"math/rand/v2"
	"time"
)

// Every time limit, delay and interval of the adapter. TestLimitsFitTogether checks how they relate. What a
// subscription sets (a handler's timeout, the length of a lease) is not here.
const (
	// Connections.

	ConnectTimeout     = 5 * time.Second        // for each host of a URL that does not set connect_timeout
	AllHostsTimeout    = 6 * time.Second        // for all of them, of which the last may be the live one
	CancelTimeout      = 5 * time.Second        // until a cancelled statement that does not answer loses its connection
	RollbackTimeout    = 5 * time.Second        // bounds rolling back, whose context may be over
	ClosePoolTimeout   = 500 * time.Millisecond // how long closing a pool waits for connections in use
	CloseListenTimeout = 2 * time.Second        // until a listen connection that does not close has its socket closed

	// Transactions.

	StatementTimeout = 10 * time.Second // bounds each of the adapter's own statements
	// IdleTimeout is how long a transaction may wait for its next statement before the server ends it, so that a frozen
	// process does not keep its locks and claims. It is longer where a handler may be silent for longer.
	IdleTimeout        = time.Minute
	BatchTime          = time.Second   // of a batch at most; it limits how far batches grow
	BatchCommitTimeout = 3 * BatchTime // bounds the COMMIT of a batch, where deferred constraints may wait for locks
	RollbackLogPause   = time.Minute   // between two warnings of a consumer that batches were rolled back

	// Retries while the database does not answer: doubling, with jitter.

	FirstBackoff = time.Second
	MaxBackoff   = 30 * time.Second
	// MaxOutagePause is between two claims of a consumer whose events all fail by the server's state. It is short, because
	// that may be the fault of one event.
	MaxOutagePause = 5 * time.Second
	RecheckPause   = 100 * time.Millisecond // between claims, while a lost connection's backend may still hold rows

	// Notifications.

	DefaultPollInterval = 5 * time.Second      // how often due events are looked for without a notification
	MinPollGap          = 2 * time.Millisecond // between two polls on the listen connection
	BarrierFirstPause   = 2 * time.Millisecond // for a producer that is committing silently, doubling
	BarrierMaxPause     = 50 * time.Millisecond
	RoundUp             = time.Millisecond // is added until something is due: a timer must not fire just before
	// PingInterval and AnswerTimeout together are how long it takes to notice that the server is silently gone.
	PingInterval     = 5 * time.Second
	AnswerTimeout    = 8 * time.Second
	PingSlack        = 500 * time.Millisecond // how shortly before another statement a ping is left out
	SelfTestInterval = 45 * time.Second       // how often the notifier tests that notifications arrive
	SelfTestRetry    = 10 * time.Second       // after a test that could not be made
	SelfTestSend     = 3 * time.Second        // bounds sending the test's notification
	SelfTestArrive   = 3 * time.Second        // bounds waiting for it
	// ListenIdleTimeout is when the server ends a listen connection that is silent: its process is frozen, and would hold
	// back the server's notification queue.
	ListenIdleTimeout = time.Minute

	// Stopping.

	AbandonAfter        = 5 * time.Second              // a handler's context is done, until its connection is closed
	FlushTimeout        = AbandonAfter + time.Second   // how long leased work is still settled after the grace period
	ForcedStop          = AbandonAfter + 3*time.Second // how long a stop lasts after it has cancelled the handlers
	StoppingPause       = 500 * time.Millisecond       // between two tries to record that the worker stops
	StoppingTimeout     = FlushTimeout                 // until they are given up, when no handler runs any more
	UnregisterTimeout   = 2 * time.Second              // bounds unregistering the worker
	ClearJournalTimeout = 2 * time.Second              // bounds clearing a journal entry

	// Leases.

	MinRenewal  = 100 * time.Millisecond // how long a renewal may take, however short the lease
	QuickSettle = 2 * time.Second        // bounds settling a batch, and the first try of a single result
	MaxSettle   = 30 * time.Second       // bounds further tries; both are at most a quarter of the lease

	// Maintenance.

	DeadGrace            = 2 * time.Second            // without its session, until a worker counts as dead
	OutageGrace          = MaxBackoff + 5*time.Second // the same, while others may be reconnecting after an outage
	ProbeInterval        = 5 * time.Second            // how often a worker looks for dead ones
	MinProbe             = 200 * time.Millisecond     // the same, where leases are very short
	ReapPause            = time.Second                // between two passes of the reaper
	ReapRest             = ProbeInterval              // after one that reaped nothing
	ObserveInterval      = 30 * time.Second           // how often metrics are read; statistics half as often
	PartitionInterval    = time.Hour                  // how often partitions that will be needed are made
	OperationsInterval   = 30 * time.Second           // how often operations are looked for that have to go on
	ProbeGrace           = time.Minute                // how long a probe may take besides the handler and its lease
	BreakersInterval     = 30 * time.Second           // how often open breakers are looked for
	OpenBreakersInterval = 5 * time.Second            // the same, while one is open
	MinProbePause        = 500 * time.Millisecond     // between two reads of an open breaker
	RelayedInterval      = 10 * time.Second           // how often events that a broker has lost are looked for
	RelayDownPasses      = 3                          // of the same, until a broker that does not work counts as down
	RelayedAfter         = RelayedInterval            // how long after they were sent
	LastStats            = time.Second                // bounds writing them at the end of a worker
	WatermarkInterval    = 50 * time.Millisecond      // how often a busy consumer raises its claim watermark
	WatermarkRest        = 5 * time.Second            // the same, if it has claimed few rows since

	// Draining.

	DrainPause = 250 * time.Millisecond // between two counts of what is left
	DrainCount = time.Minute            // bounds each
	DrainLog   = 30 * time.Second       // between two log entries
)

// Pause waits for d, until ctx is done, or until stop is closed, whichever comes first. A nil stop is never closed.
func Pause(ctx context.Context, d time.Duration, stop <-chan struct{}) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	case <-stop:
	}
}

// Backoff is the delay between tries: FirstBackoff, doubling up to MaxBackoff, with jitter. The zero value is ready.
type Backoff struct{ delay time.Duration }

// Next returns the delay before the next try.
func (b *Backoff) Next() time.Duration {
	b.delay = min(max(2*b.delay, FirstBackoff), MaxBackoff)
	return Jittered(b.delay)
}

// Jittered returns a random delay between half of d and d, so that many workers do not try at once.
func Jittered(d time.Duration) time.Duration {
	return time.Duration(float64(d) * (0.5 + rand.Float64()/2))
}

// Seconds converts the seconds of an SQL function.
func Seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }

// WithAnswer bounds a statement by timeout. When ctx is done first, the server still has UnregisterTimeout to answer:
// the driver closes the connection of a statement that is given up.
func WithAnswer(ctx context.Context, timeout time.Duration) (context.Context, context.CancelFunc) {
	bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), timeout)
	stop := context.AfterFunc(ctx, func() { time.AfterFunc(UnregisterTimeout, cancel) })
	return bounded, func() { stop(); cancel() }
}

// Present returns t in UTC, and nil for the year 1, which stands for no time in queries.
func Present(t time.Time) *time.Time {
	if t.Year() <= 1 {
		return nil
	}
	t = t.UTC()
	return &t
}
