package maintenance

import (
	"context"
	"sync"
)

// Service is a duty in the background. Start and Stop may be called in any order and more than once, from any
// goroutine: a second Start does nothing, nor does one after Stop.
type Service struct {
	run func(context.Context)

	mu      sync.Mutex
	cancel  context.CancelFunc // nil until Start
	stopped bool
	over    chan struct{} // closed when run has returned, or will not be called
}

// NewService returns a service that calls run once. Run must return soon after its context is done.
func NewService(run func(context.Context)) *Service {
	return &Service{run: run, over: make(chan struct{})}
}

// Start begins the duty and returns at once. The duty lasts until Stop, not until ctx is done.
func (s *Service) Start(ctx context.Context) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cancel != nil || s.stopped {
		return
	}
	ctx, s.cancel = context.WithCancel(context.WithoutCancel(ctx))
	go func() {
		defer close(s.over)
		s.run(ctx)
	}()
}

// Stop ends the duty, and returns when it has ended.
func (s *Service) Stop() {
	s.mu.Lock()
	switch {
	case s.cancel != nil:
		s.cancel()
	case !s.stopped:
		close(s.over)
	}
	s.stopped = true
	s.mu.Unlock()
	<-s.over
}
