package integration_test

import (
	"sync"
	"testing"

	"spectral/tests/pgtest"
)

// A worker that is stopped as it registers leaves nothing behind that looks like one that died.
func TestAWorkerStoppedAsItRegistersLeavesNothing(t *testing.T) {
	b := setup(t)
	for range 5 {
		now := make(chan struct{})
		registers := sync.OnceFunc(func() { close(now) })
		l := b.newListener(never, pgtest.Generation, subscription(leaving("platform.x")), before("worker_register", registers))
		must(t, l.Start(b.ctx))
		within(t, now)
		must(t, l.Stop(b.ctx))
	}
	if left := one[int](b, "select count(*) from core.workers"); left != 0 {
		t.Errorf("%d workers are left that do not run", left)
	}
}
