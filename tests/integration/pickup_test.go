package integration_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"spectral/internal/core/events"
)

// publishSQL publishes a test event of the given id.
const publishSQL = `select core.outbox_publish_many(jsonb_build_array(jsonb_build_object('event_id', '%s',
	'event_type', 'worlds.test.happened', 'source', 'worlds', 'payload', '{"n": 1}'::jsonb)))`

// pickups notes when a handler first saw each event, by the clock that the producers' commits are
// measured with.
type pickups struct {
	mu      sync.Mutex
	at      map[string]time.Time
	more    chan struct{} // closed when some come
	longest time.Duration // of those awaited
}

func newPickups() *pickups {
	return &pickups{at: make(map[string]time.Time), more: make(chan struct{})}
}

// HandleBatch implements [events.BatchHandler].
func (p *pickups) HandleBatch(_ context.Context, batch []events.Envelope) error {
	now := time.Now()
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, e := range batch {
		if id := e.EventID.String(); p.at[id].IsZero() {
			p.at[id] = now
		}
	}
	close(p.more)
	p.more = make(chan struct{})
	return nil
}

func (p *pickups) subscription() events.Subscription {
	return subscription(events.Registration{
		Name: "platform.picking", Retry: quickly, Batch: func(events.Tx) events.BatchHandler { return p },
	})
}

// missing awaits the events until the time given, and returns those that have not come.
func (p *pickups) missing(until time.Time, ids ...string) []string {
	deadline := time.NewTimer(time.Until(until))
	defer deadline.Stop()
	for over := false; ; {
		p.mu.Lock()
		var left []string
		for _, id := range ids {
			if p.at[id].IsZero() {
				left = append(left, id)
			}
		}
		more := p.more
		p.mu.Unlock()
		if len(left) == 0 || over {
			return left
		}
		ids = left
		select {
		case <-more:
		case <-deadline.C:
			over = true
		}
	}
}

// after returns how long after a time an event was seen.
func (p *pickups) after(since time.Time, id string) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	d := p.at[id].Sub(since)
	p.longest = max(p.longest, d)
	return d
}

// within fails unless the event is picked up within limit of its commit.
func (p *pickups) within(t testing.TB, limit time.Duration, committed time.Time, id string) {
	t.Helper()
	if left := p.missing(committed.Add(limit), id); len(left) > 0 {
		t.Fatalf("event %s was not picked up within %s of its commit", id, limit)
	}
	p.after(committed, id)
}
