package postgres

import (
	"context"
	"errors"
	"fmt"

	"github.com/google/uuid"

	"spectral/internal/core/events"
	"spectral/internal/core/events/infrastructure/postgres/coredb"
)

// batch runs the handlers of several rows without savepoints, which cost every session once a
// transaction has many. Whatever fails undoes the batch; its rows then run one at a time.
func (d *dispatchTx) batch(ctx context.Context, rows []claimed, result *dispatchResult) error {
	err := d.tryBatch(ctx, rows)
	if err == nil {
		return nil
	}
	if ctx.Err() != nil {
		return fmt.Errorf("stopped in a batch: %w", ctx.Err())
	}
	if _, ok := errors.AsType[*journalError](err); ok {
		return err
	}
	d.settled = nil
	class := classify(err, 0).class
	result.undone, result.left, result.deadlock, result.lost = true, result.rows, class == deadlockClass, d.lost()
	if result.lost {
		d.log.WarnContext(ctx, "connection lost in a batch, no attempt counted", logEventType, d.subscription.EventType,
			logRows, len(rows), logErrorClass, class, logReason, err.Error())
	}
	d.log.DebugContext(ctx, "batch undone, its rows run one at a time",
		logEventType, d.subscription.EventType, logRows, len(rows), logErrorClass, class)
	return nil
}

func (d *dispatchTx) tryBatch(ctx context.Context, rows []claimed) error {
	d.noteDown(ctx, rows, false)
	var keys coredb.ClaimKeysParams
	runs := make(map[handlerKey]int) // the row that runs for a key: twins in one batch concede to the first
	for i, row := range rows {
		e := row.envelope
		for _, r := range d.handlersOf(e) {
			key := handlerKey{r.Name, e.IdempotencyKey}
			if _, twin := runs[key]; twin {
				continue
			}
			runs[key] = i
			keys.HandlerNames = append(keys.HandlerNames, r.Name)
			keys.IdempotencyKeys = append(keys.IdempotencyKeys, e.IdempotencyKey)
			keys.EventIds = append(keys.EventIds, e.EventID)
			keys.EventTypes = append(keys.EventTypes, e.EventType)
			keys.WorkspaceIds = append(keys.WorkspaceIds, e.WorkspaceID.UUID)
			keys.ContentClasses = append(keys.ContentClasses, row.contentClass)
		}
	}
	won, err := d.claimKeys(ctx, keys)
	if err != nil {
		return err
	}
	started := d.now()
	for _, r := range d.handlers {
		for _, group := range byWorkspace(rows, func(i int) bool {
			key := handlerKey{r.Name, rows[i].envelope.IdempotencyKey}
			first, ok := runs[key]
			return ok && first == i && won[key]
		}) {
			if err := d.call(ctx, r, group); err != nil {
				return err
			}
			if d.changed {
				return errSessionChanged
			}
		}
	}
	if err := d.exec(ctx, actAs(workerRole, noWorkspace)); err != nil {
		return fmt.Errorf("a handler returned nil but left the transaction unusable: %w", err)
	}
	if err := d.deliver(ctx, rows); err != nil {
		return err
	}
	if err := d.commit(ctx); err != nil {
		return err
	}
	for _, row := range rows {
		for _, r := range d.handlersOf(row.envelope) {
			d.logHandled(ctx, r, row, started, nil)
		}
	}
	return nil
}

// handlerKey is the primary key of core.event_handled.
type handlerKey struct{ handler, key string }

// claimKeys claims dedup keys and returns those that were free.
func (d *dispatchTx) claimKeys(ctx context.Context, keys coredb.ClaimKeysParams) (map[handlerKey]bool, error) {
	ctx, cancel := context.WithTimeout(ctx, statementTimeout)
	defer cancel()
	rows, err := d.queries.ClaimKeys(ctx, keys)
	if err != nil {
		return nil, &keyError{err}
	}
	won := make(map[handlerKey]bool, len(rows))
	for _, row := range rows {
		won[handlerKey{row.HandlerName, row.IdempotencyKey}] = true
	}
	return won, nil
}

// byWorkspace groups the envelopes of the wanted rows by workspace, each group and the groups in the order
// of the rows.
func byWorkspace(rows []claimed, wanted func(i int) bool) [][]events.Envelope {
	var groups [][]events.Envelope
	place := make(map[uuid.NullUUID]int)
	for n, row := range rows {
		e := row.envelope
		if !wanted(n) {
			continue
		}
		i, ok := place[e.WorkspaceID]
		if !ok {
			i = len(groups)
			place[e.WorkspaceID] = i
			groups = append(groups, nil)
		}
		groups[i] = append(groups[i], e)
	}
	return groups
}
