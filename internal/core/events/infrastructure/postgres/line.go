package postgres

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgerrcode"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"spectral/internal/core/events/infrastructure/postgres/coredb"
)

const (
	// A connection whose other end is silently gone is noticed within their sum, whatever the poll
	// interval. Every statement on the LISTEN connection has to be answered in time.
	pingEvery     = 5 * time.Second
	answerTimeout = 8 * time.Second
	// A ping is left out shortly before something else is asked.
	pingSlack = 500 * time.Millisecond

	// A self-test sends a notification through the pool and awaits it. One that could not be sent
	// proves nothing, and is repeated sooner.
	testEvery     = 45 * time.Second
	retestAfter   = 10 * time.Second
	notifyTimeout = 3 * time.Second
	arriveTimeout = 3 * time.Second

	// hangUpTimeout is how long a connection may take to close before its socket is.
	hangUpTimeout = 2 * time.Second

	// frozenAfter is when Postgres gives up a LISTEN connection on which nothing is asked any more,
	// or that takes nothing in: our process is frozen. It would hold back the notification queue of
	// all. The pings keep it away.
	frozenAfter = time.Minute
)

// line is the process's LISTEN connection. One goroutine uses it. Of a notification only the fact
// that it came is kept: what a flood of them carries would fill the memory.
type line struct {
	config   Config
	channels []string
	probe    string
	sending  *sync.WaitGroup // of the doorbell
	conn     *pgx.Conn
	queries  *coredb.Queries
	standby  string // what the server said of itself as we connected

	rang       bool // a notification has arrived since await last said so
	heard      bool // a self-test's notification has arrived
	answeredAt time.Time
	testAt     time.Time
}

// connect opens the LISTEN connection, in the order that matters: a self-test arrives before the session is changed,
// which may be a pooler's, and LISTEN is committed before the first look, for in the other order a row committed
// between the two would be seen by neither. It may take long; the poll goes on until then.
func (b *doorbell) connect(ctx context.Context) (l *line, err error) {
	begin, giveUp := context.WithCancel(ctx)
	defer giveUp()
	begun := make(chan struct{})
	go func() {
		defer close(begun)
		if l, err = b.dial(begin); err == nil {
			err = l.begin(begin)
		}
	}()
	since := b.lookedAt
	if since.IsZero() {
		since = time.Now() // the connection's look is to be the first
	}
	back, refused := b.pollUntil(begin, begun, since)
	for back && refused == nil {
		back, refused = b.pollUntil(begin, begun, b.lookedAt)
	}
	giveUp()
	<-begun
	if err = cmp.Or(refused, err); err == nil {
		err = b.journal.enroll(ctx, l.conn, time.Now())
	}
	if err != nil && l != nil {
		l.hangUp()
		l = nil
	}
	return l, err
}

func (l *line) begin(ctx context.Context) error {
	probe := pgx.Identifier{l.probe}.Sanitize()
	if err := l.exec(ctx, "listen to self-tests", "listen "+probe); err != nil {
		return err
	}
	if err := l.test(ctx); err != nil {
		if errors.Is(err, errDeaf) { // a pooler gives the connection to others
			_ = l.exec(ctx, "unlisten", "unlisten "+probe)
		}
		return err
	}
	return l.subscribe(ctx)
}

func (b *doorbell) dial(ctx context.Context) (*line, error) {
	ctx, cancel := context.WithTimeout(ctx, statementTimeout)
	defer cancel()
	l := &line{config: b.config, channels: b.channels, probe: b.probe, sending: &b.sending}
	config := b.config.Direct.Copy()
	config.OnNotification = func(_ *pgconn.PgConn, n *pgconn.Notification) {
		l.heard = l.heard || n.Channel == l.probe
		l.rang = l.rang || slices.Contains(l.channels, n.Channel)
	}
	conn, err := pgx.ConnectConfig(ctx, config)
	if err != nil {
		return nil, fmt.Errorf("connect to listen: %w", err)
	}
	l.conn, l.queries = conn, coredb.New(conn)
	l.standby = conn.PgConn().ParameterStatus(standbyParameter)
	return l, nil
}

// subscribe makes the session what we need, whatever the defaults of the login and the database,
// and listens.
func (l *line) subscribe(ctx context.Context) error {
	sql := fmt.Sprintf("set idle_session_timeout = %d; set tcp_user_timeout = %[1]d; set statement_timeout = %d; "+
		"set default_transaction_read_only = off; set default_transaction_isolation = 'read committed'; "+
		"set lock_timeout = 0; set idle_in_transaction_session_timeout = 0; %sset role %s",
		frozenAfter.Milliseconds(), statementTimeout.Milliseconds(), noTransactionTimeout("set", l.conn.PgConn()), pgx.Identifier{workerRole}.Sanitize())
	for _, channel := range l.channels {
		sql += "; listen " + pgx.Identifier{channel}.Sanitize()
	}
	return l.exec(ctx, "listen", sql)
}

// withAnswer bounds a statement. When ctx is done first, the server has a little time left to answer: a statement that is
// given up costs the session, and a worker without one looks dead.
func withAnswer(ctx context.Context, timeout time.Duration) (context.Context, context.CancelFunc) {
	asked, cancel := context.WithTimeout(context.WithoutCancel(ctx), timeout)
	stop := context.AfterFunc(ctx, func() { time.AfterFunc(leaveTimeout, cancel) })
	return asked, func() { stop(); cancel() }
}

// ask bounds a statement and notes that it was answered.
func (l *line) ask(ctx context.Context, what string, statement func(context.Context) error) error {
	asked, cancel := withAnswer(ctx, answerTimeout)
	defer cancel()
	switch err := statement(asked); {
	case err != nil && asked.Err() != nil && ctx.Err() == nil:
		return fmt.Errorf("%s: no answer within %s: %w", what, answerTimeout, err)
	case err != nil:
		return fmt.Errorf("%s: %w", what, err)
	}
	l.answeredAt = time.Now()
	if status := l.conn.PgConn().ParameterStatus(standbyParameter); status != l.standby && status == "on" {
		return fmt.Errorf("%s: %w", what, errStandby)
	}
	return nil
}

func (l *line) exec(ctx context.Context, what, sql string) error {
	return l.ask(ctx, what, func(ctx context.Context) error {
		_, err := l.conn.PgConn().Exec(ctx, sql).ReadAll()
		return err
	})
}

func (l *line) ping(ctx context.Context) error { return l.ask(ctx, "ping", l.conn.Ping) }

func (l *line) quiet(ctx context.Context) (quiet bool, err error) {
	err = l.ask(ctx, "ask whether producers are quiet", func(ctx context.Context) error {
		quiet, err = l.queries.Quiet(ctx, l.channels)
		return err
	})
	return quiet, err
}

// idle waits for a notification or the end of d, and reports whether it rang. Meanwhile it pings,
// and tests whether notifications arrive.
func (l *line) idle(ctx context.Context, d time.Duration) (rang bool, err error) {
	until := time.Now().Add(d)
	for {
		now := time.Now()
		ping := l.answeredAt.Add(pingEvery)
		if until.Sub(ping) < pingSlack {
			ping = until // what comes then is asked of the server anyway
		}
		switch {
		case !now.Before(l.testAt):
			// the test takes a while; the ping's time is counted from before it
			if err := l.ping(ctx); err != nil {
				return false, err
			}
			if err := l.test(ctx); err != nil {
				return false, err
			}
		case !now.Before(ping) && now.Before(until):
			if err := l.ping(ctx); err != nil {
				return false, err
			}
		}
		now = time.Now()
		if pinged := l.answeredAt.Add(pingEvery); pinged.After(ping) {
			ping = pinged
		}
		rang, err := l.await(ctx, min(until.Sub(now), l.testAt.Sub(now), ping.Sub(now)))
		if rang || err != nil {
			return rang, err
		}
		if !time.Now().Before(until) {
			return false, nil
		}
	}
}

// await waits for a notification or the end of d, and reports whether it rang, now or since the
// last await. All that have arrived count as one ring; what they carry is never trusted.
func (l *line) await(ctx context.Context, d time.Duration) (rang bool, err error) {
	defer func() { l.rang = false }()
	wait, cancel := context.WithTimeout(ctx, max(d, 0))
	defer cancel()
	err = l.listen(wait, func() bool { return l.rang })
	if ctx.Err() != nil {
		return false, ctx.Err()
	}
	return l.rang, err
}

// listen takes notifications in until enough, or ctx is done, which is no error.
func (l *line) listen(ctx context.Context, enough func() bool) error {
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

// test proves that notifications arrive, with one of our own that comes from another connection. It counts only if it
// arrives while nothing else is asked: a transaction pooler takes LISTEN and delivers nothing by itself. A test that
// could not be made is no error.
func (l *line) test(ctx context.Context) error {
	l.heard = false
	l.testAt = time.Now().Add(testEvery)
	sending, done := withAnswer(ctx, notifyTimeout) // connect ends ctx while the answer may be on its way
	sent := make(chan error, 1)
	l.sending.Go(func() { // the pool may be slow to give up; the doorbell must not be
		defer done()
		_, err := l.config.Pool.Exec(sending, "select pg_catalog.pg_notify('"+l.probe+"', '')")
		sent <- err
	})
	arrived := func() bool { return l.heard }
	if err := l.listen(sending, arrived); err != nil || l.heard {
		return err
	}
	select {
	case err := <-sent:
		if err == nil {
			break
		}
		l.testAt = time.Now().Add(retestAfter)
		return ctx.Err()
	default:
		l.testAt = time.Now().Add(retestAfter)
		return ctx.Err()
	}
	arriving, cancel := context.WithTimeout(ctx, arriveTimeout)
	defer cancel()
	if err := l.listen(arriving, arrived); err != nil || l.heard || ctx.Err() != nil {
		return errors.Join(err, ctx.Err())
	}
	if err := l.ping(ctx); err != nil {
		return err // not deaf, but gone
	}
	return errDeaf // also if it came with that answer, as a pooler may hand it out
}

// errDeaf says that notifications do not arrive on a connection that is otherwise fine.
var errDeaf = errors.New("notifications do not arrive on the LISTEN connection, though it answers: " +
	"DATABASE_URL leads through a transaction pooler, or to another database than SPECTRAL_POOL_URL; " +
	"let it lead straight to Postgres, or to a pooler in session mode; " +
	"until then events wait for the poll, and it is not noticed when a worker dies")

// hangUp ends the connection and waits a moment until it is over: there is to be one LISTEN
// connection at a time.
func (l *line) hangUp() { hangUp(l.conn) }

func hangUp(conn *pgx.Conn) {
	ctx, cancel := context.WithTimeout(context.Background(), hangUpTimeout)
	defer cancel()
	_ = conn.Close(ctx)
	select {
	case <-conn.PgConn().CleanupDone():
	case <-ctx.Done():
		_ = conn.PgConn().Conn().Close()
	}
}

// kindOf tells one reason from another, without what differs from attempt to attempt, and is its class in the log.
func kindOf(err error) (kind, class string) {
	pg, answered := errors.AsType[*pgconn.PgError](err)
	switch {
	case errors.Is(err, errDeaf):
		return "deaf", "NotificationsLost"
	case errors.Is(err, errStandby):
		return "standby", "StandbyError"
	case answered:
		return pg.Code, classify(err, 0).class
	default:
		return "connection", classify(err, 0).class
	}
}

// reasonOf is what an operator reads: the error, and what to do about it where that is known.
func reasonOf(err error) string {
	reason := cleanText(err.Error(), maxErrorBytes)
	pg, ok := errors.AsType[*pgconn.PgError](err)
	if !ok {
		return reason
	}
	switch pg.Code {
	case pgerrcode.InvalidPassword, pgerrcode.InvalidAuthorizationSpecification:
		return reason + "; check the user and password in DATABASE_URL, and pg_hba.conf"
	case pgerrcode.TooManyConnections:
		return reason + "; raise max_connections or the connection limit of the role or database, or run fewer workers"
	case pgerrcode.InsufficientPrivilege:
		return reason + "; grant " + workerRole + " to the login of DATABASE_URL"
	case pgerrcode.ReadOnlySQLTransaction:
		return reason + "; " + errStandby.Error()
	default:
		return reason
	}
}
