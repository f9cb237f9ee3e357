package lease

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"spectral/internal/core/events/infrastructure/postgres/coredb"
	"spectral/internal/core/events/infrastructure/postgres/dispatch"
	"spectral/internal/core/events/infrastructure/postgres/pgtx"
)

var (
	errLost      = errors.New("the lease is lost, or its event is settled already")
	errNoTime    = errors.New("the worker stops, and there was no time to settle it")
	errRowLocked = errors.New("another transaction has locked the row")
)

// lease is a row that is in flight with this process, until it is settled, released or lost.
type lease struct {
	row     dispatch.Row
	handled []string                // handlers that need not run
	cancel  context.CancelCauseFunc // ends the work on it
	renewed time.Time               // when its latest renewal was sent; under the dispatcher's lock
}

// logError returns the attributes of an error of settling l.
func (l *lease) logError(err error) []any {
	return append(pgtx.LogError(err), pgtx.LogEventID, l.row.Envelope.EventID, pgtx.LogEventType, l.row.Envelope.EventType)
}

func rowsOf(leases []*lease) []dispatch.Row {
	rows := make([]dispatch.Row, len(leases))
	for i, l := range leases {
		rows[i] = l.row
	}
	return rows
}

func tokensOf(rows []dispatch.Row) []uuid.UUID {
	tokens := make([]uuid.UUID, len(rows))
	for i, row := range rows {
		tokens[i] = row.Token
	}
	return tokens
}

// renew renews leases, and returns for each token whether it holds a lease; nothing for a row that is locked. It
// records handlers as running; an empty name leaves what is recorded. It uses the journal's connections: a pool that is
// used up must not cost the leases.
func renew(ctx context.Context, c *dispatch.Consumer, all []*lease, handlers []string) (map[uuid.UUID]bool, error) {
	ctx, cancel := context.WithTimeout(ctx, min(max(c.Subscription.Lease/3, pgtx.MinRenewal), pgtx.StatementTimeout))
	defer cancel()
	held := make(map[uuid.UUID]bool, len(all))
	err := c.Journal.InTx(ctx, func(tx pgx.Tx) error {
		return renewRows(ctx, coredb.New(tx), rowsOf(all), handlers, held)
	})
	if err != nil {
		return nil, fmt.Errorf("renew leases of %s: %w", c.Subscription.EventType, err)
	}
	return held, nil
}

// renewRows renews the leases of rows, which stay locked until the transaction ends, and sets in held which of them
// hold.
func renewRows(ctx context.Context, queries *coredb.Queries, rows []dispatch.Row, handlers []string,
	held map[uuid.UUID]bool) error {
	ids, times := dispatch.Keys(rows)
	found, err := queries.Heartbeat(ctx, coredb.HeartbeatParams{
		Ids: ids, OccurredAts: times, Tokens: tokensOf(rows), Handlers: handlers,
	})
	for _, f := range found {
		held[f.Token] = f.Held
	}
	return err
}

// release gives leases back as if they had never been claimed, and returns the tokens of those it gave back. Rows that
// are locked, perhaps by a COMMIT whose answer was lost, stay in flight.
func release(ctx context.Context, c *dispatch.Consumer, all []*lease) (tokens []uuid.UUID, err error) {
	rows := rowsOf(all)
	ids, times := dispatch.Keys(rows)
	err = c.Journal.InTx(ctx, func(tx pgx.Tx) (err error) {
		tokens, err = coredb.New(tx).Release(ctx, coredb.ReleaseParams{Ids: ids, OccurredAts: times, Tokens: tokensOf(rows)})
		return err
	})
	return tokens, err
}
