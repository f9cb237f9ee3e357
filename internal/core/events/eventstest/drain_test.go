package eventstest_test

import (
	"context"
	"errors"
	"testing"

	"spectral/internal/core/events/eventstest"
)

// service notes what is done to it.
type service struct {
	start error
	calls []string
}

func (s *service) Start(ctx context.Context) error {
	s.note(ctx, "start")
	return s.start
}

func (s *service) Stop(ctx context.Context) error {
	s.note(ctx, "stop")
	return nil
}

// note also that ctx is over, or never will be: a start or stop that hangs would hang the test.
func (s *service) note(ctx context.Context, call string) {
	if _, limited := ctx.Deadline(); ctx.Err() != nil || !limited {
		call += " with a context that is over or has no deadline"
	}
	s.calls = append(s.calls, call)
}

func TestStartStopsWithTheTest(t *testing.T) {
	t.Parallel()
	var s service
	t.Run("running", func(t *testing.T) {
		eventstest.Start(t, &s)
		if len(s.calls) != 1 {
			t.Errorf("calls are %q", s.calls)
		}
	})
	if len(s.calls) != 2 || s.calls[0] != "start" || s.calls[1] != "stop" {
		t.Errorf("calls are %q", s.calls)
	}
	broken := service{start: errors.New("broken")}
	if got := failureOf(t, func(t *failing) { eventstest.Start(t, &broken) }); got != "start: broken" ||
		len(broken.calls) != 1 {
		t.Errorf("failed with %q, calls are %q", got, broken.calls)
	}
}
