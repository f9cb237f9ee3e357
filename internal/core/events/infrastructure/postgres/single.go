package postgres

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"spectral/internal/core/events"
	"spectral/internal/core/events/infrastructure/postgres/coredb"
)

// single runs the handlers of one row, each under a savepoint of its own: those that succeed
// commit with their dedup rows, whatever becomes of the others. Again means that COMMIT found a
// deferred constraint broken, which undid them all: the row is to be run again, strictly.
func (d *dispatchTx) single(ctx context.Context, row claimed) (again bool, err error) {
	handlers := d.handlersOf(row.envelope)
	failures := make(map[string]failure)
	switch {
	case row.corrupt != nil: // what ran before is unknown: for a person to look at
		handlers = nil
		failures["outbox"] = failure{class: "CorruptRow", disposition: terminal, message: row.corrupt.Error()}
	case len(handlers) == 0:
		failures[string(row.envelope.Target)] = classify(events.ErrNoHandler, 0)
	}
	var unhandled, ran []events.Registration
	for _, r := range handlers {
		if row.record[r.Name].Parked {
			unhandled = append(unhandled, r)
			continue
		}
		started := d.now()
		err := d.underSavepoint(ctx, r, row)
		if err != nil && ctx.Err() != nil {
			return false, fmt.Errorf("stopped while %s ran: %w", r.Name, ctx.Err())
		}
		if err == nil {
			ran = append(ran, r)
		} else {
			failures[r.Name] = classify(err, row.record[r.Name].Failures)
			unhandled = append(unhandled, r)
		}
		d.logHandled(ctx, r, row, started, failures)
		if d.lost() {
			if !d.spoiled {
				failures[r.Name] = lostConnection(err)
			}
			return false, d.recordElsewhere(ctx, row, handlers, failures)
		}
	}
	if len(failures) == 0 && len(unhandled) == 0 {
		err = d.deliver(ctx, []claimed{row})
	} else {
		err = d.record(ctx, row, judge(row.record, unhandled, failures, d.random))
	}
	if err == nil {
		err = d.commit(ctx)
	}
	var refused *commitError
	var pg *pgconn.PgError
	if !errors.As(err, &refused) || !errors.As(err, &pg) || len(ran) == 0 {
		return false, err
	}
	if !d.strict {
		return true, nil
	}
	// something only COMMIT finds, and which of them did it cannot be told
	for _, r := range ran {
		failures[r.Name] = classify(pg, row.record[r.Name].Failures)
	}
	return false, d.recordElsewhere(ctx, row, handlers, failures)
}

// underSavepoint runs one handler for one row, unless somebody else has its key.
func (d *dispatchTx) underSavepoint(ctx context.Context, r events.Registration, row claimed) error {
	// a name that the handler does not hit upon: rolling back to one of its own would keep the key
	savepoint := fmt.Sprintf("spectral_%08x", uint32(d.random()*(1<<32)))
	if err := d.exec(ctx, "savepoint "+savepoint); err != nil {
		return fmt.Errorf("savepoint: %w", err)
	}
	err := d.runOnce(ctx, r, row)
	if d.lost() {
		return err
	}
	if err == nil {
		if err = d.exec(ctx, "release savepoint "+savepoint); err == nil {
			return nil
		}
	}
	// also restores the role and the workspace, and gives the key back
	undo := d.exec(ctx, "rollback to savepoint "+savepoint+"; release savepoint "+savepoint)
	if undo != nil && !d.lost() {
		d.cut()
	}
	return err
}

// runOnce claims the key and runs the handler; a key that is taken means that it has run.
func (d *dispatchTx) runOnce(ctx context.Context, r events.Registration, row claimed) error {
	taken, err := d.keyTaken(ctx, r, row)
	if taken || err != nil {
		return err
	}
	if err := d.call(ctx, r, []events.Envelope{row.envelope}); err != nil {
		return err
	}
	// fails when the handler has swallowed an error of its SQL and so lost its transaction
	if err := d.exec(ctx, actAs(workerRole, noWorkspace)); err != nil {
		return fmt.Errorf("handler returned nil but left its transaction unusable: %w", err)
	}
	if d.strict {
		return d.exec(ctx, "set constraints all immediate; set constraints all deferred")
	}
	return nil
}

// keyTaken claims the dedup key, waiting for a twin that holds it in an open transaction as long as
// the twin's own handler may take. An error is free: this handler has not run.
func (d *dispatchTx) keyTaken(ctx context.Context, r events.Registration, row claimed) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, r.CallTimeout()+statementTimeout)
	defer cancel()
	e := row.envelope
	_, err := d.queries.ClaimKey(ctx, coredb.ClaimKeyParams{
		HandlerName: r.Name, IdempotencyKey: e.IdempotencyKey, EventID: e.EventID, EventType: e.EventType,
		WorkspaceID: e.WorkspaceID, ContentClass: row.contentClass,
	})
	if errors.Is(err, pgx.ErrNoRows) {
		return true, nil
	}
	if err != nil {
		return false, &keyError{err}
	}
	return false, nil
}

// keyError is an error of claiming a dedup key, before its handler ran.
type keyError struct{ err error }

func (e *keyError) Error() string { return "claim the dedup key: " + e.err.Error() }
func (e *keyError) Unwrap() error { return e.err }

// recordElsewhere records failures in a transaction of their own, when the one they happened in
// is lost. What other handlers did was undone with it: they are unhandled again, without fault. A
// row that somebody else has taken up since is left to them.
func (d *dispatchTx) recordElsewhere(ctx context.Context, row claimed, unhandled []events.Registration, failures map[string]failure) error {
	d.end() // the claim's locks must go first
	other := &dispatchTx{consumer: d.consumer}
	if err := other.begin(ctx); err != nil {
		return err
	}
	defer other.end()
	if err := other.record(ctx, row, judge(row.record, unhandled, failures, d.random)); err != nil {
		return err
	}
	if err := other.commit(ctx); err != nil {
		return err
	}
	d.settled = other.settled
	return nil
}
