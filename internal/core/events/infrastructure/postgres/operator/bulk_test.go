package operator

import (
	"testing"

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
