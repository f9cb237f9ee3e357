package retention

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"
)

// What a Config leaves out.
const (
	DefaultInterval  = time.Hour
	DefaultPause     = 250 * time.Millisecond
	DefaultBatchRows = 1000
	DefaultWalkEvery = 6 * time.Hour

	maxBatchRows = 10_000
	// batchSeconds is about how long one batch may take.
	batchSeconds = 1
	// firstRun is how long after its start a worker sweeps at the earliest: it has events to handle first.
	firstRun = 5 * time.Minute
	// Between attempts while the database does not answer.
	firstRetry, maxRetry = 5 * time.Second, 5 * time.Minute
)

// Keys of log entries.
const (
	logRun     = "run_id"
	logReason  = "reason"
	logFailed  = "failed_events"
	logFirstAt = "first_expires_at"
	logTook    = "duration_ms"
)

// Config of a Sweeper. What is zero has a default, but for what Validate asks for.
type Config struct {
	// Interval between the beginnings of runs, whichever worker makes them.
	Interval time.Duration
	// Pause between the transactions of a run.
	Pause time.Duration
	// BatchRows is how many rows a transaction writes at most, up to 10,000.
	BatchRows int
	// WalkEvery is how often rows to tombstone are looked for, which reads a table from end to end.
	WalkEvery time.Duration
	// FirstRun is how long after its start a worker sweeps at the earliest.
	FirstRun time.Duration
	// By says to people which worker swept.
	By     string
	Log    *slog.Logger
	NewID  func() (uuid.UUID, error)
	Now    func() time.Time
	Random func() float64 // uniform in [0,1)
}

// WithDefaults fills what is zero and has a default.
func (c Config) WithDefaults() Config {
	if c.Interval == 0 {
		c.Interval = DefaultInterval
	}
	if c.Pause == 0 {
		c.Pause = DefaultPause
	}
	if c.BatchRows == 0 {
		c.BatchRows = DefaultBatchRows
	}
	if c.WalkEvery == 0 {
		c.WalkEvery = DefaultWalkEvery
	}
	if c.FirstRun == 0 {
		c.FirstRun = firstRun
	}
	return c
}

// Validate reports what is missing or out of range.
func (c Config) Validate() error {
	var faults []error
	for name, d := range map[string]time.Duration{"interval": c.Interval, "pause": c.Pause, "walk every": c.WalkEvery, "first run": c.FirstRun} {
		if d <= 0 || d > 24*time.Hour {
			faults = append(faults, fmt.Errorf("%s is %s, must be above 0 and at most 24h", name, d))
		}
	}
	if c.BatchRows < 1 || c.BatchRows > maxBatchRows {
		faults = append(faults, fmt.Errorf("batch rows is %d, must be from 1 to %d", c.BatchRows, maxBatchRows))
	}
	for name, missing := range map[string]bool{
		"By": c.By == "", "Log": c.Log == nil, "NewID": c.NewID == nil, "Now": c.Now == nil, "Random": c.Random == nil,
	} {
		if missing {
			faults = append(faults, fmt.Errorf("%s is not set", name))
		}
	}
	if len(faults) == 0 {
		return nil
	}
	slices.SortFunc(faults, func(a, b error) int { return strings.Compare(a.Error(), b.Error()) })
	return fmt.Errorf("retention sweeper: %w", errors.Join(faults...))
}

// Sweeper is a worker's duty to sweep, now and then. Start once; Stop once is enough, more do no harm.
type Sweeper struct {
	config Config
	store  Store

	mu      sync.Mutex
	cancel  context.CancelFunc
	stopped chan struct{}
}

// NewSweeper checks config and fills its defaults.
func NewSweeper(store Store, config Config) (*Sweeper, error) {
	config = config.WithDefaults()
	if err := config.Validate(); err != nil {
		return nil, err
	}
	return &Sweeper{config: config, store: store, stopped: make(chan struct{})}, nil
}

// Start begins to sweep after a while, and returns at once. The goroutine lives until Stop, not on ctx.
func (s *Sweeper) Start(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cancel != nil {
		return errors.New("retention sweeper: started twice")
	}
	ctx, s.cancel = context.WithCancel(context.WithoutCancel(ctx))
	go func() {
		defer close(s.stopped)
		s.run(ctx)
	}()
	return nil
}

// Stop ends a run between two statements, and waits for that until ctx is done. What the run has done stays done, and the
// next one goes on.
func (s *Sweeper) Stop(ctx context.Context) error {
	s.mu.Lock()
	cancel := s.cancel
	s.mu.Unlock()
	if cancel == nil {
		return nil
	}
	cancel()
	select {
	case <-s.stopped:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("retention sweeper: %w", ctx.Err())
	}
}

// run sweeps whenever a run is due. While the database does not answer it asks ever less often, and says so once.
func (s *Sweeper) run(ctx context.Context) {
	delay := s.jittered(s.config.FirstRun)
	failures := 0
	for {
		if !sleep(ctx, delay) {
			return
		}
		due, err := s.store.DueIn(ctx, s.config.Interval)
		if err == nil && due <= 0 {
			err = s.runOnce(ctx)
			due = s.config.Interval
		}
		switch {
		case ctx.Err() != nil:
			return
		case err == nil || errors.Is(err, ErrNotLeading):
			failures = 0
			// spread, so that of many workers one comes first
			delay = s.jittered(max(due, time.Second))
		default:
			if failures == 0 {
				s.config.Log.WarnContext(ctx, "retention sweep interrupted: it is tried again", logReason, err.Error())
			}
			delay = s.jittered(min(firstRetry<<min(failures, 10), maxRetry))
			failures++
		}
	}
}

// runOnce sweeps until nothing is left, and reports what came of it.
func (s *Sweeper) runOnce(ctx context.Context) error {
	run, err := s.config.NewID()
	if err != nil {
		return err
	}
	started := s.config.Now()
	total := make(map[string]int64)
	defer func() {
		attributes := []any{logRun, run, logTook, s.config.Now().Sub(started).Milliseconds()}
		swept := false
		for _, key := range slices.Sorted(maps.Keys(total)) {
			attributes = append(attributes, strings.ReplaceAll(key, ".", "_"), total[key])
			swept = swept || total[key] > 0
		}
		if swept {
			s.config.Log.InfoContext(ctx, "retention sweep", attributes...)
		}
	}()
	for {
		counts, err := s.store.Sweep(ctx, Batch{
			Run: run, By: s.config.By, MaxRows: s.config.BatchRows, MaxSeconds: batchSeconds, WalkEvery: s.config.WalkEvery,
		})
		if err != nil {
			return err
		}
		more := false
		for _, c := range counts {
			total[string(c.Subject)+"."+string(c.Step)] += c.Rows
			more = more || c.More
		}
		if !more {
			break
		}
		if !sleep(ctx, s.jittered(s.config.Pause)) {
			return ctx.Err()
		}
	}
	status, err := s.store.Status(ctx)
	if err != nil {
		return err
	}
	if status.FailedExpiring > 0 {
		s.config.Log.WarnContext(ctx, "failed events are about to expire: replay or discard them, see `workers retention status`",
			logFailed, status.FailedExpiring, logFirstAt, status.FailedExpireFirst.UTC().Format(time.RFC3339))
	}
	return nil
}

// jittered is from d to half as much again.
func (s *Sweeper) jittered(d time.Duration) time.Duration {
	return d + time.Duration(s.config.Random()*float64(d)/2)
}

// sleep reports whether d passed before ctx was done.
func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
