package process

import (
	"sync"
	"testing"
	"time"
)

// Supervisor restarts a worker whenever it ends, as a service manager does.
type Supervisor struct {
	command Command
	pause   time.Duration
	stop    chan struct{}
	done    chan struct{}

	mu      sync.Mutex
	current *Process
	past    []*Process
	err     error
}

// Supervise runs a command, and runs it again after a pause whenever it ends, until the test does.
func Supervise(t testing.TB, c Command, pause time.Duration) *Supervisor {
	t.Helper()
	s := &Supervisor{
		command: c, pause: pause, stop: make(chan struct{}), done: make(chan struct{}),
	}
	if s.current, s.err = launch(c); s.err != nil {
		t.Fatalf("start %s: %v", c.Path, s.err)
	}
	go s.run()
	t.Cleanup(func() { s.end(t) })
	return s
}

func (s *Supervisor) run() {
	defer close(s.done)
	for {
		select {
		case <-s.Current().Exited():
		case <-s.stop:
			return
		}
		again := time.NewTimer(s.pause)
		select {
		case <-again.C:
		case <-s.stop:
			again.Stop()
			return
		}
		next, err := launch(s.command)
		s.mu.Lock()
		if err != nil {
			s.err = err
			s.mu.Unlock()
			return
		}
		s.past, s.current = append(s.past, s.current), next
		s.mu.Unlock()
	}
}

// Current is the process that runs now, or ended last.
func (s *Supervisor) Current() *Process {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.current
}

// Restarts is how often the worker was started again.
func (s *Supervisor) Restarts() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.past)
}

// Processes are all that ran, in order, the current one last.
func (s *Supervisor) Processes() []*Process {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append(append([]*Process(nil), s.past...), s.current)
}

// Retire lets no restart happen any more, and returns the last process as it is.
func (s *Supervisor) Retire() *Process {
	s.mu.Lock()
	select {
	case <-s.stop:
	default:
		close(s.stop)
	}
	s.mu.Unlock()
	<-s.done
	return s.Current()
}

func (s *Supervisor) end(t testing.TB) {
	t.Helper()
	s.Retire().end(t)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err != nil {
		t.Errorf("restart %s: %v", s.command.Path, s.err)
	}
}
