package journal

import (
	"context"
	"errors"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"spectral/internal/core/events/infrastructure/postgres/coredb"
)

// ErrWrite is the failure to write an entry. No handler has run then.
var ErrWrite = errors.New("write the claim to core.claim_journal")

// Entry is the journal entry of one runner, which alone uses it.
type Entry struct {
	journal   *Journal
	eventType string
	runner    int
	stale     bool // it names rows that this process may not hold any more
}

// NewEntry returns the entry of the n-th runner of an event type's consumer.
func (j *Journal) NewEntry(eventType string, n int) *Entry {
	return &Entry{journal: j, eventType: eventType, runner: n}
}

// Write replaces the rows of the entry. Its error is an ErrWrite.
func (e *Entry) Write(ctx context.Context, ids []uuid.UUID) error {
	if !e.journal.registered.Load() {
		return nil
	}
	e.stale = true
	err := e.journal.InTx(ctx, func(tx pgx.Tx) error {
		return coredb.New(tx).WriteJournal(ctx, coredb.WriteJournalParams{
			Worker: e.journal.Worker, EventType: e.eventType, Runner: int32(e.runner), Ids: ids, //nolint:gosec // few runners
		})
	})
	if err != nil {
		return fmt.Errorf("%w: %w", ErrWrite, err)
	}
	return nil
}

// Clear removes the rows of a stale entry. Its error is an ErrWrite.
func (e *Entry) Clear(ctx context.Context) error {
	if !e.stale {
		return nil
	}
	if err := e.Write(ctx, []uuid.UUID{}); err != nil {
		return err
	}
	e.stale = false
	return nil
}

// Settled says that the rows of the entry are committed as settled or pending again, so that it need not be cleared.
func (e *Entry) Settled() { e.stale = false }

// Unsettled says that a row of the entry is still pending after a commit, so that it has to be cleared.
func (e *Entry) Unsettled() { e.stale = true }
