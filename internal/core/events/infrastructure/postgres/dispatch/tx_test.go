package dispatch

import (
	"context"
	"errors"
	"testing"
	"time"

	"spectral/internal/core/events"
)

// A timeout is named where it explains the error: not after a stop, and not before what the handler itself says of the
// event.
func TestWhichErrorsATimeoutExplains(t *testing.T) {
	t.Parallel()
	late, cancel := context.WithDeadline(t.Context(), time.Now().Add(-time.Second))
	defer cancel()
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	cancelledStatement := errors.New("statement cancelled")
	for _, c := range []struct {
		name string
		ctx  context.Context
		err  error
		want bool
	}{
		{"late", late, cancelledStatement, true},
		{"done though late", late, nil, false},
		{"in time", t.Context(), cancelledStatement, false},
		{"cancelled by a stop", cancelled, cancelledStatement, false},
		{"terminal", late, events.Terminal(cancelledStatement), false},
		{"on the payload", late, &events.PayloadError{Err: cancelledStatement}, false},
	} {
		if got := TimedOut(c.ctx, c.err); got != c.want {
			t.Errorf("%s: %t", c.name, got)
		}
	}
}
