package notify

import (
	"context"
	"sync"
)

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
	changes uint64
	entered map[State]uint64 // the change with which each state was last entered
	changed chan struct{}    // closed at the next change
}

// NewHealth returns the health of a worker that is starting.
func NewHealth() *Health {
	return &Health{state: Starting, entered: make(map[State]uint64), changed: make(chan struct{})}
}

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

// Await returns nil once the state is the wanted one, or has been since the call, however shortly; or the error of ctx.
func (h *Health) Await(ctx context.Context, wanted State) error {
	h.mu.Lock()
	since := h.changes
	h.mu.Unlock()
	for {
		h.mu.Lock()
		reached, changed := h.state == wanted || h.entered[wanted] > since, h.changed
		h.mu.Unlock()
		if reached {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// Set changes the state and its reason.
func (h *Health) Set(state State, reason string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.state == state && h.reason == reason {
		return
	}
	h.changes++
	if h.state != state {
		h.entered[state] = h.changes
	}
	h.state, h.reason = state, reason
	close(h.changed)
	h.changed = make(chan struct{})
}
