package retention

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/google/uuid"
)

const (
	// Interval is the time between the starts of two sweeps, of all workers together.
	Interval = 6 * time.Hour
	// Pause is the pause after a transaction that wrote rows.
	Pause = 250 * time.Millisecond
	// PageRows is how many rows a transaction reads, at most.
	PageRows = 1000

	// maxRefused is how often a page is tried while another transaction is sweeping.
	maxRefused = 20
	// firstRun is the time between a worker's start and its first sweep. It has events to handle first.
	firstRun = 5 * time.Minute
	// firstRetry and maxRetry bound the delay between attempts while the database does not answer.
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

// Sweeper runs sweeps in a worker.
type Sweeper struct {
	Store  Store
	Steps  []Step
	Log    *slog.Logger
	Random func() float64 // uniform in [0,1)
	// Swept is called with the rows of each step of a sweep. Nil: nothing is called.
	Swept func(context.Context, Count)
}

// Run runs a sweep whenever one is due, until ctx ends. While the database does not answer, it asks with growing delays
// and logs that once. A stop ends a sweep between two statements and keeps what was swept.
func (s *Sweeper) Run(ctx context.Context) {
	delay := s.jittered(firstRun)
	failures := 0
	for {
		if !sleep(ctx, delay) {
			return
		}
		due, err := s.Store.Begin(ctx, Interval)
		if err == nil && due <= 0 {
			err = s.runOnce(ctx)
			due = Interval
		}
		switch {
		case ctx.Err() != nil:
			return
		case err == nil || errors.Is(err, ErrNotLeading):
			failures = 0
			// random, so that not all workers ask at once
			delay = s.jittered(max(due, time.Second))
		default:
			if failures == 0 {
				s.Log.WarnContext(ctx, "retention sweep failed: the next one begins when it is due",
					logReason, err.Error())
			}
			delay = s.jittered(min(firstRetry<<min(failures, 10), maxRetry))
			failures++
		}
	}
}

// runOnce runs one sweep and logs the number of rows. It warns of failed events that will expire soon.
func (s *Sweeper) runOnce(ctx context.Context) error {
	run, err := uuid.NewV7()
	if err != nil {
		return err
	}
	started := time.Now()
	counts, err := Sweep(ctx, s.Store, Options{
		Steps: s.Steps, Run: run, PageRows: PageRows,
		Pause: func() time.Duration { return s.jittered(Pause) },
	})
	attributes := []any{logRun, run, logTook, time.Since(started).Milliseconds()}
	for _, c := range counts {
		if c.Rows > 0 {
			attributes = append(attributes, fmt.Sprintf("%s_%s", c.Subject, c.Action), c.Rows)
			if s.Swept != nil {
				s.Swept(ctx, c)
			}
		}
	}
	if len(attributes) > 4 {
		s.Log.InfoContext(ctx, "retention sweep", attributes...)
	}
	if err != nil {
		return err
	}
	status, err := s.Store.Status(ctx)
	if err == nil && status.FailedExpiring > 0 {
		s.Log.WarnContext(ctx,
			"failed events will expire soon: replay or discard them (`workers retention status`)",
			logFailed, status.FailedExpiring, logFirstAt, status.FailedExpireFirst.UTC().Format(time.RFC3339))
	}
	return err
}

// Options are the options of one sweep.
type Options struct {
	Steps    []Step
	Run      uuid.UUID
	By       string // the person who sweeps; empty: the login
	PageRows int
	// Pause returns how long to wait after a page that wrote rows. After other pages it is a tenth of that.
	Pause func() time.Duration
	// Progress is called after each page with the rows of all steps so far. It may be nil.
	Progress func(rows int64)
}

// Sweep runs the steps one after another, page by page, until the end of each table or of ctx. It returns a count for
// each step, also with an error.
func Sweep(ctx context.Context, store Store, o Options) ([]Count, error) {
	counts := make([]Count, len(o.Steps))
	for i, step := range o.Steps {
		counts[i] = Count{Subject: step.Subject, Action: step.Action, More: true}
	}
	total := int64(0)
	for i, step := range o.Steps {
		refused := 0
		for after := []string(nil); counts[i].More; {
			page := Page{Step: step, After: after, Rows: o.PageRows, Run: o.Run, By: o.By}
			rows, next, err := store.Sweep(ctx, page)
			pause := o.Pause()
			switch {
			case errors.Is(err, ErrNotLeading) && refused < maxRefused:
				refused++
			case err != nil:
				return counts, err
			default:
				refused, after = 0, next
				total += rows
				counts[i].Rows += rows
				counts[i].More = next != nil
				if o.Progress != nil {
					o.Progress(total)
				}
				if rows == 0 {
					pause /= 10
				}
			}
			if !sleep(ctx, pause) {
				return counts, ctx.Err()
			}
		}
	}
	return counts, nil
}

// jittered returns a random duration from d to 1.5 d.
func (s *Sweeper) jittered(d time.Duration) time.Duration {
	return d + time.Duration(s.Random()*float64(d)/2)
}

// sleep waits for d, and returns false if ctx ended first.
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
