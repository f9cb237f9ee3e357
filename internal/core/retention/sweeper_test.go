package retention_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"spectral/internal/core/retention"
)

var steps = []retention.Step{
	{"outbox_row", retention.Deleted, "a"}, {"event_handled", retention.Tombstoned, "b"},
}

// store is a Store without a database. It records the calls and their times.
type store struct {
	mu     sync.Mutex
	began  time.Time
	sweeps []time.Duration // since began
	asked  []time.Duration
	pages  []retention.Page
	left   int // pages of each step before the last
	busy   int // pages that are refused
	due    time.Duration
	down   error
	status retention.Status
	stuck  bool // pages last until their context ends
}

func (s *store) Sweep(ctx context.Context, p retention.Page) (int64, []string, error) {
	if s.stuck {
		<-ctx.Done()
		return 0, nil, ctx.Err()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.busy--; s.busy >= 0 {
		return 0, nil, retention.ErrNotLeading
	}
	s.sweeps, s.pages = append(s.sweeps, time.Since(s.began)), append(s.pages, p)
	if len(p.After) < s.left {
		return 5, append(p.After, "x"), nil
	}
	return 2, nil, nil
}

func (s *store) Begin(context.Context, time.Duration) (time.Duration, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked = append(s.asked, time.Since(s.began))
	return s.due, s.down
}

func (s *store) Status(context.Context) (retention.Status, error) { return s.status, nil }

// logged is a log that can be read while it is written.
type logged struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *logged) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *logged) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// advance lets d pass in the bubble, and waits until the sweeper waits.
func advance(s *store, d time.Duration) {
	s.mu.Lock()   // the test's earlier reads of s happen before the sweeper's writes
	s.mu.Unlock() //nolint:staticcheck // see above
	time.Sleep(d) //nolint:forbidigo // the bubble's time, which passes at once
	synctest.Wait()
}

// sweeping runs a sweeper on s in a bubble, and stops it at the end.
func sweeping(t *testing.T, s *store, during func(stop func(), log *logged)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		var log logged
		s.began = time.Now()
		sweeper := retention.Sweeper{
			Store: s, Steps: steps, Log: slog.New(slog.NewTextHandler(&log, nil)), Random: func() float64 { return 0 },
		}
		ctx, cancel := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() { sweeper.Run(ctx) })
		stop := func() {
			cancel()
			running.Wait()
		}
		during(stop, &log)
		stop()
	})
}

func TestSweeperRunsEachStepAndWarnsOfFailedEvents(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	s := &store{left: 2, busy: 3, status: retention.Status{FailedExpiring: 4, FailedExpireFirst: &at}}
	sweeping(t, s, func(_ func(), log *logged) {
		advance(s, 4*time.Minute)
		if len(s.asked) > 0 {
			t.Errorf("it asks too early: after %v", s.asked)
		}
		advance(s, 2*time.Minute)
		if len(s.sweeps) != 6 || s.sweeps[1]-s.sweeps[0] != retention.Pause {
			t.Fatalf("pages after %v", s.sweeps)
		}
		p := s.pages[5]
		if p.Run != s.pages[0].Run || p.Step != steps[1] || len(p.After) != 2 || p.Rows != retention.PageRows {
			t.Errorf("pages of one sweep are %+v", s.pages)
		}
		for _, want := range []string{"msg=\"retention sweep\"", "outbox_row_deleted=12",
			"event_handled_tombstoned=12", "level=WARN", "failed_events=4 first_expires_at=2026-01-02T03:04:05Z"} {
			if strings.Count(log.String(), want) != 1 {
				t.Errorf("want %s once, logged:\n%s", want, log.String())
			}
		}
		advance(s, retention.Interval)
		if len(s.sweeps) != 12 || s.pages[6].Run == s.pages[0].Run {
			t.Errorf("after the interval, pages after %v", s.sweeps)
		}
	})
}

func TestSweeperWaitsForOtherSweeps(t *testing.T) {
	t.Parallel()
	s := &store{due: 40 * time.Minute}
	sweeping(t, s, func(func(), *logged) {
		advance(s, 2*time.Hour)
		if len(s.sweeps) > 0 || len(s.asked) != 3 {
			t.Errorf("not due, it sweeps after %v and asks after %v", s.sweeps, s.asked)
		}
	})
	s = &store{busy: 1000}
	sweeping(t, s, func(_ func(), log *logged) {
		advance(s, 2*time.Hour)
		if len(s.sweeps) != 0 || len(s.asked) != 1 || log.String() != "" {
			t.Errorf("beside another sweep, it sweeps after %v, asks after %v and logs %s", s.sweeps, s.asked, log.String())
		}
	})
}

func TestSweepStopsWithItsContext(t *testing.T) {
	t.Parallel()
	s := &store{left: 5}
	ctx, cancel := context.WithCancel(t.Context())
	counts, err := retention.Sweep(ctx, s, retention.Options{Steps: steps, PageRows: 7,
		Pause: func() time.Duration { return time.Hour }, Progress: func(rows int64) {
			if rows >= 5 {
				cancel()
			}
		}})
	if !errors.Is(err, context.Canceled) || counts[0].Rows != 5 || !counts[0].More || !counts[1].More {
		t.Errorf("%+v, %v, pages %+v", counts, err, s.pages)
	}
}

func TestSweeperLogsOnceThatTheDatabaseIsDown(t *testing.T) {
	t.Parallel()
	s := &store{left: 1, down: errors.New("connection refused")}
	sweeping(t, s, func(_ func(), log *logged) {
		advance(s, 3*time.Hour)
		if len(s.asked) < 10 || len(s.asked) > 50 {
			t.Errorf("in three hours it asks %d times", len(s.asked))
		}
		if strings.Count(log.String(), "connection refused") != 1 {
			t.Errorf("logged is\n%s", log.String())
		}
		s.mu.Lock()
		s.down = nil
		s.mu.Unlock()
		advance(s, 10*time.Minute)
		if len(s.sweeps) != 4 {
			t.Errorf("with the database back, it sweeps %d times", len(s.sweeps))
		}
	})
}

// TestStopEndsASweep stops a sweep whose statement hangs.
func TestStopEndsASweep(t *testing.T) {
	t.Parallel()
	s := &store{left: 10, stuck: true}
	sweeping(t, s, func(stop func(), log *logged) {
		advance(s, 6*time.Minute)
		stop()
		if log.String() != "" {
			t.Errorf("a stop is logged as a fault: %s", log.String())
		}
	})
}
