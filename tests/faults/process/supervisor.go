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
	earlier []*Process
	err     error
}

// Supervise runs a command until the test ends, and restarts it after a pause whenever it ends.
func Supervise(t testing.TB, c Command, pause time.Duration) *Supervisor {
	t.Helper()
	s := &Supervisor{command: c, pause: pause, stop: make(chan struct{}), done: make(chan struct{})}
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
		restart := time.NewTimer(s.pause)
		select {
		case <-restart.C:
		case <-s.stop:
			restart.Stop()
			return
		}
		next, err := launch(s.command)
		s.mu.Lock()
		if err != nil {
			s.err = err
			s.mu.Unlock()
			return
		}
		s.earlier, s.current = append(s.earlier, s.current), next
		s.mu.Unlock()
	}
}

// Current returns the process that runs now, or that ended last.
func (s *Supervisor) Current() *Process {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.current
}

// Processes returns all processes in order, the current one last.
func (s *Supervisor) Processes() []*Process {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append(append([]*Process(nil), s.earlier...), s.current)
}

func (s *Supervisor) end(t testing.TB) {
	t.Helper()
	close(s.stop)
	<-s.done
	s.Current().end(t)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err != nil {
		t.Errorf("restart %s: %v", s.command.Path, s.err)
	}
}
