package postgres

import (
	"context"
	"sync"
)

// State of the listener's doorbell.
type State string

// The states; doc.go has the transitions.
const (
	Starting     State = "starting"
	Listening    State = "listening" // and a notification of our own arrived, unless none could be sent
	Reconnecting State = "reconnecting"
	Polling      State = "polling"  // no LISTEN connection for long, or a deaf one: events wait for the poll
	Stopping     State = "stopping" // nothing more is claimed, handlers are at work
	Stopped      State = "stopped"
	Refused      State = "refused" // ended by itself: see Listener.Err
)

// Health is the state of a listener and the reason for it, which is always the latest one. Safe for
// concurrent use.
type Health struct {
	mu      sync.Mutex
	state   State
	reason  string
	changes uint64
	entered map[State]uint64 // the change with which each state was last entered
	changed chan struct{}    // closed at the next change
}

func newHealth() *Health {
	return &Health{state: Starting, entered: make(map[State]uint64), changed: make(chan struct{})}
}

// Now returns the state and its reason; the reason of a healthy one is empty.
func (h *Health) Now() (State, string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.state, h.reason
}

// Changed returns a channel that is closed at the next change of state or reason. Take it before
// Now: a change in between then shows in one of the two.
func (h *Health) Changed() <-chan struct{} {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.changed
}

// Await returns when the state is the wanted one, or has been since the call, however shortly; or
// with the error of ctx.
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

func (h *Health) set(state State, reason string) {
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
