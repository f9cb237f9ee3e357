package notify

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgerrcode"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"spectral/internal/core/events/infrastructure/postgres/coredb"
	"spectral/internal/core/events/infrastructure/postgres/pgtx"
)

// listenConn is the process's LISTEN connection, used by one goroutine. Of a notification it keeps only that it came: a
// flood of payloads would fill the memory, and they are never trusted.
type listenConn struct {
	notifier *Notifier
	conn     *pgx.Conn
	queries  *coredb.Queries
	standby  string // what the server reported at the connect

	notified   bool // since await last reported it
	tested     bool // the self-test was received
	answeredAt time.Time
	testAt     time.Time // when the next self-test is due
}

func dial(ctx context.Context, n *Notifier) (*listenConn, error) {
	ctx, cancel := context.WithTimeout(ctx, pgtx.StatementTimeout)
	defer cancel()
	l := &listenConn{notifier: n}
	config := n.config.Direct.Copy()
	config.OnNotification = func(_ *pgconn.PgConn, received *pgconn.Notification) {
		l.tested = l.tested || received.Channel == n.testing
		l.notified = l.notified || slices.Contains(n.config.Channels, received.Channel)
	}
	conn, err := pgx.ConnectConfig(ctx, config)
	if err != nil {
		return nil, fmt.Errorf("connect to listen: %w", err)
	}
	l.conn, l.queries = conn, coredb.New(conn)
	l.standby = conn.PgConn().ParameterStatus(pgtx.StandbyParameter)
	return l, nil
}

// open listens, after a self-test: until that was received, the session may be a pooler's, and is not changed.
func (l *listenConn) open(ctx context.Context) error {
	testing := pgx.Identifier{l.notifier.testing}.Sanitize()
	if err := l.exec(ctx, "listen to self-tests", "listen "+testing); err != nil {
		return err
	}
	if err := l.selfTest(ctx); err != nil {
		if errors.Is(err, errNotificationsLost) { // a pooler gives the connection to others
			_ = l.exec(ctx, "unlisten", "unlisten "+testing)
		}
		return err
	}
	sql := fmt.Sprintf("set idle_session_timeout = %d; set tcp_user_timeout = %[1]d; set statement_timeout = %d; set "+
		"default_transaction_read_only = off; set default_transaction_isolation = 'read committed'; set lock_timeout = "+
		"0; set idle_in_transaction_session_timeout = 0; %sset role %s",
		pgtx.ListenIdleTimeout.Milliseconds(), pgtx.StatementTimeout.Milliseconds(),
		pgtx.NoTransactionTimeout("set", l.conn.PgConn()), pgx.Identifier{pgtx.WorkerRole}.Sanitize())
	sql += fmt.Sprintf("; select core.listen('{%s}')", strings.Join(l.notifier.config.Channels, ","))
	return l.exec(ctx, "listen", sql)
}

// ask runs a statement, bounds it and notes that it was answered.
func (l *listenConn) ask(ctx context.Context, what string, statement func(context.Context) error) error {
	bounded, cancel := pgtx.WithAnswer(ctx, pgtx.AnswerTimeout)
	defer cancel()
	switch err := statement(bounded); {
	case err != nil && bounded.Err() != nil && ctx.Err() == nil:
		return fmt.Errorf("%s: no answer within %s: %w", what, pgtx.AnswerTimeout, err)
	case err != nil:
		return fmt.Errorf("%s: %w", what, err)
	}
	l.answeredAt = time.Now()
	if status := l.conn.PgConn().ParameterStatus(pgtx.StandbyParameter); status != l.standby && status == "on" {
		return fmt.Errorf("%s: %w", what, pgtx.ErrStandby)
	}
	return nil
}

func (l *listenConn) exec(ctx context.Context, what, sql string) error {
	return l.ask(ctx, what, func(ctx context.Context) error {
		_, err := l.conn.PgConn().Exec(ctx, sql).ReadAll()
		return err
	})
}

func (l *listenConn) ping(ctx context.Context) error { return l.ask(ctx, "ping", l.conn.Ping) }

// idle waits for a notification or the end of d, and reports whether one came. It pings and makes self-tests while it
// waits.
func (l *listenConn) idle(ctx context.Context, d time.Duration) (notified bool, err error) {
	until := time.Now().Add(d)
	for {
		if !time.Now().Before(l.testAt) {
			if err := l.ping(ctx); err != nil {
				return false, err
			}
			if err := l.selfTest(ctx); err != nil {
				return false, err
			}
		}
		ping := time.Until(l.answeredAt.Add(pgtx.PingInterval))
		if left := time.Until(until); left-ping < pgtx.PingSlack {
			ping = left // the next statement pings as well
		}
		notified, err := l.await(ctx, min(ping, time.Until(l.testAt)))
		now := time.Now()
		if notified || err != nil || !now.Before(until) {
			return notified, err
		}
		if now.Before(l.testAt) {
			if err := l.ping(ctx); err != nil {
				return false, err
			}
		}
	}
}

// await waits for a notification or the end of d, and reports whether one came since the last await. Many count as one.
func (l *listenConn) await(ctx context.Context, d time.Duration) (notified bool, err error) {
	defer func() { l.notified = false }()
	wait, cancel := context.WithTimeout(ctx, max(d, 0))
	defer cancel()
	err = l.receive(wait, func() bool { return l.notified })
	if ctx.Err() != nil {
		return false, ctx.Err()
	}
	return l.notified, err
}

// receive takes notifications in until enough says so or ctx is done, which is no error.
func (l *listenConn) receive(ctx context.Context, enough func() bool) error {
	for !enough() {
		err := l.conn.PgConn().WaitForNotification(ctx)
		switch {
		case err == nil:
		case ctx.Err() != nil && !l.conn.IsClosed():
			return nil
		default:
			return fmt.Errorf("wait for notifications: %w", err)
		}
	}
	return nil
}

// selfTest proves that notifications arrive, by one that the pool sends. It counts only if it arrives while nothing
// else is asked: a transaction pooler accepts LISTEN, and delivers nothing by itself. A test that could not be made is
// no error.
func (l *listenConn) selfTest(ctx context.Context) error {
	n := l.notifier
	l.tested = false
	l.testAt = time.Now().Add(pgtx.SelfTestInterval)
	sending, done := pgtx.WithAnswer(ctx, pgtx.SelfTestSend) // ctx may end while the answer is on its way
	sent := make(chan error, 1)
	n.sending.Go(func() { // by itself, for the pool may be slow to give up
		defer done()
		_, err := n.config.Pool.Exec(sending, "select pg_catalog.pg_notify('"+n.testing+"', '')")
		sent <- err
	})
	arrived := func() bool { return l.tested }
	if err := l.receive(sending, arrived); err != nil || l.tested {
		return err
	}
	unsent := true
	select {
	case err := <-sent:
		unsent = err != nil
	default:
	}
	if unsent {
		l.testAt = time.Now().Add(pgtx.SelfTestRetry)
		return ctx.Err()
	}
	arriving, cancel := context.WithTimeout(ctx, pgtx.SelfTestArrive)
	defer cancel()
	if err := l.receive(arriving, arrived); err != nil || l.tested || ctx.Err() != nil {
		return errors.Join(err, ctx.Err())
	}
	if err := l.ping(ctx); err != nil {
		return err // the connection is gone
	}
	return errNotificationsLost // even if one came with that answer, as a pooler may deliver it
}

var errNotificationsLost = errors.New("notifications do not arrive on the LISTEN connection, though it answers: " +
	"DATABASE_URL leads through a transaction pooler, or to another database than SPECTRAL_POOL_URL; let it lead " +
	"straight to Postgres, or to a pooler in session mode; until then events wait for the poll, and it is not noticed " +
	"when a worker dies")

// close ends the connection, and waits a moment for that: there should be one LISTEN connection at a time.
func (l *listenConn) close() {
	ctx, cancel := context.WithTimeout(context.Background(), pgtx.CloseListenTimeout)
	defer cancel()
	_ = l.conn.Close(ctx)
	select {
	case <-l.conn.PgConn().CleanupDone():
	case <-ctx.Done():
		_ = l.conn.PgConn().Conn().Close()
	}
}

// explain returns the error with what to do about it, where that is known, and its class and SQLSTATE, which tell one
// reason from another.
func explain(err error) (reason, class, code string) {
	if pg, ok := errors.AsType[*pgconn.PgError](err); ok {
		code = pg.Code
	}
	reason, class = pgtx.CleanText(err.Error(), pgtx.MaxErrorBytes), pgtx.ErrorClass(err)
	switch {
	case errors.Is(err, errNotificationsLost):
		class = "NotificationsLost"
	case errors.Is(err, pgtx.ErrStandby):
		class = "StandbyError"
	case code == pgerrcode.InvalidPassword, code == pgerrcode.InvalidAuthorizationSpecification:
		reason += "; check the user and password in DATABASE_URL, and pg_hba.conf"
	case code == pgerrcode.TooManyConnections:
		reason += "; raise max_connections or the connection limit of the role or database, or run fewer workers"
	case code == pgerrcode.InsufficientPrivilege:
		reason += "; grant " + pgtx.WorkerRole + " to the login of DATABASE_URL"
	case code == pgerrcode.ReadOnlySQLTransaction:
		reason += "; " + pgtx.ErrStandby.Error()
	}
	return reason, class, code
}
