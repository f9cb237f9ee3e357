package operator

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"golang.org/x/time/rate"
)

// A batch has at least one event, and at most as many as the rate allows in a second.
func TestBatchesFitTheRate(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		pace      Pace
		batch     int
		perSecond rate.Limit
	}{
		{Pace{}, DefaultBatch, DefaultRate}, {Pace{Batch: MaxBatch, Rate: -1}, MaxBatch, rate.Inf},
		{Pace{Batch: MaxBatch, Rate: 1e9}, MaxBatch, 1e9}, {Pace{Rate: 1}, 1, 1}, {Pace{Rate: 0.1}, 1, 0.1},
		{Pace{Batch: 7, Rate: 50.5}, 7, 50.5}, {Pace{Batch: 200, Rate: 50.5}, 50, 50.5},
	} {
		if batch, perSecond := c.pace.limits(); batch != c.batch || perSecond != c.perSecond {
			t.Errorf("%+v: %d at %g a second, want %d at %g", c.pace, batch, perSecond, c.batch, c.perSecond)
		}
	}
}

// A batch that has begun is finished when the command is to stop, but does not wait for the server any more.
func TestABatchWaitsForTheServerUntilTheCommandStops(t *testing.T) {
	t.Parallel()
	away := &pgconn.PgError{Code: "57P03"}
	for _, c := range []struct {
		answers []error // of the calls
		stop    int     // the call in which the command is stopped
		calls   int
		waits   int
		want    error
	}{
		{answers: []error{away, away, nil}, stop: -1, calls: 3, waits: 2},
		{answers: []error{nil}, stop: 0, calls: 1},
		{answers: []error{away, nil}, stop: 0, calls: 1, waits: 1, want: context.Canceled},
		{answers: []error{away, away, nil}, stop: 1, calls: 2, waits: 2, want: context.Canceled},
	} {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			calls, waits, stopped := 0, 0, time.Now()
			err := whenAvailable(ctx, func(error) { waits++ }, func(trying context.Context) error {
				if calls == c.stop {
					if cancel(); calls == 0 && trying.Err() != nil {
						t.Error("the first call is cancelled")
					}
					stopped = time.Now()
				}
				calls++
				return c.answers[calls-1]
			})
			if c.want != nil && time.Since(stopped) > 0 { // by the clock of the test
				t.Errorf("stopped in call %d, it waits for %s", c.stop, time.Since(stopped))
			}
			if calls != c.calls || !errors.Is(err, c.want) || waits != c.waits {
				t.Errorf("stopped in call %d: %d calls, %d waits, %v", c.stop, calls, waits, err)
			}
		})
	}
}
