package pgtx

import (
	"cmp"
	"context"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Tx is a transaction that [Begin] made. What is queued, BEGIN first, goes to the server with the next statement, in
// one round trip. Not safe for concurrent use.
type Tx struct {
	pool   *pgxpool.Pool
	conn   *pgxpool.Conn
	queued *pgx.Batch
	own    int // how many of the first statements are those of Begin
	begun  bool
	acting actor  // as set by what is sent and queued; zero: unknown
	next   *actor // is set before the next statement; nil: as acting
}

type actor struct {
	role      string
	workspace uuid.NullUUID
}

// Act has the statements that follow run as role, for workspace. If there are none, nothing is sent.
func (t *Tx) Act(role string, workspace uuid.NullUUID) {
	t.next = &actor{role, workspace}
	if *t.next == t.acting {
		t.next = nil
	}
}

// forgetActor is called after statements that may have changed the role, or went back to an earlier one.
func (t *Tx) forgetActor() { t.acting = actor{} }

// Queue queues a statement. If it fails, or the function set for its result does, the next statement returns that error
// and is not run, and neither is a COMMIT.
func (t *Tx) Queue(sql string, args ...any) *pgx.QueuedQuery {
	t.queueActor()
	return t.queued.Queue(sql, args...)
}

func (t *Tx) queueActor() {
	if t.next == nil {
		return
	}
	t.acting, t.next = *t.next, nil
	t.queued.Queue(fmt.Sprintf(roleSettings, "$1", "$2"), t.acting.role, WorkspaceText(t.acting.workspace))
}

// Begun reports whether the server has begun the transaction.
func (t *Tx) Begun() bool { return t.begun }

// Flush sends what is queued.
func (t *Tx) Flush(ctx context.Context) error {
	t.queueActor()
	if t.queued.Len() == 0 {
		return nil
	}
	results, err := t.send(ctx, 0)
	if err != nil {
		return err
	}
	return results.Close()
}

// send sends what is queued, and reads the results but the last ones. Where BEGIN fails, and everything with it, the
// connection is closed, so that no other caller gets it. A server that cannot be written to also empties the pool, so
// that new connections follow the address.
func (t *Tx) send(ctx context.Context, last int) (pgx.BatchResults, error) {
	batch := t.queued
	t.queued = &pgx.Batch{}
	results := t.conn.Conn().SendBatch(ctx, batch)
	for _, query := range batch.QueuedQueries[:batch.Len()-last] {
		var err error
		if query.Fn != nil {
			err = query.Fn(results)
		} else {
			_, err = results.Exec()
		}
		switch {
		case err == nil:
			t.begun = true
			continue
		case t.begun:
			_ = results.Close()
			return nil, err
		}
		_ = results.Close()
		return nil, t.notBegun(err)
	}
	return results, nil
}

func (t *Tx) notBegun(err error) error {
	CloseBeforeRelease(t.conn)
	if readOnlyServer(err) {
		t.pool.Reset()
		err = fmt.Errorf("%w (%w)", ErrStandby, err)
	}
	return fmt.Errorf("begin: %w", err)
}

// Forget makes the driver forget its prepared statements, which a handler may have deallocated.
func (t *Tx) Forget(ctx context.Context) error {
	if known, direct := t.conn.Conn().PgConn().CustomData()[prepared].(map[string]bool); direct {
		clear(known)
	}
	return t.conn.Conn().DeallocateAll(ctx)
}

// RollbackTo rolls back to a savepoint and releases it.
func (t *Tx) RollbackTo(ctx context.Context, savepoint string) error {
	t.next = nil
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

// Query runs a statement. One of the adapter's own, whose arguments have numbers, goes with what is queued.
func (t *Tx) Query(ctx context.Context, sql string, args ...any) (rows pgx.Rows, err error) {
	if len(args) > 0 && isNamed(args[0]) {
		err = t.Flush(ctx)
	} else {
		err = t.prepare(ctx, sql)
	}
	if err != nil {
		return nil, err
	}
	if t.queueActor(); t.queued.Len() == 0 {
		return t.conn.Query(ctx, sql, args...)
	}
	t.Queue(sql, args...)
	results, err := t.send(ctx, 1)
	if err != nil {
		return nil, err
	}
	rows, err = results.Query()
	if err != nil {
		_ = results.Close()
		return nil, err
	}
	return &lastRows{rows, results}, nil
}

// QueryRow is Query for one row.
func (t *Tx) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	rows, err := t.Query(ctx, sql, args...)
	return oneRow{rows, err}
}

func isNamed(arg any) bool {
	_, named := arg.(pgx.QueryRewriter)
	return named
}

// prepare prepares one of the adapter's own statements, whose number is limited, for good. Only the role may do it, so
// what is queued goes first.
func (t *Tx) prepare(ctx context.Context, sql string) error {
	known, direct := t.conn.Conn().PgConn().CustomData()[prepared].(map[string]bool)
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

// Commit sends what is queued with COMMIT. Without any statement it does nothing.
func (t *Tx) Commit(ctx context.Context) error {
	if !t.begun && t.queued.Len() == t.own {
		return nil
	}
	if t.queued.Len() == 0 {
		return committed(t.conn.Exec(ctx, "commit"))
	}
	t.Queue("commit").Fn = func(results pgx.BatchResults) error { return committed(results.Exec()) }
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
	t.queued, t.next = &pgx.Batch{}, nil
	if conn.IsClosed() || conn.PgConn().TxStatus() == 'I' {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), RollbackTimeout)
	defer cancel()
	if _, err := conn.Exec(ctx, "rollback"); err != nil {
		_ = conn.Close(ctx)
	}
}

// prepared is where a direct connection keeps which statements of a Tx it has prepared.
const prepared = "spectral: prepared"

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
