package notify

import (
	"slices"
	"sync"
	"time"
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
	mu       sync.Mutex
	state    State
	reason   string
	changed  chan struct{} // closed at the next change
	polledAt time.Time     // when the notifier last began a poll; zero before the first
	answered time.Time     // when one was last answered
	stalled  map[string]time.Time
	steps    map[string]time.Time // when the loops beside the notifier's began the step that they are in
}

// NewHealth returns the health of a worker that is starting.
func NewHealth() *Health {
	return &Health{
		state: Starting, changed: make(chan struct{}), answered: time.Now(), steps: make(map[string]time.Time),
	}
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

// AwaitListening waits until the worker is listening, and so its handlers were checked, and reports whether that is so:
// otherwise stop was closed.
func (h *Health) AwaitListening(stop <-chan struct{}) bool {
	for {
		changed := h.Changed()
		if state, _ := h.Now(); state == Listening {
			return true
		}
		select {
		case <-changed:
		case <-stop:
			return false
		}
	}
}

// Answered returns when a poll was last answered; at first, when h was made.
func (h *Health) Answered() time.Time {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.answered
}

// Step says that a loop of the process begins a step, which ends soon even if the database does not answer. End says
// that it has ended.
func (h *Health) Step(loop string) (end func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.steps[loop] = time.Now()
	return func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		delete(h.steps, loop)
	}
}

// Stuck returns the loops that are stuck: the notifier, if it has not begun a poll for d, and those that have been in
// one step for so long.
func (h *Health) Stuck(d time.Duration) (loops []string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	ended := h.state == Stopping || h.state == Stopped || h.state == Refused
	if !h.polledAt.IsZero() && time.Since(h.polledAt) >= d && !ended {
		loops = append(loops, "notifier")
	}
	for loop, since := range h.steps {
		if time.Since(since) >= d {
			loops = append(loops, loop)
		}
	}
	slices.Sort(loops)
	return loops
}

// Stalled returns the event types that have had due events for at least d, of which none has been claimed or settled
// since and none is being handled.
func (h *Health) Stalled(d time.Duration) (eventTypes []string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for eventType, since := range h.stalled {
		if time.Since(since) >= d {
			eventTypes = append(eventTypes, eventType)
		}
	}
	slices.Sort(eventTypes)
	return eventTypes
}

// BeginPoll says that the notifier begins a poll.
func (h *Health) BeginPoll() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.polledAt = time.Now()
}

// polled takes in the answer to a poll: the types that have made no progress, and since when.
func (h *Health) polled(stalled map[string]time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.answered, h.stalled = time.Now(), stalled
}
