package postgres

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"spectral/internal/core/events"
	"spectral/internal/core/events/infrastructure/postgres/coredb"
)

// single runs the handlers of one row, each under a savepoint of its own: those that succeed
// commit with their dedup rows, whatever becomes of the others. When COMMIT finds a deferred
// constraint broken, which undoes them all, the row is left to be run again, strictly.
//
// The handlers after one that has left session state run in another transaction: the row is left to be run again for them.
func (d *dispatchTx) single(ctx context.Context, row claimed, result *dispatchResult) (err error) {
	handlers := d.handlersOf(row.envelope)
	failures := make(map[string]failure)
	switch {
	case row.corrupt != nil: // what ran before is unknown: for a person to look at
		handlers = nil
		failures["outbox"] = failure{class: "CorruptRow", disposition: terminal, message: row.corrupt.Error()}
	case len(handlers) == 0:
		failures[string(row.envelope.Target)] = classify(events.ErrNoHandler, 0)
	}
	d.noteDown(ctx, []claimed{row})
	var unhandled, ran, rest []events.Registration // rest: left to another transaction
	for i, r := range handlers {
		if row.record[r.Name].Parked {
			unhandled = append(unhandled, r)
			continue
		}
		started := time.Now()
		taken, err := d.underSavepoint(ctx, r, row)
		if err != nil && ctx.Err() != nil {
			return fmt.Errorf("stopped while %s ran: %w", r.Name, ctx.Err())
		}
		if errors.Is(err, errJournal) {
			return err
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
			return d.recordElsewhere(ctx, row, handlers, failures)
		}
		if err == nil && !taken && d.left != plain && i < len(handlers)-1 {
			rest = handlers[i+1:]
			break
		}
	}
	switch {
	case len(failures) > 0, len(unhandled) > 0 && len(rest) == 0:
		err = d.record(ctx, row, judge(row.record, append(unhandled, rest...), failures, rand.Float64))
	case len(rest) > 0: // the row stays pending, for them
		result.left++
	default:
		err = d.deliver(ctx, []claimed{row})
	}
	if err == nil {
		err = d.commit(ctx)
	}
	if len(failures) == 0 && len(rest) > 0 {
		d.note.standing = true
	}
	var pg *pgconn.PgError
	if !errors.Is(err, errCommit) || !errors.As(err, &pg) || len(ran) == 0 {
		return err
	}
	if !d.strict {
		result.left++
		result.strict = true
		return nil
	}
	// something only COMMIT finds, and which of them did it cannot be told
	for _, r := range ran {
		failures[r.Name] = classify(pg, row.record[r.Name].Failures)
	}
	return d.recordElsewhere(ctx, row, handlers, failures)
}

// underSavepoint runs one handler for one row, unless its key is taken.
func (d *dispatchTx) underSavepoint(ctx context.Context, r events.Registration, row claimed) (taken bool, err error) {
	// a name that the handler does not hit upon: rolling back to one of its own would keep the key
	savepoint := fmt.Sprintf("spectral_%08x", rand.Uint32())
	if err := d.exec(ctx, "savepoint "+savepoint); err != nil {
		return false, fmt.Errorf("savepoint: %w", err)
	}
	taken, err = d.runOnce(ctx, r, row)
	if d.lost() {
		return false, err
	}
	if err == nil {
		if err = d.exec(ctx, "release savepoint "+savepoint); err == nil {
			return taken, nil
		}
	}
	// also restores the role and the workspace, and gives the key back
	undo := d.exec(ctx, "rollback to savepoint "+savepoint+"; release savepoint "+savepoint)
	if undo == nil {
		undo = d.prepareAgain(ctx)
	}
	if undo != nil && !d.lost() {
		d.cut()
	}
	return false, err
}

// runOnce claims the key and runs the handler; a key that is taken means that it has run.
func (d *dispatchTx) runOnce(ctx context.Context, r events.Registration, row claimed) (taken bool, err error) {
	taken, err = d.keyTaken(ctx, r, row)
	if taken || err != nil {
		return taken, err
	}
	if err := d.call(ctx, r, []events.Envelope{row.envelope}); err != nil {
		return false, err
	}
	// fails when the handler has swallowed an error of its SQL and so lost its transaction
	if err := d.act(ctx, workerRole, noWorkspace); err != nil {
		return false, fmt.Errorf("handler returned nil but left its transaction unusable: %w", err)
	}
	if d.strict {
		return false, d.exec(ctx, "set constraints all immediate; set constraints all deferred")
	}
	return false, nil
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
		return false, fmt.Errorf("%w: %w", errKey, err)
	}
	return false, nil
}

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
	if err := other.record(ctx, row, judge(row.record, unhandled, failures, rand.Float64)); err != nil {
		return err
	}
	if err := other.commit(ctx); err != nil {
		return err
	}
	d.settled = other.settled
	return nil
}
