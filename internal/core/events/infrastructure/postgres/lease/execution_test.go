package lease

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"spectral/internal/core/events"
	"spectral/internal/core/events/infrastructure/postgres/dispatch"
)

// Leased work has no transaction that could wait for a lock.
func TestATimeoutOfLeasedWorkDoesNotMentionLocks(t *testing.T) {
	t.Parallel()
	e := &execution{consumer: &dispatch.Consumer{}, lease: &lease{}}
	r := events.Registration{Name: "platform.worker", Timeout: time.Millisecond, Executor: events.ExecutorFunc(
		func(ctx context.Context, _ events.Envelope) (events.Completion, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		})}
	_, err := e.execute(t.Context(), r)
	if !errors.Is(err, context.DeadlineExceeded) || strings.Contains(err.Error(), "lock") ||
		!strings.Contains(err.Error(), "not done within its timeout of 1ms") {
		t.Errorf("its failure is %v", err)
	}
}
