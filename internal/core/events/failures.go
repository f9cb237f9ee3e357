package events

import (
	"context"
	"time"
)

// MaxFailures is how many failures one page has at most.
const MaxFailures = 1000

// FailureReader lists the failed events of one context, in the transaction and for the context that its constructor
// bound it to: producers decide how to recover what they published. It shows the events of the transaction's workspace,
// or those of no workspace if it has none, as row-level security does. Not safe for concurrent use: a transaction is
// not.
type FailureReader interface {
	// Failures returns at most limit failures, from 1 to [MaxFailures], the latest first. It starts after the given one:
	// the last of the page before, or the zero Failure for the first page. It returns fewer where payloads are large, and
	// none at the end. The error is a [*Refusal] for a context that the transaction may not publish as.
	Failures(ctx context.Context, limit int, after Failure) ([]Failure, error)
}

// Failure is an event that failed for good (a dead letter): it stays so until an operator replays or discards it.
type Failure struct {
	Envelope Envelope
	Attempts int // dispatches since it was published or replayed
	// LastError has a line for each handler that failed, Class: handler: message.
	LastError     string
	FirstFailedAt time.Time // the first of those attempts
	FailedAt      time.Time
	// DiscardedAt is zero unless an operator discarded the event. It can be replayed only after an undiscard.
	DiscardedAt  time.Time
	PriorReplays int
}
