package notify

import "sync"

// State of a worker, as far as notifications are concerned.
type State string

// The states; doc.go has the transitions.
const (
	Starting     State = "starting"
	Listening    State = "listening" // and a self-test was received, unless none could be sent
	Reconnecting State = "reconnecting"
	Polling      State = "polling"  // no LISTEN connection for long, or notifications are lost: events wait for the poll
	Stopping     State = "stopping" // nothing more is claimed, handlers are running
	Stopped      State = "stopped"
	Refused      State = "refused" // ended by itself: see the worker's Err
)

// Health is the state of a worker and the latest reason for it. Safe for concurrent use.
type Health struct {
	mu      sync.Mutex
	state   State
	reason  string
	changed chan struct{} // closed at the next change
}

// NewHealth returns the health of a worker that is starting.
func NewHealth() *Health { return &Health{state: Starting, changed: make(chan struct{})} }

// Now returns the state and its reason, which is empty while the worker is listening.
func (h *Health) Now() (State, string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.state, h.reason
}

// Changed returns a channel that is closed at the next change of state or reason. Call it before Now, so that no change
// between the two calls is missed.
func (h *Health) Changed() <-chan struct{} {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.changed
}

// Set changes the state and its reason.
func (h *Health) Set(state State, reason string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.state == state && h.reason == reason {
		return
	}
	h.state, h.reason = state, reason
	close(h.changed)
	h.changed = make(chan struct{})
}
