package postgres

import (
	"sync"
	"time"
)

// forwardClock goes on from where it was when the clock under it is set back: until that has caught
// up, which may be an hour, nothing would be pinged, tested or looked for. For durations only.
type forwardClock struct {
	under func() time.Time

	mu    sync.Mutex
	last  time.Time
	ahead time.Duration // of the clock under it
}

func (c *forwardClock) now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	t := c.under().Add(c.ahead)
	if t.Before(c.last) {
		c.ahead += c.last.Sub(t)
		t = c.last
	}
	c.last = t
	return t
}
