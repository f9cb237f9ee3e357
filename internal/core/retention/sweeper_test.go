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

	"github.com/google/uuid"

	"spectral/internal/core/retention"
)

// store answers a sweeper without a database, and remembers when it was asked for what.
type store struct {
	mu      sync.Mutex
	began   time.Time
	sweeps  []time.Duration // since began
	asked   []time.Duration
	batches []retention.Batch
	left    int // batches until nothing is left
	due     time.Duration
	down    error
	status  retention.Status
	stuck   bool // sweeps go on until their context ends
}

func (s *store) Sweep(ctx context.Context, b retention.Batch) ([]retention.Count, error) {
	s.mu.Lock()
	s.sweeps = append(s.sweeps, time.Since(s.began))
	s.batches = append(s.batches, b)
	s.mu.Unlock()
	if s.stuck {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.down != nil {
		return nil, s.down
	}
	s.left--
	return []retention.Count{
		{Subject: retention.OutboxRow, Step: retention.Deleted, Rows: 5},
		{Subject: retention.EventHandled, Step: retention.Tombstoned, Rows: 2, More: s.left > 0},
	}, nil
}

func (s *store) DueIn(context.Context, time.Duration) (time.Duration, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked = append(s.asked, time.Since(s.began))
	if s.down != nil && !errors.Is(s.down, retention.ErrNotLeading) {
		return 0, s.down
	}
	return s.due, nil
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

// look lets d pass, and waits until the sweeper waits for something. What then is read of s is as it left it.
func look(s *store, d time.Duration) {
	s.mu.Lock()   // what was read before is read before it goes on
	s.mu.Unlock() //nolint:staticcheck // see above
	time.Sleep(d) //nolint:forbidigo // the bubble's time: nothing is waited for
	synctest.Wait()
}

// sweeping starts a sweeper on s in a bubble of time, and stops it at the end.
func sweeping(t *testing.T, s *store, during func(sweeper *retention.Sweeper, log *logged)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		var log logged
		s.began = time.Now()
		sweeper, err := retention.NewSweeper(s, retention.Config{
			By: "me", Log: slog.New(slog.NewTextHandler(&log, nil)), NewID: uuid.NewV7, Now: time.Now, Random: func() float64 { return 0 },
		})
		if err != nil {
			t.Fatal(err)
		}
		if err := sweeper.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := sweeper.Start(t.Context()); err == nil {
			t.Error("it starts twice")
		}
		during(sweeper, &log)
		for range 2 {
			if err := sweeper.Stop(context.Background()); err != nil {
				t.Error(err)
			}
		}
	})
}

func TestASweeperSweepsWhatThereIsNowAndThen(t *testing.T) {
	t.Parallel()
	s := &store{left: 3, status: retention.Status{FailedExpiring: 4, FailedExpireFirst: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)}}
	sweeping(t, s, func(_ *retention.Sweeper, log *logged) {
		look(s, 4*time.Minute)
		if len(s.asked) > 0 {
			t.Errorf("it sweeps at once: asked after %v", s.asked)
		}
		look(s, 2*time.Minute)
		if len(s.sweeps) != 3 || s.sweeps[1]-s.sweeps[0] != retention.DefaultPause {
			t.Fatalf("batches after %v", s.sweeps)
		}
		if s.batches[0].Run != s.batches[2].Run || s.batches[0].By != "me" || s.batches[0].MaxRows != retention.DefaultBatchRows {
			t.Errorf("batches of one run are %+v", s.batches)
		}
		if text := log.String(); strings.Count(text, "msg=\"retention sweep\"") != 1 || !strings.Contains(text, "outbox_row_deleted=15") ||
			!strings.Contains(text, "event_handled_tombstoned=6") {
			t.Errorf("logged is\n%s", text)
		}
		if text := log.String(); strings.Count(text, "level=WARN") != 1 || !strings.Contains(text, "failed_events=4 first_expires_at=2026-01-02T03:04:05Z") {
			t.Errorf("of failed events logged is\n%s", text)
		}
		look(s, retention.DefaultInterval)
		if len(s.sweeps) != 4 || s.batches[3].Run == s.batches[0].Run {
			t.Errorf("after an hour, batches after %v", s.sweeps)
		}
	})
}

func TestASweeperLeavesWhatOthersDo(t *testing.T) {
	t.Parallel()
	s := &store{due: 40 * time.Minute}
	sweeping(t, s, func(*retention.Sweeper, *logged) {
		look(s, 2*time.Hour)
		if len(s.sweeps) > 0 || len(s.asked) != 3 {
			t.Errorf("not due, it sweeps after %v and asks after %v", s.sweeps, s.asked)
		}
	})
	s = &store{down: retention.ErrNotLeading}
	sweeping(t, s, func(_ *retention.Sweeper, log *logged) {
		look(s, 2*time.Hour)
		if len(s.sweeps) != 2 || log.String() != "" {
			t.Errorf("beside a leader, it tries after %v and says %s", s.sweeps, log.String())
		}
	})
}

func TestASweeperSaysOnceThatTheDatabaseIsDown(t *testing.T) {
	t.Parallel()
	s := &store{left: 1, down: errors.New("connection refused")}
	sweeping(t, s, func(_ *retention.Sweeper, log *logged) {
		look(s, 3*time.Hour)
		if len(s.asked) < 10 || len(s.asked) > 50 {
			t.Errorf("in three hours it asks %d times", len(s.asked))
		}
		if strings.Count(log.String(), "connection refused") != 1 {
			t.Errorf("logged is\n%s", log.String())
		}
		s.mu.Lock()
		s.down = nil
		s.mu.Unlock()
		look(s, 10*time.Minute)
		if len(s.sweeps) != 1 {
			t.Errorf("with the database back, it sweeps %d times", len(s.sweeps))
		}
	})
}

// Stopping ends a batch under way, and a stuck one does not hold up whoever stops it.
func TestAStoppedSweeper(t *testing.T) {
	t.Parallel()
	s := &store{left: 10, stuck: true}
	sweeping(t, s, func(sweeper *retention.Sweeper, log *logged) {
		look(s, 6*time.Minute)
		began := time.Now()
		if err := sweeper.Stop(context.Background()); err != nil || time.Since(began) > 0 {
			t.Errorf("it stops after %s: %v", time.Since(began), err)
		}
		if log.String() != "" {
			t.Errorf("a stop is logged as a fault: %s", log.String())
		}
	})
	unstarted, err := retention.NewSweeper(s, retention.Config{
		By: "me", Log: slog.New(slog.DiscardHandler), NewID: uuid.NewV7, Now: time.Now, Random: func() float64 { return 0 },
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := unstarted.Stop(t.Context()); err != nil {
		t.Errorf("one that has not started does not stop: %v", err)
	}
}

func TestSweeperConfig(t *testing.T) {
	t.Parallel()
	if _, err := retention.NewSweeper(&store{}, retention.Config{Interval: -1, BatchRows: 20_000}); err == nil ||
		!strings.Contains(err.Error(), "interval is -1ns") || !strings.Contains(err.Error(), "batch rows is 20000") || !strings.Contains(err.Error(), "Log is not set") {
		t.Errorf("a config full of faults: %v", err)
	}
}
