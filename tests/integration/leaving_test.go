package integration_test

import (
	"testing"
	"time"

	"spectral/tests/pgtest"
)

// A worker that is stopped as it registers leaves nothing behind that looks like one that died.
func TestAWorkerStoppedAtOnceLeavesNothing(t *testing.T) {
	b := setup(t)
	for i := range 40 {
		l := b.newListener(never, pgtest.Generation, subscription(leaving("platform.x")))
		must(t, l.Start(b.ctx))
		// at all points of its start
		timer := time.NewTimer(time.Duration(i) * 500 * time.Microsecond)
		<-timer.C
		must(t, l.Stop(b.ctx))
	}
	if left := one[int](b, "select count(*) from core.workers"); left != 0 {
		t.Errorf("%d workers are left that nobody runs", left)
	}
}
