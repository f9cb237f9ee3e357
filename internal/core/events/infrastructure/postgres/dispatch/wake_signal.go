package dispatch

import (
	"sync"
)

// WakeSignal is how a consumer is woken and stopped, whichever its mode. Its exported fields are guarded by Mu.
type WakeSignal struct {
	Mu      sync.Mutex
	Again   bool // woken since the last claim began
	Crashed bool // rows with crashes may be due
	Recheck Recheck
	Stopped bool

	Stop    chan struct{}  // closed when stopped
	Running sync.WaitGroup // the goroutines of the consumer
}

// NewWakeSignal returns the signal of a consumer that is not woken yet.
func NewWakeSignal() *WakeSignal { return &WakeSignal{Stop: make(chan struct{})} }

// Halt lets no further claim begin. It may be called more than once.
func (w *WakeSignal) Halt() {
	w.Mu.Lock()
	defer w.Mu.Unlock()
	if !w.Stopped {
		w.Stopped = true
		close(w.Stop)
	}
}

// Recheck is how many empty claims are repeated. After a lost connection its backend may hold rows for a moment, and no
// notification comes when it ends.
type Recheck int

// maxRechecks, with a pause after each, make two seconds.
const maxRechecks = 20

// Begin starts the repetitions.
func (r *Recheck) Begin() { *r = maxRechecks }

// Next counts an empty claim, and reports whether to repeat it.
func (r *Recheck) Next() bool {
	*r = max(*r-1, -1)
	return *r >= 0
}
