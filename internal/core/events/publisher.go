package events

import (
	"context"
	"time"
)

// EventPublisher publishes events in the transaction its constructor bound it to: they become
// visible to consumers if and only if that transaction commits, in no promised order.
//
// Publish takes one event, many or thousands, and publishes all or none of them. A bad event is a [*Refusal]; one found
// before any SQL leaves the transaction usable. If only the database refuses an event of a unit of work, the unit's
// next statement, or its end, returns the refusal. Not safe for concurrent use: a transaction is not.
type EventPublisher interface {
	Publish(ctx context.Context, envelopes ...Envelope) error
}

// PublishOption sets what the frozen envelope does not carry, for every event of one publisher.
type PublishOption func(*PublishOptions)

// PublishOptions are the values that the options set.
type PublishOptions struct {
	// AvailableAt is when the events become due; zero means at once.
	AvailableAt time.Time
}

// Validate refuses what no event may be published with, with a [*Refusal]. Now is the publisher's clock.
func (o PublishOptions) Validate(now time.Time) error {
	if o.AvailableAt.After(now.Add(MaxScheduleAhead)) {
		return &Refusal{
			Code: CodeAvailableAt, Field: "available_at", Reason: "must be a finite time at most 366 days ahead",
			Received: shownTime(o.AvailableAt), Hint: "leave it out for an event that is due at once",
		}
	}
	return nil
}

// AvailableAt makes events due at t, at most [MaxScheduleAhead] from now. The database clock
// decides; a time that has passed means at once.
func AvailableAt(t time.Time) PublishOption {
	return func(o *PublishOptions) { o.AvailableAt = t }
}

// PublisherFor builds a publisher, bound to the transaction it was made for.
type PublisherFor func(...PublishOption) EventPublisher
