package dispatch

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"spectral/internal/core/events"
	"spectral/internal/core/events/infrastructure/postgres/coredb"
	"spectral/internal/core/events/infrastructure/postgres/pgtx"
)

// singleRun runs the handlers of one row.
type singleRun struct {
	tx            *Tx
	row           Row
	unhold        func()
	checkDeferred bool     // check deferred constraints after each handler
	begun         []string // handlers that act outside their transaction
	open          []string // handlers that are not called, because their breakers are open
	probe         string   // the handler that is called for its breaker
	probed        *Probed
}

// run runs each handler under a savepoint. Those that succeed commit with their dedup keys, whatever the others do. If
// COMMIT finds that a deferred constraint is broken, which undoes them all, the row is left to be run again with checks
// after each handler.
//
// The handlers after one that left session state run in another transaction: the row is left to be run again for them.
func (s *singleRun) run(ctx context.Context, result *claimResult) (err error) {
	t, row := s.tx, s.row
	handlers, failures := t.consumer.HandlersFor(row)
	var unhandled, ran, rest []events.Registration // rest: for another transaction
	var waiting []events.Registration              // for their breakers
	for i, r := range handlers {
		if row.Failures[r.Name].Parked {
			unhandled = append(unhandled, r)
			continue
		}
		if slices.Contains(s.open, r.Name) {
			if handled, err := s.handled(ctx, r); err != nil {
				return err
			} else if !handled {
				waiting = append(waiting, r)
			}
			continue
		}
		if err := s.journal(ctx, r, i == 0); err != nil {
			return err
		}
		started := time.Now()
		duplicate, err := s.underSavepoint(ctx, r, i == len(handlers)-1)
		if err != nil && ctx.Err() != nil {
			return fmt.Errorf("stopped while %s ran: %w", r.Name, ctx.Err())
		}
		if journalFailed(err) {
			return err
		}
		if t.LostByNetwork() && !pgtx.StatementLost(err) {
			err = connectionLost(err)
		}
		if err == nil {
			ran = append(ran, r)
		} else {
			failures[r.Name] = t.consumer.ClassifyAndNote(ctx, err, row.Failures[r.Name].Failures).began(started)
			unhandled = append(unhandled, r)
		}
		s.observe(r, duplicate, failures)
		t.consumer.LogHandled(ctx, r, &row, started, failures)
		if t.Lost() {
			return s.recordElsewhere(ctx, handlers, failures)
		}
		if f, failed := failures[r.Name]; failed && r.Name == s.probe && f.disposition == transient {
			delete(failures, r.Name) // a probe costs no attempt
			unhandled = slices.DeleteFunc(unhandled, func(u events.Registration) bool { return u.Name == r.Name })
			waiting = append(waiting, r)
		}
		if err == nil && !duplicate && t.left != pgtx.Plain && i < len(handlers)-1 {
			rest = handlers[i+1:]
			break
		}
	}
	switch {
	case len(failures) > 0, len(unhandled) > 0 && len(rest) == 0 && len(waiting) == 0:
		err = s.record(ctx, t, Decide(row.Failures, slices.Concat(unhandled, rest, waiting), failures))
	case len(rest) > 0: // the row stays pending for them
		result.left++
	case len(waiting) > 0:
		err = t.waitFor(ctx, waiting[0].Name, []Row{row})
	default:
		err = deliver(ctx, t, []Row{row})
	}
	if err == nil {
		err = t.Commit(ctx)
	}
	if len(failures) == 0 && len(rest) > 0 {
		t.entry.Stale = true
	}
	var pg *pgconn.PgError
	switch {
	case pgtx.StatementLost(err) && len(ran)+len(failures) > 0: // a function that one of them called deallocated it
		errors.As(err, &pg)
	case !errors.Is(err, errCommit) || !errors.As(err, &pg) || len(ran) == 0:
		return err
	case !s.checkDeferred:
		result.left++
		result.checkDeferred = true
		return nil
	}
	// the error does not tell which handler made the fault
	for _, r := range ran {
		failures[r.Name] = t.consumer.ClassifyAndNote(ctx, pg, row.Failures[r.Name].Failures)
	}
	return s.recordElsewhere(ctx, handlers, failures)
}

// observe takes in a call of a handler for breakers: of all handlers, and of the one that is probed.
func (s *singleRun) observe(r events.Registration, duplicate bool, failures map[string]Failure) {
	f, failed := failures[r.Name]
	switch {
	case duplicate:
	case r.Name == s.probe && failed:
		s.probed.Note(&f)
	case r.Name == s.probe:
		s.probed.Note(nil)
	case failed:
		s.tx.consumer.Observed(r, s.row.Envelope.EventID, &f)
	default:
		s.tx.consumer.Observed(r, s.row.Envelope.EventID, nil)
	}
}

// handled reports whether a handler has handled the event.
func (s *singleRun) handled(ctx context.Context, r events.Registration) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, pgtx.StatementTimeout)
	defer cancel()
	return s.tx.Queries.Handled(ctx, coredb.HandledParams{
		HandlerName: r.Name, IdempotencyKey: s.row.Envelope.IdempotencyKey,
	})
}

// journal writes the row into the journal before its first handler, and before each that acts outside its transaction:
// a replay must know whether that had begun.
func (s *singleRun) journal(ctx context.Context, r events.Registration, first bool) error {
	if !first && r.ActsOutside == "" {
		return nil
	}
	if err := s.tx.awaitEntry(); err != nil {
		return err
	}
	if r.ActsOutside != "" {
		s.begun = append(s.begun, r.Name)
	}
	s.tx.writeEntry(ctx, []Row{s.row}, s.begun...)
	return nil
}

// underSavepoint runs one handler, unless it has handled the event already. The savepoint of the last one stays until
// the transaction ends.
func (s *singleRun) underSavepoint(ctx context.Context, r events.Registration,
	last bool) (duplicate bool, err error) {
	t, savepoint := s.tx, s.tx.consumer.savepoint
	t.tx.Queue("savepoint " + savepoint)
	duplicate, err = s.runHandler(ctx, r)
	if t.Lost() {
		return false, err
	}
	if err == nil {
		if !last {
			t.tx.Queue("release savepoint " + savepoint)
		}
		return duplicate, nil
	}
	// this also restores the role and the workspace, and gives the dedup key back
	undoing, cancel := context.WithTimeout(ctx, pgtx.StatementTimeout)
	defer cancel()
	undo := t.tx.RollbackTo(undoing, savepoint)
	if undo == nil {
		undo = t.resetStatements(ctx)
	}
	if undo != nil && !t.Lost() {
		t.forceClose()
	}
	return false, err
}

// runHandler claims the dedup key and runs the handler. If the key is taken, the handler has handled the event.
func (s *singleRun) runHandler(ctx context.Context, r events.Registration) (duplicate bool, err error) {
	t := s.tx
	duplicate, err = s.keyTaken(ctx, r)
	if duplicate || err != nil {
		return duplicate, err
	}
	if err := t.callHandler(ctx, r, []events.Envelope{s.row.Envelope}); err != nil {
		return false, err
	}
	// fails if the handler has ignored an error of its SQL, which aborts the transaction
	if err := t.AsWorker(ctx); err != nil {
		return false, fmt.Errorf("handler returned nil but left its transaction unusable: %w", err)
	}
	if s.checkDeferred {
		return false, t.Exec(ctx, "set constraints all immediate; set constraints all deferred")
	}
	return false, nil
}

// keyTaken claims the dedup key. It waits for a duplicate that holds the key in an open transaction, for as long as the
// handler of that one may take. An error costs no attempt: this handler has not run.
func (s *singleRun) keyTaken(ctx context.Context, r events.Registration) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, r.CallTimeout()+pgtx.StatementTimeout)
	defer cancel()
	e := s.row.Envelope
	_, err := s.tx.Queries.ClaimKey(ctx, coredb.ClaimKeyParams{
		HandlerName: r.Name, IdempotencyKey: e.IdempotencyKey, EventID: e.EventID, EventType: e.EventType,
		WorkspaceID: e.WorkspaceID, ContentClass: s.row.ContentClass,
	})
	if errors.Is(err, pgx.ErrNoRows) {
		return true, nil
	}
	if err != nil {
		return false, fmt.Errorf("%w: %w", errKey, err)
	}
	return false, nil
}

// recordElsewhere records failures in another transaction, when theirs is lost. What other handlers did is undone: they
// are unhandled again, without a failure. If another worker has claimed the row since, nothing is recorded.
func (s *singleRun) recordElsewhere(ctx context.Context, unhandled []events.Registration,
	failures map[string]Failure) error {
	s.tx.End() // releases the row's lock
	other, err := Begin(ctx, s.tx.consumer, nil)
	if err != nil {
		return err
	}
	defer other.End()
	if err := s.record(ctx, other, Decide(s.row.Failures, unhandled, failures)); err != nil {
		return err
	}
	if err := other.Commit(ctx); err != nil {
		return err
	}
	s.tx.Settled = other.Settled
	return nil
}

// record writes a decision in t, unless another worker has claimed the row since.
func (s *singleRun) record(ctx context.Context, t *Tx, d Decision) error {
	s.unhold()
	held, err := Record(ctx, t, s.row, d)
	if err == nil && !held {
		t.consumer.Log.WarnContext(ctx, "a failure was not recorded: another worker has claimed the event since",
			pgtx.LogEventID, s.row.Envelope.EventID)
	}
	return err
}
