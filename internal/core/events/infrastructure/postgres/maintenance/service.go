package maintenance

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"

	"spectral/internal/core/events/infrastructure/postgres/notify"
	"spectral/internal/core/events/infrastructure/postgres/pgtx"
)

// Service is a duty in the background. Start and Stop may be called in any order and more than once, from any
// goroutine: a second Start does nothing, nor does one after Stop.
type Service struct {
	run     func(context.Context)
	begin   sync.Once
	cancel  context.CancelFunc // set by Start
	running sync.WaitGroup
}

// NewService returns a service that calls run once. Run must return soon after its context is done.
func NewService(run func(context.Context)) *Service { return &Service{run: run, cancel: func() {}} }

// Start begins the duty and returns at once. The duty lasts until Stop, not until ctx is done.
func (s *Service) Start(ctx context.Context) {
	s.begin.Do(func() {
		running, cancel := context.WithCancel(context.WithoutCancel(ctx))
		s.cancel = cancel
		s.running.Go(func() { s.run(running) })
	})
}

// Stop ends the duty, and returns when it has ended.
func (s *Service) Stop() {
	s.begin.Do(func() {}) // if it has not begun, it will not
	s.cancel()
	s.running.Wait()
}

// answers reports whether the database answers, as far as is known.
func answers(health *notify.Health, interval time.Duration) bool {
	state, _ := health.Now()
	return state == notify.Listening || state == notify.Polling && time.Since(health.Answered()) < interval
}

// Every returns a service that calls duty, a step of loop, when the worker begins to listen or to poll, and then about
// every interval, so that not all workers do it at once. It calls nothing while the database does not answer.
func Every(interval time.Duration, loop string, health *notify.Health, duty func(context.Context)) *Service {
	return NewService(func(ctx context.Context) {
		for ctx.Err() == nil {
			changed := health.Changed()
			if answers(health, interval) {
				end := health.Step(loop)
				duty(ctx)
				end()
			}
			pgtx.Pause(ctx, time.Duration((0.9+0.2*rand.Float64())*float64(interval)), changed)
		}
	})
}
