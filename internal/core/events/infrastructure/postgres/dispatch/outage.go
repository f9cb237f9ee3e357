package dispatch

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"spectral/internal/core/events/infrastructure/postgres/pgtx"
)

// outage is a time in which Postgres fails every event of a consumer: each attempt ends with an error of the server's
// state (no space, no memory, shutting down), and no event is delivered. Such errors then cost no attempt, however
// often they come, and claims wait between two tries. The zero value is ready.
type outage struct {
	mu        sync.Mutex
	lasting   bool
	delivered bool // an event, since the last such error
	wait      pgtx.Backoff
	delay     time.Duration // of the events that fail
	next      time.Time     // no claim begins before
}

// failed takes in an error of the server's state. Alone says that no event was delivered since the one before; begins,
// that it is the first of an outage.
func (o *outage) failed(now time.Time) (delay time.Duration, alone, begins bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.delivered {
		o.delivered = false
		return 0, false, false
	}
	if now.Sub(o.next) > 2*pgtx.MaxBackoff { // nothing failed for so long: it ended while there was no event
		o.lasting, o.wait = false, pgtx.Backoff{}
	}
	begins, o.lasting = !o.lasting, true
	if !now.Before(o.next) { // otherwise it began before the last one ended
		o.delay = o.wait.Next()
		o.next = now.Add(min(o.delay, pgtx.MaxOutagePause))
	}
	return o.delay, true, begins
}

// succeeded takes in that an event was delivered, and reports whether that ends an outage.
func (o *outage) succeeded() (ended bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	ended = o.lasting
	o.lasting, o.delivered, o.wait, o.next = false, true, pgtx.Backoff{}, time.Time{}
	return ended
}

// serverFailed takes in an error of the server's state, and logs the first of an outage. Its text may be a handler's.
func (c *Consumer) serverFailed(ctx context.Context, err error) (delay time.Duration, alone bool) {
	delay, alone, begins := c.outage.failed(time.Now())
	if begins {
		code := ""
		if pg, ok := errors.AsType[*pgconn.PgError](err); ok {
			code = pg.Code
		}
		c.Log.WarnContext(ctx, "Postgres has no space, memory or connections, or is not writable: events wait, no attempt "+
			"is counted", pgtx.LogErrorClass, pgtx.ErrorClass(err), pgtx.LogSQLState, code)
	}
	return delay, alone
}

// AwaitServer waits in an outage until another claim may begin, or until the consumer is stopped.
func (c *Consumer) AwaitServer(ctx context.Context) {
	c.outage.mu.Lock()
	pause := time.Until(c.outage.next)
	c.outage.mu.Unlock()
	if pause > 0 {
		pgtx.Pause(ctx, pause, c.Stop)
	}
}
