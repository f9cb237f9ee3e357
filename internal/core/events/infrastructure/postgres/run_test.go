package postgres

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"spectral/internal/core/events"
)

// That a call was late is said where that explains its error: not where somebody else has cut it off, and not in front of its own
// verdict.
func TestWhoOverran(t *testing.T) {
	t.Parallel()
	late, cancel := context.WithDeadline(t.Context(), time.Now().Add(-time.Second))
	defer cancel()
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	cut := errors.New("statement cancelled")
	for _, c := range []struct {
		name string
		ctx  context.Context
		err  error
		want bool
	}{
		{"late", late, cut, true},
		{"done though late", late, nil, false},
		{"in time", t.Context(), cut, false},
		{"cut off by somebody else", cancelled, cut, false},
		{"a verdict of its own", late, events.Terminal(cut), false},
		{"on the payload", late, &events.PayloadError{Err: cut}, false},
	} {
		if got := overran(c.ctx, c.err); got != c.want {
			t.Errorf("%s: %t", c.name, got)
		}
	}
}

// Leased work has no transaction that could wait for a lock.
func TestLateLeasedWorkIsNotAskedAboutLocks(t *testing.T) {
	t.Parallel()
	l := newLeased(&consumer{})
	r := events.Registration{Name: "platform.worker", Timeout: time.Millisecond, Executor: events.ExecutorFunc(
		func(ctx context.Context, _ events.Envelope) (events.Completion, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		})}
	_, err := l.execute(t.Context(), r, &lease{})
	if err == nil || !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "not done within its timeout of 1ms") || strings.Contains(err.Error(), "lock") {
		t.Errorf("its failure is %v", err)
	}
}
