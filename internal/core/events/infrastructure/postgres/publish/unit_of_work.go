package publish

import (
	"context"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"spectral/internal/core/events"
	"spectral/internal/core/events/infrastructure/postgres/pgtx"
)

// UnitOfWork runs business transactions on a pool. Safe for concurrent use.
type UnitOfWork struct {
	Pool       *pgxpool.Pool
	Publishing Publishing
}

// Do calls work in a transaction that runs as scope's database role, sees the rows of workspace and can publish. It
// commits if work returns nil. An error, a panic or runtime.Goexit rolls everything back, published events included.
// Work must not keep the Tx.
//
// Events are sent before the next statement, or together with COMMIT. If the database refuses one, that statement or Do
// returns the error.
//
// After an error of the commit the outcome is unknown: the server may have committed, and its answer been lost.
func (u *UnitOfWork) Do(ctx context.Context, scope events.Scope, workspace uuid.NullUUID,
	work func(events.Tx, events.PublisherFor) error) error {
	role, err := pgtx.ContextRole(scope)
	if err != nil {
		return err
	}
	conn, tx, err := pgtx.Begin(ctx, u.Pool, role, workspace, pgtx.IdleTimeout)
	if err != nil {
		return fmt.Errorf("unit of work: %w", err)
	}
	defer conn.Release()
	h := pgtx.NewHandlerTx(tx, false)
	defer func() { // after an error, a panic or Goexit it undoes everything; after a commit nothing
		inUse, left := h.Revoke()
		if inUse {
			_ = conn.Hijack().PgConn().Conn().Close() // the socket only: that is safe while a query runs
			return
		}
		tx.Rollback()
		if left == pgtx.SessionState {
			pgtx.CloseBeforeRelease(conn)
		}
	}()
	publisherFor := func(options ...events.PublishOption) events.EventPublisher {
		return u.Publishing.publisher(h, h.QueueRow, options)
	}
	if err := work(h, publisherFor); err != nil {
		return err
	}
	if inUse, _ := h.Revoke(); inUse {
		return fmt.Errorf("unit of work: %w", pgtx.ErrTxInUse)
	}
	if tx.Ended() {
		return fmt.Errorf("unit of work: %w", pgtx.ErrTxEnded)
	}
	return tx.Commit(ctx)
}
