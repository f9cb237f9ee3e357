package pgtx

import (
	"context"
	"math/rand/v2"
	"time"
)

// Pause waits for d, until ctx is done, or until stop is closed, whichever comes first. A nil stop is never closed.
func Pause(ctx context.Context, d time.Duration, stop <-chan struct{}) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	case <-stop:
	}
}

// Backoff is the delay between tries: FirstBackoff, doubling up to MaxBackoff, with jitter. The zero value is ready.
type Backoff struct{ delay time.Duration }

// Next returns the delay before the next try.
func (b *Backoff) Next() time.Duration {
	b.delay = min(max(2*b.delay, FirstBackoff), MaxBackoff)
	return Jittered(b.delay)
}

// Jittered returns a random delay between half of d and d, so that many workers do not try at once.
func Jittered(d time.Duration) time.Duration {
	return time.Duration(float64(d) * (0.5 + rand.Float64()/2))
}

// Seconds converts the seconds of an SQL function.
func Seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }

// WithAnswer bounds a statement by timeout. When ctx is done first, the server still has UnregisterTimeout to answer:
// the driver closes the connection of a statement that is given up.
func WithAnswer(ctx context.Context, timeout time.Duration) (context.Context, context.CancelFunc) {
	bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), timeout)
	stop := context.AfterFunc(ctx, func() { time.AfterFunc(UnregisterTimeout, cancel) })
	return bounded, func() { stop(); cancel() }
}

// Present returns t in UTC, and nil for the year 1, which stands for no time in queries.
func Present(t time.Time) *time.Time {
	if t.Year() <= 1 {
		return nil
	}
	t = t.UTC()
	return &t
}
