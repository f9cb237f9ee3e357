package postgres

import (
	"context"
	"errors"
	"fmt"
	"time"

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
	if errors.Is(err, errJournal) {
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

// firstCommitLimit bounds the COMMIT of a batch: most that are slow end by then, and others wait for it.
const firstCommitLimit = 3 * batchTime

func (d *dispatchTx) tryBatch(ctx context.Context, rows []claimed) error {
	d.shared = true
	d.noteDown(ctx, rows)
	var keys keyClaims
	for i, row := range rows {
		for _, r := range d.handlersOf(row.envelope) {
			keys.add(r, row, i)
		}
	}
	if err := d.claimKeys(ctx, &keys); err != nil {
		return err
	}
	started := time.Now()
	for _, r := range d.handlers {
		for _, group := range byWorkspace(rows, func(i int) bool { return keys.runs(r, rows[i], i) }) {
			if err := d.call(ctx, r, group); err != nil {
				return err
			}
		}
	}
	if err := d.act(ctx, workerRole, noWorkspace); err != nil {
		return fmt.Errorf("a handler returned nil but left the transaction unusable: %w", err)
	}
	if err := d.deliver(ctx, rows); err != nil {
		return err
	}
	committing, cancel := context.WithTimeout(ctx, firstCommitLimit) // what is deferred to it may wait for others
	defer cancel()
	if err := d.commit(committing); err != nil {
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

// keyClaims are the dedup keys of a batch. Twins in it concede to the first.
type keyClaims struct {
	params coredb.ClaimKeysParams
	first  map[handlerKey]int  // the place in the batch of whoever would run for a key
	won    map[handlerKey]bool // those that were free
}

// runs reports whether the row at place runs for its key.
func (k *keyClaims) runs(r events.Registration, row claimed, place int) bool {
	key := handlerKey{r.Name, row.envelope.IdempotencyKey}
	first, ok := k.first[key]
	return ok && first == place && k.won[key]
}

func (k *keyClaims) add(r events.Registration, row claimed, place int) {
	e := row.envelope
	key := handlerKey{r.Name, e.IdempotencyKey}
	if _, twin := k.first[key]; twin {
		return
	}
	if k.first == nil {
		k.first = make(map[handlerKey]int)
	}
	k.first[key] = place
	k.params.HandlerNames = append(k.params.HandlerNames, r.Name)
	k.params.IdempotencyKeys = append(k.params.IdempotencyKeys, e.IdempotencyKey)
	k.params.EventIds = append(k.params.EventIds, e.EventID)
	k.params.EventTypes = append(k.params.EventTypes, e.EventType)
	k.params.WorkspaceIds = append(k.params.WorkspaceIds, e.WorkspaceID.UUID)
	k.params.ContentClasses = append(k.params.ContentClasses, row.contentClass)
}

// claimKeys claims dedup keys, and notes which of them were free.
func (d *dispatchTx) claimKeys(ctx context.Context, keys *keyClaims) error {
	ctx, cancel := context.WithTimeout(ctx, statementTimeout)
	defer cancel()
	rows, err := d.queries.ClaimKeys(ctx, keys.params)
	if err != nil {
		return fmt.Errorf("%w: %w", errKey, err)
	}
	keys.won = make(map[handlerKey]bool, len(rows))
	for _, row := range rows {
		keys.won[handlerKey{row.HandlerName, row.IdempotencyKey}] = true
	}
	return nil
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
