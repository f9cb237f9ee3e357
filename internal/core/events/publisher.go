package events

import (
	"context"
	"time"

	"github.com/google/uuid"
)

// EventPublisher publishes events in the transaction its constructor bound it to: they become
// visible to consumers if and only if that transaction commits, in no promised order.
//
// Publish takes one event, many or thousands, and publishes all or none of them. A bad event is a
// [*Refusal]; one found before any SQL leaves the transaction usable. Not safe for concurrent
// use: a transaction is not.
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

// AvailableAt makes events due at t, at most [MaxScheduleAhead] from now. The database clock
// decides; a time that has passed means at once.
func AvailableAt(t time.Time) PublishOption {
	return func(o *PublishOptions) { o.AvailableAt = t }
}

// UnitOfWork runs business writes, and the publishing of what they mean, in one transaction.
type UnitOfWork interface {
	// Do calls work in a transaction that acts as scope's own database role and sees the rows of
	// workspace. It commits when work returns nil; an error, a panic or runtime.Goexit rolls back
	// everything, the published events included. The Tx must not outlive work.
	Do(ctx context.Context, scope Scope, workspace uuid.NullUUID, work func(Tx, EventPublisher) error) error
}
