package postgres

import (
	"sync"
	"time"

	"spectral/internal/core/events/infrastructure/postgres/coredb"
)

const (
	// measureEvery is how often a busy consumer lets its floor rise: what is settled in between is
	// walked past by each claim.
	measureEvery = 50 * time.Millisecond
	// maxMarks is how many marks wait for a long transaction to end; beyond, every second is dropped.
	maxMarks = 64
)

// floor is a lower bound of available_at for the pending rows of one consumer, so that claims and
// looks do not walk past the index entries of settled rows, which stay for as long as anybody holds
// an old snapshot. It is exact but for rows inserted by hand and a clock set back, which a look
// without it finds (docs/decisions/0007). A clock set back is seen at the next measurement, too.
type floor struct {
	mu       sync.Mutex
	at       time.Time // zero: unknown
	marks    []mark    // by time
	measured time.Time // by the worker's clock
}

// mark is a time of the database clock, and a transaction id taken after it: rows stamped before
// that time have lower ids.
type mark struct {
	at time.Time
	id int64
}

func (f *floor) get() time.Time {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.at
}

// stale reports whether it is time to measure again, and if so takes that on.
func (f *floor) stale() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if time.Since(f.measured) < measureEvery {
		return false
	}
	f.measured = time.Now()
	return true
}

// rise takes in a measurement that was made from the floor used.
func (f *floor) rise(used time.Time, m coredb.FloorRow) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.at.Before(used) {
		return // lowered meanwhile: it did not see what that was for
	}
	if m.MarkAt.Before(used) {
		f.at, f.marks = time.Time{}, nil // the clock was set back, or another server has taken over
		return
	}
	if len(f.marks) == maxMarks {
		for i := range maxMarks / 2 {
			f.marks[i] = f.marks[2*i+1]
		}
		f.marks = f.marks[:maxMarks/2]
	}
	f.marks = append(f.marks, mark{at: m.MarkAt, id: m.MarkID})
	var proven time.Time
	kept := f.marks[:0]
	for _, k := range f.marks {
		if k.id > m.LowestRunning {
			kept = append(kept, k)
		} else if k.at.After(proven) {
			proven = k.at
		}
	}
	f.marks = kept
	if !m.Oldest.IsZero() && m.Oldest.Before(proven) {
		proven = m.Oldest
	}
	if proven.After(f.at) {
		f.at = proven
	}
}

// lower makes sure that a pending row available at t is looked for.
func (f *floor) lower(t time.Time) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if t.Before(f.at) {
		f.at, f.marks = t, nil
	}
}
