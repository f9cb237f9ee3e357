package postgres

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"spectral/internal/core/events"
)

// rollbackTimeout bounds giving up a transaction whose own context may be over.
const rollbackTimeout = 5 * time.Second

// UnitOfWork runs business transactions on a pool. Safe for concurrent use.
type UnitOfWork struct {
	Pool       *pgxpool.Pool
	Publishing Publishing
}

// Do calls work in a transaction that acts as scope's own database role and sees the rows of
// workspace, with a way to publish in it. It commits when work returns nil; an error, a panic or
// runtime.Goexit rolls back everything, the published events included. Work must not keep the Tx.
//
// After an error of the commit itself the outcome is unknown: the server may have committed and
// the answer been lost.
func (u *UnitOfWork) Do(ctx context.Context, scope events.Scope, workspace uuid.NullUUID, work func(events.Tx, events.PublisherFor) error) error {
	role, err := scopeRole(scope)
	if err != nil {
		return err
	}
	conn, err := u.Pool.Acquire(ctx)
	if err != nil {
		return fmt.Errorf("unit of work: connect: %w", err)
	}
	defer conn.Release()
	tx, err := beginAs(ctx, u.Pool, conn, actor{role: role, workspace: workspace})
	if err != nil {
		return fmt.Errorf("unit of work: %w", err)
	}
	h := &handlerTx{tx: tx}
	defer func() { // after a commit this does nothing; after an error, a panic or Goexit it undoes everything
		if h.revoke() {
			_ = conn.Hijack().PgConn().Conn().Close() // the socket: safe beside a running query
			return
		}
		rollback(tx)
		if h.state == sessionState {
			closeBeforeRelease(conn)
		}
	}()
	publisherFor := func(options ...events.PublishOption) events.EventPublisher {
		return u.Publishing.Publisher(h, options...)
	}
	if err := work(h, publisherFor); err != nil {
		return err
	}
	if h.revoke() {
		return fmt.Errorf("unit of work: %w", errTxInUse)
	}
	if conn.Conn().PgConn().TxStatus() == 'I' {
		return fmt.Errorf("unit of work: %w", errTxEnded)
	}
	if err := tx.Commit(ctx); err != nil {
		return fmt.Errorf("unit of work: commit: %w", err)
	}
	return nil
}
