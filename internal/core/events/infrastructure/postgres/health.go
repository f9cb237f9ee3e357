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
	Listening    State = "listening"
	Reconnecting State = "reconnecting"
	Polling      State = "polling" // no LISTEN connection for long: events wait for the poll
	Stopped      State = "stopped"
	Refused      State = "refused" // ended by itself: see Listener.Err
)

// Health is the state of a listener and the reason for it. Safe for concurrent use.
type Health struct {
	mu      sync.Mutex
	state   State
	reason  string
	changed chan struct{} // closed at the next change
}

func newHealth() *Health {
	return &Health{state: Starting, changed: make(chan struct{})}
}

// Now returns the state and its reason; the reason of a healthy one is empty.
func (h *Health) Now() (State, string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.state, h.reason
}

// Await returns when the state is the wanted one, or with the error of ctx.
func (h *Health) Await(ctx context.Context, wanted State) error {
	for {
		h.mu.Lock()
		state, changed := h.state, h.changed
		h.mu.Unlock()
		if state == wanted {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// set reports whether the state is a new one.
func (h *Health) set(state State, reason string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	news := h.state != state
	h.state, h.reason = state, reason
	if news {
		close(h.changed)
		h.changed = make(chan struct{})
	}
	return news
}
