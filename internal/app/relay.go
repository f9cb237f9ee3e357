package app

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/google/uuid"

	"spectral/internal/core/events"
	"spectral/internal/core/events/infrastructure/jetstream"
	"spectral/internal/core/events/infrastructure/postgres/operator"
	"spectral/internal/core/events/infrastructure/postgres/pgtx"
)

const (
	comparePause = 100 * time.Millisecond // between two reads of what has arrived
	reportPause  = time.Second            // between two reports on what is left
	compareWait  = 30 * time.Second       // after a comparison, until what was sent is settled
	maxSamples   = 10                     // of the ids that a report has
)

// Comparison is what became of the events that took both paths at once: were handled from Postgres, and sent to a
// broker and handled when they came back.
type Comparison struct {
	From    time.Time `json:"from"` // by the database's clock
	Seconds float64   `json:"seconds"`
	Sent    int       `json:"sent"`    // events that the broker has taken
	Arrived int       `json:"arrived"` // of them, those whose copy has come back
	// Different are those whose copy differs from the event in Postgres. Missing are those without a copy. Unmarked are
	// copies of events that Postgres does not have as sent: a worker was killed while it sent them.
	Different int `json:"different"`
	Missing   int `json:"missing"`
	Unmarked  int `json:"unmarked"`
	Repeated  int `json:"repeated"` // copies that came more than once
	Delivered int `json:"delivered"`
	Failed    int `json:"failed"`
	Waiting   int `json:"waiting"` // for their handlers, 30 s after the last was sent
	// Handled is how many of them each handler has handled, by core.event_handled, which has each once.
	Handled map[string]int `json:"handled"`
	// Unacked is how many messages each handler's consumer has not been given an ack for.
	Unacked map[string]uint64 `json:"unacked"`
	Samples []string          `json:"samples"` // ids of events with a fault
}

// Equal reports whether there were events, and each arrived as it was, was settled, and was received by each consumer.
func (c *Comparison) Equal() bool {
	return c.Sent > 0 && c.Different+c.Missing+c.Waiting == 0 && c.acked()
}

// CompareRelay has events take both paths for a time, and compares. It refuses to if they take that of the broker
// already. Afterwards they take that of Postgres, also if ctx is done.
func CompareRelay(ctx context.Context, o *operator.Client, broker jetstream.Config, d time.Duration,
	by string) (c Comparison, err error) {
	before, err := o.Relay(ctx)
	if err != nil {
		return c, err
	}
	if before.Path == pgtx.PathJetStream {
		return c, errors.New("events take the path of the broker already: first `workers relay back`")
	}
	copied, err := jetstream.OpenCopy(ctx, broker, before.ID)
	if err != nil {
		return c, err
	}
	defer copied.Close()
	if c.From, err = o.Now(ctx); err != nil {
		return c, err
	}
	arrived := make(map[uuid.UUID]fingerprint)
	read := func() error {
		return copied.Read(func(e *events.Envelope, contentClass string) {
			if _, known := arrived[e.EventID]; known {
				c.Repeated++
			}
			arrived[e.EventID] = fingerprintOf(e, contentClass)
		})
	}
	if _, err := o.SwitchRelay(ctx, pgtx.PathBoth, by); err != nil {
		return c, err
	}
	comparing, end := context.WithTimeout(ctx, d)
	defer end()
	for err == nil && comparing.Err() == nil {
		err = read()
		pgtx.Pause(comparing, comparePause, nil)
	}
	c.Seconds = d.Seconds()
	alive, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*compareWait)
	defer cancel()
	state, switchErr := o.Relay(alive)
	if switchErr == nil && state.Path == pgtx.PathBoth { // otherwise an operator has switched in that time
		_, switchErr = o.SwitchRelay(alive, pgtx.PathPostgres, by)
	}
	if err = errors.Join(err, switchErr, ctx.Err()); err != nil {
		return c, err
	}
	for late := time.Now().Add(compareWait); ; pgtx.Pause(alive, reportPause, nil) {
		if err := read(); err != nil {
			return c, err
		}
		if err := c.reconcile(alive, o, copied, arrived); err != nil || c.Waiting == 0 && c.Missing == 0 && c.acked() ||
			time.Now().After(late) {
			return c, err
		}
	}
}

func (c *Comparison) acked() bool {
	for _, n := range c.Unacked {
		if n > 0 {
			return false
		}
	}
	return true
}

// fingerprint tells whether an event arrived as it was.
type fingerprint [sha256.Size]byte

func fingerprintOf(e *events.Envelope, contentClass string) fingerprint {
	text, _ := json.Marshal(e)
	return sha256.Sum256(fmt.Append(text, contentClass))
}

// reconcile compares what has arrived with what Postgres has.
func (c *Comparison) reconcile(ctx context.Context, o *operator.Client, copied *jetstream.Copy,
	arrived map[uuid.UUID]fingerprint) (err error) {
	*c = Comparison{From: c.From, Seconds: c.Seconds, Repeated: c.Repeated, Handled: make(map[string]int)}
	fault := func(n *int, id uuid.UUID) {
		if *n++; len(c.Samples) < maxSamples {
			c.Samples = append(c.Samples, id.String())
		}
	}
	sent, generations := make(map[uuid.UUID]bool, len(arrived)), make(map[events.Generation]bool)
	if err := o.SentSince(ctx, c.From, func(s operator.Sent) {
		id := s.Envelope.EventID
		sent[id], generations[s.Generation] = true, true
		copied, ok := arrived[id]
		switch {
		case !ok:
			fault(&c.Missing, id)
		case copied != fingerprintOf(&s.Envelope, s.ContentClass):
			fault(&c.Different, id)
		}
		c.Sent++
		switch s.Status {
		case "delivered":
			c.Delivered++
		case "failed":
			c.Failed++
		default:
			c.Waiting++
		}
		for _, handler := range s.HandledBy {
			c.Handled[handler]++
		}
	}); err != nil {
		return err
	}
	for id := range arrived {
		if !sent[id] {
			c.Unmarked++
		}
	}
	c.Arrived = len(arrived) - c.Unmarked
	c.Unacked, err = copied.Waiting(ctx, slices.Collect(maps.Keys(generations)))
	return err
}

// EmptyRelay waits until the broker has no event any more, for d at most. Then it gives back to Postgres what is left,
// and returns how many events that were. Nothing may be sent any more.
func EmptyRelay(ctx context.Context, o *operator.Client, d time.Duration) (returned int, err error) {
	waiting, end := context.WithTimeout(ctx, d)
	defer end()
	for {
		state, err := o.Relay(ctx)
		if err != nil || state.Relayed == 0 {
			return 0, err
		}
		if waiting.Err() != nil {
			break
		}
		pgtx.Pause(waiting, reportPause, nil)
	}
	for {
		n, err := o.ReturnRelayed(ctx, events.MaxBatchSize)
		if returned += n; err != nil || n == 0 {
			return returned, err
		}
	}
}
