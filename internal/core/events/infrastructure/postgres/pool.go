package postgres

import (
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgconn/ctxwatch"
	"github.com/jackc/pgx/v5/pgxpool"
)

// spareConnections of a pool, beside what the consumers need: business transactions and looks.
const spareConnections = 4

// PoolConfig is the configuration of a pool that serves the given number of consumer runners at
// once. A pool_max_conns in url wins.
func PoolConfig(url string, runners int) (*pgxpool.Config, error) {
	config, err := pgxpool.ParseConfig(url)
	if err != nil {
		return nil, fmt.Errorf("connection pool: %w", err)
	}
	plain, err := pgx.ParseConfig(url) // does not know the pool's settings, and so keeps them
	if err != nil {
		return nil, fmt.Errorf("connection pool: %w", err)
	}
	if _, set := plain.RuntimeParams["pool_max_conns"]; !set {
		config.MaxConns = int32(runners + spareConnections)
	}
	// A cancelled statement is cancelled in the server and its answer awaited. The driver's default
	// closes the connection instead, and with it what the co-handlers did.
	config.ConnConfig.BuildContextWatcherHandler = func(conn *pgconn.PgConn) ctxwatch.Handler {
		return &pgconn.CancelRequestContextWatcherHandler{Conn: conn, DeadlineDelay: cancelTimeout}
	}
	return config, nil
}

// cancelTimeout is how long a cancelled statement may take to answer before its connection closes.
const cancelTimeout = 5 * time.Second
