package process

import (
	"context"
	"slices"
	"sync"
	"testing"
	"time"
)

// Supervisor restarts a worker whenever it ends, as a service manager does.
type Supervisor struct {
	mu        sync.Mutex
	processes []*Process
}

// Supervise runs a command until the test ends, and restarts it after a pause whenever it ends.
func Supervise(t testing.TB, c Command, pause time.Duration) *Supervisor {
	t.Helper()
	first, err := launch(c)
	if err != nil {
		t.Fatalf("start %s: %v", c.Path, err)
	}
	s := &Supervisor{processes: []*Process{first}}
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- s.run(ctx, c, pause) }()
	t.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			t.Errorf("restart %s: %v", c.Path, err)
		}
		s.Current().end(t)
	})
	return s
}

func (s *Supervisor) run(ctx context.Context, c Command, pause time.Duration) error {
	for {
		select {
		case <-s.Current().Exited():
		case <-ctx.Done():
			return nil
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return nil
		}
		next, err := launch(c)
		if err != nil {
			return err
		}
		s.mu.Lock()
		s.processes = append(s.processes, next)
		s.mu.Unlock()
	}
}

// Current returns the process that runs now, or that ended last.
func (s *Supervisor) Current() *Process {
	all := s.Processes()
	return all[len(all)-1]
}

// Processes returns all processes in order, the current one last.
func (s *Supervisor) Processes() []*Process {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.processes)
}
