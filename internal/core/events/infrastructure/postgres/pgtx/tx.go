package pgtx

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgerrcode"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Tx is a transaction that [Begin] made. Statements that are queued, BEGIN first, share a round trip with the next
// Query, QueryRow or Commit. Before an Exec, a handler's statement, or one that this connection has not prepared yet,
// they are sent in a separate one. Not safe for concurrent use.
type Tx struct {
	pool   *pgxpool.Pool
	conn   *pgxpool.Conn
	queued *pgx.Batch
	own    int // how many statements Begin queued
	begun  bool
	actor  actor // as it is once the queue is sent; zero: unknown
	wanted actor // by the next statement
}

type actor struct {
	role      string
	workspace uuid.NullUUID
}

// Act sets the role and workspace of the statements that follow. The change is sent with the first of them; without
// one, nothing is sent.
func (t *Tx) Act(role string, workspace uuid.NullUUID) { t.wanted = actor{role, workspace} }

// forgetActor is called after statements that may have changed the role, or went back to an earlier one.
func (t *Tx) forgetActor() { t.actor, t.wanted = actor{}, actor{} }

func (t *Tx) queueActor() {
	if t.wanted == t.actor {
		return
	}
	t.actor = t.wanted
	t.queued.Queue(fmt.Sprintf(roleSettings, "$1", "$2"), t.actor.role, WorkspaceText(t.actor.workspace))
}

// Queue queues a statement. If the server refuses it, the next statement or Commit returns that error, and the server
// runs nothing that was queued after it. An error of the function that reads its result is returned too, but stops
// nothing: what follows has been sent, perhaps COMMIT.
func (t *Tx) Queue(sql string, args ...any) *pgx.QueuedQuery {
	t.queueActor()
	return t.queued.Queue(sql, args...)
}

// Ended reports whether the transaction was begun, and has been committed or rolled back.
func (t *Tx) Ended() bool { return t.begun && t.conn.Conn().PgConn().TxStatus() == 'I' }

// Flush sends what is queued.
func (t *Tx) Flush(ctx context.Context) error {
	if t.queueActor(); t.queued.Len() == 0 {
		return nil
	}
	results, err := t.send(ctx, 0)
	if err != nil {
		return err
	}
	return t.checked(results.Close())
}

// send sends what is queued, and reads all results but those of the last statements, of which the caller reads so many.
// What it cannot begin to send stays queued.
func (t *Tx) send(ctx context.Context, last int) (pgx.BatchResults, error) {
	if err := t.Ready(ctx); err != nil {
		return nil, err
	}
	batch := t.queued
	t.queued = &pgx.Batch{}
	results := t.conn.Conn().SendBatch(ctx, batch)
	for i, query := range batch.QueuedQueries[:batch.Len()-last] {
		var err error
		if query.Fn != nil {
			err = query.Fn(results)
		} else {
			_, err = results.Exec()
		}
		if err != nil {
			_, answered := errors.AsType[*pgconn.PgError](err)
			unanswered := !answered && t.conn.Conn().IsClosed()
			_ = results.Close()
			switch rest := batch.QueuedQueries[i+1:]; {
			case unanswered && len(rest) > 0 && rest[len(rest)-1].SQL == commit:
				return nil, committed(pgconn.CommandTag{}, err)
			case !t.begun:
				return nil, t.notBegun(err)
			}
			return nil, t.checked(err)
		}
		t.begun = true
	}
	return results, nil
}

// Ready returns an error if nothing can be sent now: ctx is done, rows are open, or the transaction is aborted.
func (t *Tx) Ready(ctx context.Context) error {
	switch pg := t.conn.Conn().PgConn(); {
	case ctx.Err() != nil:
		return ctx.Err()
	case pg.IsBusy():
		return errBusy
	case pg.TxStatus() == 'E':
		return errAborted
	}
	return nil
}

var (
	errBusy = errors.New("conn busy: the rows of an earlier query are still open, or another goroutine uses the " +
		"transaction")
	// errAborted is what the server would say.
	errAborted = &pgconn.PgError{Code: pgerrcode.InFailedSQLTransaction, Severity: "ERROR",
		Message: "current transaction is aborted: a statement has failed before"}
)

// checked closes the connection after an error that left the transaction able to commit, without what was queued.
func (t *Tx) checked(err error) error {
	if err != nil && t.conn.Conn().PgConn().TxStatus() == 'T' {
		CloseBeforeRelease(t.conn)
	}
	return err
}

// notBegun closes the connection after a BEGIN that failed, so that no other caller gets it. If the server cannot be
// written to, it also empties the pool, so that new connections follow the address.
func (t *Tx) notBegun(err error) error {
	CloseBeforeRelease(t.conn)
	if readOnlyServer(err) {
		t.pool.Reset()
		err = fmt.Errorf("%w (%w)", ErrStandby, err)
	}
	return fmt.Errorf("begin: %w", err)
}

// RollbackTo rolls back to a savepoint and releases it.
func (t *Tx) RollbackTo(ctx context.Context, savepoint string) error {
	t.forgetActor()
	_, err := t.Exec(ctx, "rollback to savepoint "+savepoint+"; release savepoint "+savepoint)
	return err
}

// Exec runs a text, which without arguments may hold several statements.
func (t *Tx) Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error) {
	if err := t.Flush(ctx); err != nil {
		return pgconn.CommandTag{}, err
	}
	return t.conn.Exec(ctx, sql, args...)
}

// Query runs a statement, together with what is queued. It then stays prepared for as long as the connection lasts: of
// texts that are composed at run time there are too many for that, so before those Flush is called.
func (t *Tx) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	if t.queueActor(); t.queued.Len() > 0 {
		if err := t.prepare(ctx, sql); err != nil {
			return nil, err
		}
	}
	if t.queued.Len() == 0 {
		return t.conn.Query(ctx, sql, args...)
	}
	t.Queue(sql, args...)
	results, err := t.send(ctx, 1)
	if err != nil {
		return nil, err
	}
	rows, err := results.Query()
	if err != nil {
		_ = results.Close()
		return nil, t.checked(err)
	}
	return &lastRows{rows, results}, nil
}

// QueryRow is Query for one row.
func (t *Tx) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	rows, err := t.Query(ctx, sql, args...)
	return oneRow{rows, err}
}

// preparedKey holds the texts that Tx have prepared on a connection. Only direct connections have it, whose session has
// the settings of [Begin].
const preparedKey = "spectral: prepared"

func preparedOn(conn *pgxpool.Conn) (statements map[string]bool, direct bool) {
	statements, direct = conn.Conn().PgConn().CustomData()[preparedKey].(map[string]bool)
	return statements, direct
}

// prepare prepares a statement until the connection closes. It sends what is queued first: the login alone may not use
// the schemas that the statement names.
func (t *Tx) prepare(ctx context.Context, sql string) error {
	known, direct := preparedOn(t.conn)
	if known[sql] || !direct {
		return nil
	}
	err := t.Flush(ctx)
	if err == nil {
		_, err = t.conn.Conn().Prepare(ctx, sql, sql)
	}
	if err == nil {
		known[sql] = true
	}
	return err
}

// Forget makes the driver forget its prepared statements, which a handler may have deallocated.
func (t *Tx) Forget(ctx context.Context) error {
	if known, direct := preparedOn(t.conn); direct {
		clear(known)
	}
	return t.conn.Conn().DeallocateAll(ctx)
}

const commit = "commit"

// Commit sends what is queued with COMMIT. Without any statement it does nothing. If the answer to that message is
// lost, the error is that of the commit: the server may have committed.
func (t *Tx) Commit(ctx context.Context) error {
	if !t.begun && t.queued.Len() == t.own {
		return nil
	}
	t.wanted = t.actor // no statement follows
	if t.queued.Len() == 0 {
		return committed(t.conn.Exec(ctx, commit))
	}
	t.queued.Queue(commit).Fn = func(results pgx.BatchResults) error { return committed(results.Exec()) }
	return t.Flush(ctx)
}

// committed returns the error of a COMMIT, which the server answers with ROLLBACK if a statement had failed.
func committed(tag pgconn.CommandTag, err error) error {
	if err == nil && tag.String() == "ROLLBACK" {
		err = pgx.ErrTxCommitRollback
	}
	if err != nil {
		return fmt.Errorf("commit: %w", err)
	}
	return nil
}

// Rollback rolls t back, whatever its state. After a commit it does nothing.
func (t *Tx) Rollback() {
	conn := t.conn.Conn()
	t.queued, t.wanted = &pgx.Batch{}, t.actor
	if conn.IsClosed() || conn.PgConn().TxStatus() == 'I' {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), RollbackTimeout)
	defer cancel()
	if _, err := conn.Exec(ctx, "rollback"); err != nil {
		_ = conn.Close(ctx)
	}
}

// lastRows are the rows of the last statement of a batch.
type lastRows struct {
	pgx.Rows
	results pgx.BatchResults
}

// Close implements [pgx.Rows].
func (r *lastRows) Close() {
	r.Rows.Close()
	_ = r.results.Close() // its error is that of the rows
}

// Next implements [pgx.Rows].
func (r *lastRows) Next() bool {
	more := r.Rows.Next()
	if !more {
		r.Close()
	}
	return more
}

type oneRow struct {
	rows pgx.Rows
	err  error
}

// Scan implements [pgx.Row].
func (r oneRow) Scan(dest ...any) error {
	if r.err != nil {
		return r.err
	}
	defer r.rows.Close()
	if !r.rows.Next() {
		return cmp.Or(r.rows.Err(), pgx.ErrNoRows)
	}
	if err := r.rows.Scan(dest...); err != nil {
		return err
	}
	r.rows.Close()
	return r.rows.Err()
}
