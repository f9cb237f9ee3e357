package postgres

import (
	"fmt"
	"maps"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgconn/ctxwatch"
	"github.com/jackc/pgx/v5/pgxpool"
)

// spareConnections of a pool, beside what the consumers need: business transactions and looks.
const spareConnections = 4

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
		config.MaxConns = int32(runners + spareConnections)
	}
	// A cancelled statement is cancelled in the server and its answer awaited. The driver's default
	// closes the connection instead, and with it what the co-handlers did.
	config.ConnConfig.BuildContextWatcherHandler = func(conn *pgconn.PgConn) ctxwatch.Handler {
		return &pgconn.CancelRequestContextWatcherHandler{Conn: conn, DeadlineDelay: cancelTimeout}
	}
	return config, unify(config.ConnConfig)
}

// unify sets what must not depend on a default of the login or the database: in another encoding
// text would be stored garbled.
func unify(config *pgx.ConnConfig) error {
	config.RuntimeParams["client_encoding"] = "UTF8"
	switch config.DefaultQueryExecMode {
	case pgx.QueryExecModeExec, pgx.QueryExecModeSimpleProtocol:
		return fmt.Errorf("default_query_exec_mode=%s is not supported: use cache_statement, cache_describe or describe_exec",
			config.DefaultQueryExecMode)
	default:
		return nil
	}
}

// cancelTimeout is how long a cancelled statement may take to answer before its connection closes.
const cancelTimeout = 5 * time.Second
