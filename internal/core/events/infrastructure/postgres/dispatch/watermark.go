package dispatch

import (
	"sync"
	"time"

	"spectral/internal/core/events/infrastructure/postgres/coredb"
	"spectral/internal/core/events/infrastructure/postgres/pgtx"
)

// maxSamples is how many samples wait for a long transaction to end; beyond that, every second one is dropped.
const maxSamples = 64

// fewRows is how many settled rows a claim walks past without noticeable cost. If fewer were claimed since a sample,
// the next one waits for WatermarkRest.
const fewRows = 100

// Watermark is a lower bound of available_at for the pending rows of one consumer. From there, claims and polls do not
// walk past the index entries of settled rows, which stay for as long as an old snapshot is held. Only rows inserted by
// hand and a clock that was set back can be below it, which a poll without it finds (docs/decisions/0007). The zero
// value is ready.
type Watermark struct {
	mu        sync.Mutex
	at        time.Time // zero: unknown
	samples   []sample  // by time
	sampledAt time.Time // by the worker's clock
	claimed   int       // rows since then
}

// sample is a time of the database clock, and a transaction id taken after it: rows stamped before that time have lower
// ids.
type sample struct {
	at time.Time
	id int64
}

// Get returns the watermark; the zero time means that claims look at all rows.
func (w *Watermark) Get() time.Time {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.at
}

// due reports whether it is time for a sample, and if so counts on the caller to take it.
func (w *Watermark) due() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	wait := pgtx.WatermarkInterval
	if w.claimed < fewRows {
		wait = pgtx.WatermarkRest
	}
	if time.Since(w.sampledAt) < wait {
		return false
	}
	w.sampledAt, w.claimed = time.Now(), 0
	return true
}

// addClaimed counts claimed rows.
func (w *Watermark) addClaimed(rows int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.claimed += rows
}

// raise takes in a sample that was taken from the watermark used.
func (w *Watermark) raise(used time.Time, m coredb.SampleWatermarkRow) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.at.Before(used) {
		return // lowered since, for a row that the sample did not see
	}
	if m.SampledAt.Before(used) {
		w.at, w.samples = time.Time{}, nil // the clock was set back, or another server has taken over
		return
	}
	if len(w.samples) == maxSamples {
		for i := range maxSamples / 2 {
			w.samples[i] = w.samples[2*i+1]
		}
		w.samples = w.samples[:maxSamples/2]
	}
	w.samples = append(w.samples, sample{at: m.SampledAt, id: m.SampleID})
	var proven time.Time
	waiting := w.samples[:0]
	for _, s := range w.samples {
		if s.id > m.LowestRunning {
			waiting = append(waiting, s)
		} else if s.at.After(proven) {
			proven = s.at
		}
	}
	w.samples = waiting
	if !m.Oldest.IsZero() && m.Oldest.Before(proven) {
		proven = m.Oldest
	}
	if proven.After(w.at) {
		w.at = proven
	}
}

// Lower makes sure that claims see a pending row that is available at t.
func (w *Watermark) Lower(t time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if t.Before(w.at) {
		w.at, w.samples = t, nil
	}
}
