package eventstest

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"

	"spectral/internal/core/events"
)

// Publication is an event as it was published, and when it becomes due.
type Publication struct {
	// Envelope as consumers get it: its idempotency key is qualified, its times have microseconds.
	Envelope events.Envelope
	// AvailableAt is when the event becomes due; zero, or a time that has passed, means at once.
	AvailableAt time.Time
}

// Recorder is an [events.EventPublisher] that keeps what it is given. It refuses what a real one refuses and fills
// what a real one fills. It does not refuse what only a database knows: that a role may not publish as a source
// (SP017), that a generation takes no events (SP019), and the rules of a contract's schema (SP023). Payloads are kept
// as they were given, not as jsonb would have them. Safe for concurrent use.
type Recorder struct {
	contracts *events.Contracts
	now       func() time.Time
	under     *Recorder // what a transaction will be added to; nil outside of one

	mu        sync.Mutex
	published []Publication
}

// NewRecorder returns a recorder that knows contracts. Now is the clock by which times are checked and filled:
// [time.Now] where it does not matter.
func NewRecorder(contracts *events.Contracts, now func() time.Time) *Recorder {
	return &Recorder{contracts: contracts, now: now}
}

// Publish implements [events.EventPublisher].
func (r *Recorder) Publish(ctx context.Context, envelopes ...events.Envelope) error {
	return r.Publisher().Publish(ctx, envelopes...)
}

// Publisher returns a publisher with options that records in r. The method is an [events.PublisherFor].
func (r *Recorder) Publisher(options ...events.PublishOption) events.EventPublisher {
	p := &publisher{recorder: r}
	for _, option := range options {
		option(&p.options)
	}
	return p
}

// Transact calls work as a unit of work does: what it publishes is kept if it returns nil. An error, a panic or
// [runtime.Goexit] undoes it.
func (r *Recorder) Transact(work func(events.PublisherFor) error) error {
	tx := &Recorder{contracts: r.contracts, now: r.now, under: r}
	if err := work(tx.Publisher); err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.published = append(r.published, tx.published...)
	return nil
}

// Published returns copies of the events, in the order they were published.
func (r *Recorder) Published() []events.Envelope {
	publications := r.Publications()
	envelopes := make([]events.Envelope, len(publications))
	for i, p := range publications {
		envelopes[i] = p.Envelope
	}
	return envelopes
}

// Publications is Published with the times at which the events become due.
func (r *Recorder) Publications() []Publication {
	r.mu.Lock()
	defer r.mu.Unlock()
	publications := slices.Clone(r.published)
	for i := range publications {
		publications[i].Envelope.Payload = slices.Clone(publications[i].Envelope.Payload)
	}
	return publications
}

// Events implements [Source].
func (r *Recorder) Events(context.Context) ([]events.Envelope, error) { return r.Published(), nil }

type publisher struct {
	recorder *Recorder
	options  events.PublishOptions
}

// Publish implements [events.EventPublisher].
func (p *publisher) Publish(ctx context.Context, envelopes ...events.Envelope) error {
	r, now := p.recorder, p.recorder.now()
	if err := p.options.Validate(now); err != nil || len(envelopes) == 0 {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	published := r.published // kept if none is refused
	for i, e := range envelopes {
		publication, err := r.seal(e, now, published)
		if err != nil && len(envelopes) > 1 {
			err = fmt.Errorf("event %d of %d: %w", i+1, len(envelopes), err)
		}
		if err != nil {
			return err
		}
		if p.options.AvailableAt.After(now) {
			publication.AvailableAt = p.options.AvailableAt.UTC().Truncate(time.Microsecond)
		}
		published = append(published, publication)
	}
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("publish: %w", err)
	}
	r.published = published
	return nil
}

// seal checks e, which comes after published, and fills what the producer left to the publisher.
func (r *Recorder) seal(e events.Envelope, now time.Time, published []Publication) (Publication, error) {
	if err := e.Validate(now); err != nil {
		return Publication{}, err
	}
	contract, err := r.contracts.Check(e)
	if err != nil {
		return Publication{}, err
	}
	if d := contract.Deprecation; d != nil && !now.Before(d.Deadline) {
		return Publication{}, &events.Refusal{Code: events.CodeDeprecated, Field: "event_type", EventType: e.EventType,
			Reason: fmt.Sprintf("%s is deprecated and has been refused since %s", e.EventType,
				d.Deadline.UTC().Format("2006-01-02 15:04 MST")),
			Received: `"` + e.EventType + `"`, Hint: "publish " + d.Successor}
	}
	if e.EventID == uuid.Nil {
		e.EventID = uuid.Must(uuid.NewV7())
	}
	if e.OccurredAt.IsZero() {
		e.OccurredAt = now
	}
	e.OccurredAt = e.OccurredAt.UTC().Truncate(time.Microsecond)
	if r.under != nil {
		published = append(r.under.Publications(), published...)
	}
	if slices.ContainsFunc(published, func(p Publication) bool {
		return p.Envelope.EventID == e.EventID && p.Envelope.OccurredAt.Equal(e.OccurredAt)
	}) {
		return Publication{}, &events.Refusal{Code: events.CodeEventID, Field: "event_id", EventType: e.EventType,
			Reason: "an event of this id and occurred_at is in the outbox already"}
	}
	e.IdempotencyKey = qualifiedKey(e)
	e.Payload = slices.Clone(e.Payload)
	return Publication{Envelope: e}, nil
}

// qualifiedKey is the idempotency key as it is stored: two sources or workspaces never share one.
func qualifiedKey(e events.Envelope) string {
	id := e.EventID.String()
	if e.IdempotencyKey == "" || e.IdempotencyKey == id {
		return id
	}
	workspace := "-"
	if e.WorkspaceID.Valid {
		workspace = e.WorkspaceID.UUID.String()
	}
	return string(e.Source) + ":" + workspace + ":" + e.IdempotencyKey
}
