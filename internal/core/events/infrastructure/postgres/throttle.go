package postgres

import (
	"time"

	"spectral/internal/core/events"
)

// What a batch may come to as it grows.
const (
	batchTime  = time.Second // of its transaction, which holds the rows and an old snapshot
	batchBytes = 16 << 20    // of payloads, which are all in memory
)

// throttle decides how many rows a claim takes and how many runners a consumer has. Guarded by the
// consumer's lock.
type throttle struct {
	base, size           int // rows a claim takes, at first and now
	concurrency, allowed int // runners, at most and now
	alone                int // claims of one row still to come, whichever runner makes them
	strict               bool
}

// newThrottle starts where the subscription says. A batch of one never grows, and a handler that
// acts outside the transaction is never batched: a rolled back batch would repeat what it did.
func newThrottle(s events.Subscription) throttle {
	base := s.BatchSize
	for _, r := range s.Handlers() {
		if r.ActsOutside {
			base = 1
		}
	}
	return throttle{base: base, size: base, concurrency: s.Concurrency, allowed: s.Concurrency}
}

// next says how many rows to claim, and whether to check deferred constraints handler by handler.
func (t *throttle) next() (limit int, strict bool) {
	if t.alone == 0 {
		t.strict = false
		return t.size, false
	}
	t.alone--
	return 1, t.strict
}

// interrupted leaves one runner to find out when the database answers again.
func (t *throttle) interrupted() {
	t.undone(false)
	t.allowed = 1
}

func (t *throttle) undone(deadlock bool) {
	t.size = max(t.size/2, 1)
	if deadlock {
		t.allowed = max(t.allowed/2, 1)
	}
}

// adjust notes what came of a claim. Rows that it left are claimed one at a time. An undone batch
// halves the next one, and if it was a deadlock the runners too: deadlocks come of many rows in
// many transactions at once. A full one that went well means a backlog: the next takes
// twice as many, within what a transaction should last and memory should hold.
func (t *throttle) adjust(r dispatchResult, limit int, took time.Duration) {
	t.alone = max(t.alone, r.left)
	t.strict = t.strict || r.strict
	switch {
	case r.undone:
		t.undone(r.deadlock)
	case r.rows < limit:
		// not the end of contention: others may hold the rows
		t.size, t.allowed = t.base, min(t.allowed+1, t.concurrency)
		if r.rows == 0 {
			t.alone = 0 // somebody else has had them
		}
	case limit > 1:
		size := min(max(2*limit, t.size), events.MaxBatchSize)
		if perRow := took / time.Duration(r.rows); perRow > 0 {
			size = min(size, int(batchTime/perRow))
		}
		if perRow := r.payload / r.rows; perRow > 0 {
			size = min(size, batchBytes/perRow)
		}
		t.size = max(size, 1)
		t.allowed = min(t.allowed+1, t.concurrency)
	case t.base == 1:
		t.allowed = min(t.allowed+1, t.concurrency)
	case t.size == 1 && t.alone == 0:
		t.size = 2 // halved to nothing, and now it goes well
	}
}
