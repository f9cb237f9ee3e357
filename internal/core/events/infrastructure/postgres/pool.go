package postgres

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"time"

	"github.com/jackc/pgerrcode"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgconn/ctxwatch"
	"github.com/jackc/pgx/v5/pgxpool"
)

// spareConnections of a pool, beside what the consumers need: business transactions and looks.
const spareConnections = 4

// PoolConnections is how many connections a pool that serves so many runners may come to have.
func PoolConnections(runners int) int { return runners + spareConnections }

// DirectConfig reads the URL of a connection of its own: LISTEN, migrations, checks. Settings of a
// pool are left out, which Postgres would refuse.
func DirectConfig(url string) (*pgx.ConnConfig, error) {
	config, err := pgx.ParseConfig(url)
	if err != nil {
		return nil, err
	}
	maps.DeleteFunc(config.RuntimeParams, func(name, _ string) bool { return strings.HasPrefix(name, "pool_") })
	return config, unify(config)
}

// PoolConfig is the configuration of a pool that serves the given number of consumer runners at
// once. A pool_max_conns in url wins.
func PoolConfig(url string, runners int) (*pgxpool.Config, error) {
	config, err := pgxpool.ParseConfig(url)
	if err != nil {
		return nil, err
	}
	plain, err := pgx.ParseConfig(url) // does not know the pool's settings, and so keeps them
	if err != nil {
		return nil, err
	}
	if _, set := plain.RuntimeParams["pool_max_conns"]; !set {
		config.MaxConns = int32(PoolConnections(runners))
	}
	// A cancelled statement is cancelled in the server and its answer awaited. The driver's default
	// closes the connection instead, and with it what the co-handlers did.
	config.ConnConfig.BuildContextWatcherHandler = func(conn *pgconn.PgConn) ctxwatch.Handler {
		return &pgconn.CancelRequestContextWatcherHandler{Conn: conn, DeadlineDelay: cancelTimeout}
	}
	return config, unify(config.ConnConfig)
}

// unify sets what must not depend on a default of the login or the database: in another encoding
// text would be stored garbled. It also keeps away from servers that cannot be written to, and lets
// no host that swallows packets use up the time that the next one needs.
func unify(config *pgx.ConnConfig) error {
	config.RuntimeParams["client_encoding"] = "UTF8"
	if config.RuntimeParams["application_name"] == "" { // for whoever looks at pg_stat_activity
		config.RuntimeParams["application_name"] = "spectral"
	}
	if config.ConnectTimeout == 0 {
		config.ConnectTimeout = connectTimeout
	}
	further := config.ValidateConnect // target_session_attrs
	config.ValidateConnect = func(ctx context.Context, conn *pgconn.PgConn) error {
		if err := refuseStandby(ctx, conn); err != nil || further == nil {
			return err
		}
		return further(ctx, conn)
	}
	usable := config.OnPgError
	config.OnPgError = func(conn *pgconn.PgConn, err *pgconn.PgError) bool {
		// a primary's refusal is about the transaction, any other server's about itself
		stale := err.Code == pgerrcode.ReadOnlySQLTransaction && conn.ParameterStatus(standbyParameter) != "off"
		return usable(conn, err) && !stale
	}
	switch config.DefaultQueryExecMode {
	case pgx.QueryExecModeExec, pgx.QueryExecModeSimpleProtocol:
		return fmt.Errorf("default_query_exec_mode=%s is not supported: use cache_statement, cache_describe or describe_exec",
			config.DefaultQueryExecMode)
	default:
		return nil
	}
}

// standbyParameter is what a server reports of itself, unasked: as we connect and when it changes.
// Not transaction_read_only, which a default of the login may set on a primary too.
const standbyParameter = "in_hot_standby"

var errStandby = errors.New("this server is a hot standby and read-only: let the URL lead to the primary, or name all hosts in it")

// refuseStandby refuses a server in hot standby, so that the URL's next host is tried.
func refuseStandby(ctx context.Context, conn *pgconn.PgConn) error {
	if conn.ParameterStatus(standbyParameter) != "on" {
		return nil // or unknown, through some poolers
	}
	// a pooler may repeat what a server said that has been promoted since
	result, err := conn.Exec(ctx, "select pg_catalog.pg_is_in_recovery()").ReadAll()
	if err != nil {
		return err
	}
	if string(result[0].Rows[0][0]) == "t" {
		return errStandby
	}
	return nil
}

// readOnlyServer reports whether the server refused to begin writing: it has become a standby under
// us, or the pooler in between has turned to one.
func readOnlyServer(err error) bool {
	pg, ok := errors.AsType[*pgconn.PgError](err)
	// "begin read write" is refused in recovery as a feature not supported
	return ok && (pg.Code == pgerrcode.ReadOnlySQLTransaction || pg.Code == pgerrcode.FeatureNotSupported) || errors.Is(err, errStandby)
}

// connectTimeout is for each host of a URL that does not say connect_timeout.
const connectTimeout = 5 * time.Second

// cancelTimeout is how long a cancelled statement may take to answer before its connection closes.
const cancelTimeout = 5 * time.Second

// ClosePool closes a pool and waits for connections in use, but not for those that a dead network or
// a handler that does not return will never give back.
func ClosePool(pool *pgxpool.Pool) {
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		pool.Close()
	}()
	patience := time.NewTimer(closeTimeout)
	defer patience.Stop()
	select {
	case <-closed:
	case <-patience.C:
	}
}

const closeTimeout = 500 * time.Millisecond
