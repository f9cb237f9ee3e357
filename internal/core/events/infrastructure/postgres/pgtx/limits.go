package pgtx

import "time"

// Every time limit, delay and interval of the adapter. TestLimitsFitTogether checks how they relate. What a
// subscription sets (a handler's timeout, the length of a lease) is not here.
const (
	// Connections.

	// ConnectTimeout is for each host of a URL that does not set connect_timeout.
	ConnectTimeout = 5 * time.Second
	// CancelTimeout is how long a cancelled statement may take to answer before its connection is closed.
	CancelTimeout = 5 * time.Second
	// RollbackTimeout bounds rolling back, whose context may be over.
	RollbackTimeout = 5 * time.Second
	// ClosePoolTimeout is how long closing a pool waits for connections in use.
	ClosePoolTimeout = 500 * time.Millisecond
	// CloseListenTimeout is how long the listen connection may take to close before its socket is closed.
	CloseListenTimeout = 2 * time.Second

	// Transactions.

	// StatementTimeout bounds each of the adapter's own statements.
	StatementTimeout = 10 * time.Second
	// IdleTimeout is how long a transaction may wait for its next statement before the server ends it, so that a frozen
	// process does not keep its locks and claims. It is longer where a handler may be silent for longer.
	IdleTimeout = time.Minute
	// BatchTime is how long a batch should last at most; it limits how far batches grow.
	BatchTime = time.Second
	// BatchCommitTimeout bounds the COMMIT of a batch, where deferred constraints may wait for locks.
	BatchCommitTimeout = 3 * BatchTime

	// Retries while the database does not answer: doubling, with jitter.

	FirstBackoff = time.Second
	MaxBackoff   = 30 * time.Second
	// RecheckPause lies between claims that are repeated because a lost connection's backend may still hold rows.
	RecheckPause = 100 * time.Millisecond

	// Notifications.

	// DefaultPollInterval is how often due events are looked for without a notification.
	DefaultPollInterval = 5 * time.Second
	// MinPollGap lies between two polls that notifications ask for.
	MinPollGap = 2 * time.Millisecond
	// BarrierFirstPause and BarrierMaxPause bound the wait, doubling, for a producer that is committing silently.
	BarrierFirstPause = 2 * time.Millisecond
	BarrierMaxPause   = 50 * time.Millisecond
	// RoundUp is added to the time until something is due, so that a timer does not fire just before.
	RoundUp = time.Millisecond
	// PingInterval and AnswerTimeout together are how long it takes to notice that the server is silently gone.
	PingInterval  = 5 * time.Second
	AnswerTimeout = 8 * time.Second
	// PingSlack is how shortly before another statement a ping is left out.
	PingSlack = 500 * time.Millisecond
	// SelfTestInterval is how often the notifier tests that notifications arrive; after a test that could not be made it
	// waits for SelfTestRetry.
	SelfTestInterval = 45 * time.Second
	SelfTestRetry    = 10 * time.Second
	// SelfTestSend and SelfTestArrive bound sending the test's notification and waiting for it.
	SelfTestSend   = 3 * time.Second
	SelfTestArrive = 3 * time.Second
	// ListenIdleTimeout is when the server ends a listen connection that is silent: its process is frozen, and would hold
	// back everybody's notification queue.
	ListenIdleTimeout = time.Minute

	// Stopping.

	// AbandonAfter is how long a handler may run on after its context is done, before its connection is closed.
	AbandonAfter = 5 * time.Second
	// FlushTimeout is how long results of leased work are still settled after the grace period.
	FlushTimeout = AbandonAfter + time.Second
	// ForcedStop is how long a stop lasts after it has cancelled the handlers.
	ForcedStop = AbandonAfter + 3*time.Second
	// UnregisterTimeout bounds unregistering the worker.
	UnregisterTimeout = 2 * time.Second
	// ClearJournalTimeout bounds clearing a journal entry.
	ClearJournalTimeout = 2 * time.Second

	// Leases.

	// MinRenewal is how long a renewal may take, however short the lease.
	MinRenewal = 100 * time.Millisecond
	// QuickSettle bounds settling a batch, and the first try of a single result; MaxSettle bounds further tries. Both are
	// at most a quarter of the lease.
	QuickSettle = 2 * time.Second
	MaxSettle   = 30 * time.Second

	// Maintenance.

	// DeadGrace is how long a worker must be without its session before it counts as dead. OutageGrace is used instead
	// while other workers may still be reconnecting after an outage.
	DeadGrace   = 2 * time.Second
	OutageGrace = MaxBackoff + 5*time.Second
	// ProbeInterval is how often a worker looks for dead ones; MinProbe bounds it where leases are very short.
	ProbeInterval = 5 * time.Second
	MinProbe      = 200 * time.Millisecond
	// ReapPause lies between two passes of the reaper, ReapRest after one that reaped nothing.
	ReapPause = time.Second
	ReapRest  = ProbeInterval
	// LatencyInterval is how often delivery latency is sampled.
	LatencyInterval = time.Minute
	// WatermarkInterval is how often a busy consumer raises its claim watermark.
	WatermarkInterval = 50 * time.Millisecond

	// Draining.

	// DrainPause lies between two counts of what is left, each bounded by DrainCount; DrainLog between two log entries.
	DrainPause = 250 * time.Millisecond
	DrainCount = time.Minute
	DrainLog   = 30 * time.Second
)
