package dispatch

import (
	"errors"
	"slices"
	"time"

	"spectral/internal/core/events"
	"spectral/internal/core/events/infrastructure/postgres/pgtx"
)

// BatchBytes is how many bytes of payloads a batch should have at most: they are all in memory.
const BatchBytes = 16 << 20

// stoppedClaim is how many bytes of payload a claim has at least if it may have stopped before its limit of rows: SQL
// stops at BatchBytes of jsonb, which may be much larger than its text.
const stoppedClaim = BatchBytes / 16

// maxPass is how many rows that could not be settled a claim passes over.
const maxPass = 50

// batchSizer decides how many rows a claim takes and how many runners a consumer has. Guarded by the dispatcher's lock.
type batchSizer struct {
	first                int  // the base while no handler that acts outside is called
	outside              bool // there are handlers that act outside
	base, size           int  // rows of a claim, at first and now
	concurrency, allowed int  // runners, at most and now
	singles              int  // claims of one row still to come, by whichever runner
	rerun                bool // they are the rows of a batch that was undone
	checkDeferred        bool
	here                 bool      // see claim
	keptBy               time.Time // the same
	pass                 int       // rows that the next claim passes over: they could not be settled
}

// newBatchSizer starts with the batch size of the subscription. A batch of one never grows, and a handler that acts
// outside the transaction is never batched: a rolled back batch would repeat what it did.
func newBatchSizer(s events.Subscription) batchSizer {
	base, outside := s.BatchSize, actOutside(s.Handlers())
	if outside {
		base = 1
	}
	return batchSizer{base: base, size: base, first: s.BatchSize, outside: outside, concurrency: s.Concurrency,
		allowed: s.Concurrency}
}

// actOutside reports whether one of the handlers acts outside its transaction.
func actOutside(handlers []events.Registration) bool {
	return slices.ContainsFunc(handlers, func(r events.Registration) bool { return r.ActsOutside != "" })
}

// next returns how to claim.
func (b *batchSizer) next() claim {
	if b.singles == 0 && b.pass == 0 {
		b.checkDeferred = false
		return claim{limit: b.size, here: b.here, keptBy: b.keptBy}
	}
	b.singles = max(b.singles-1, 0)
	return claim{limit: 1 + b.pass, pass: b.pass, checkDeferred: b.checkDeferred, here: true}
}

// interrupted leaves one runner to find out when the database answers again. The next claim passes over a row that
// could not be settled, so that others have their turn.
func (b *batchSizer) interrupted(err error) {
	b.shrink(false)
	b.allowed = 1
	if errors.Is(err, ErrSettle) || errors.Is(err, errCommit) {
		b.pass = min(b.pass+1, maxPass)
	}
}

func (b *batchSizer) shrink(deadlock bool) {
	b.size = max(b.size/2, 1)
	if deadlock {
		b.allowed = max(b.allowed/2, 1)
	}
}

// adjust takes in the result of a claim. Rows that it left are claimed one by one. An undone batch halves the next one.
// If it was undone by a deadlock, it halves the runners too: many rows in many transactions at once cause deadlocks. A
// full batch that went well means a backlog: the next one is twice as large, within limits of time and memory.
func (b *batchSizer) adjust(r claimResult, limit int, took time.Duration) {
	b.singles, b.pass = max(b.singles, r.left), 0
	if r.open && !r.undone && b.rerun { // what made the batch fail is not called any more
		b.singles = 0
	}
	b.rerun = r.undone || b.rerun && b.singles > 0
	b.here, b.keptBy = r.here, r.keptBy
	b.checkDeferred = b.checkDeferred || r.checkDeferred
	if quiet := r.open && !r.outside; b.outside && quiet != (b.base > 1) && b.first > 1 {
		b.base = 1 // while they wait for their breakers, the others can be batched
		if quiet {
			b.base = b.first
		}
		b.size = b.base
	}
	switch {
	case r.undone:
		b.shrink(r.deadlock)
	case r.rows < limit:
		// contention may go on: others may hold the rows
		b.size, b.allowed = b.base, min(b.allowed+1, b.concurrency)
		if r.rows == 0 {
			b.singles = 0 // others have claimed them
		}
	case limit > 1 && b.base > 1 && r.left < r.rows:
		size := min(max(2*limit, b.size), events.MaxBatchSize)
		if perRow := took / time.Duration(r.rows); perRow > 0 {
			size = min(size, int(pgtx.BatchTime/perRow))
		}
		if perRow := r.payload / r.rows; perRow > 0 {
			size = min(size, BatchBytes/perRow)
		}
		b.size = max(size, 1)
		b.allowed = min(b.allowed+1, b.concurrency)
	case b.base == 1:
		b.allowed = min(b.allowed+1, b.concurrency)
	case b.size == 1 && b.singles == 0:
		b.size = 2 // it was halved down to one, and now claims go well
	}
}
