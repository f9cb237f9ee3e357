package pgtx

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgerrcode"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgconn/ctxwatch"
	"github.com/jackc/pgx/v5/pgxpool"
)

// spareConnections are what a pool has for polls and maintenance, besides those of the consumers.
const spareConnections = 4

// PoolConnections returns the size of a pool that serves so many consumer runners.
func PoolConnections(runners int) int { return runners + spareConnections }

// DirectConfig returns the configuration of a connection outside any pool: for LISTEN, migrations and checks. It leaves
// out the pool_ settings of url, which Postgres would refuse.
func DirectConfig(url string) (*pgx.ConnConfig, error) {
	config, err := parse(url, pgxpool.ParseConfig)
	if err != nil {
		return nil, err
	}
	return config.ConnConfig, unify(config.ConnConfig)
}

// PoolConfig returns the configuration of a pool that serves so many consumer runners at once. A pool_max_conns in url
// takes precedence. Where url may lead through a pooler, transactions set what they need themselves, and statements are
// not prepared unless url says how they run; otherwise each session is set up once.
func PoolConfig(url string, runners int, throughPooler bool) (*pgxpool.Config, error) {
	config, err := parse(url, pgxpool.ParseConfig)
	if err != nil {
		return nil, err
	}
	plain, err := parse(url, pgx.ParseConfig) // does not know the pool's settings, and so keeps them
	if err != nil {
		return nil, err
	}
	if _, set := plain.RuntimeParams["pool_max_conns"]; !set {
		config.MaxConns = int32(PoolConnections(runners))
	}
	// A statement is cancelled on the server and its answer awaited. By default the driver closes the connection, which
	// would undo what the co-handlers did.
	config.ConnConfig.BuildContextWatcherHandler = func(conn *pgconn.PgConn) ctxwatch.Handler {
		return &pgconn.CancelRequestContextWatcherHandler{Conn: conn, DeadlineDelay: CancelTimeout}
	}
	config.AfterConnect = func(_ context.Context, conn *pgx.Conn) error {
		registerTypes(conn.TypeMap())
		return nil
	}
	if !throughPooler {
		config.ConnConfig.AfterConnect = setSession
	} else if !strings.Contains(url, "default_query_exec_mode") {
		config.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeCacheDescribe
	}
	return config, unify(config.ConnConfig)
}

// unify sets what must not depend on a default of the login or the database: another encoding would garble text. It
// also refuses servers that cannot be written to, and bounds the time that each host of the URL may take.
func unify(config *pgx.ConnConfig) error {
	config.RuntimeParams["client_encoding"] = "UTF8"
	if config.RuntimeParams["application_name"] == "" { // shown in pg_stat_activity
		config.RuntimeParams["application_name"] = "spectral"
	}
	hosts := map[string]bool{fmt.Sprint(config.Host, config.Port): true}
	for _, further := range config.Fallbacks {
		hosts[fmt.Sprint(further.Host, further.Port)] = true
	}
	if config.ConnectTimeout == 0 {
		config.ConnectTimeout = ConnectTimeout
	}
	if len(hosts) > 1 { // the last may be the live one
		config.ConnectTimeout = min(config.ConnectTimeout, AllHostsTimeout/time.Duration(len(hosts)))
	}
	// a part of the URL in a name may be one of the password
	for keyword, name := range map[string]string{"host": config.Host, "user": config.User, "dbname": config.Database} {
		if strings.Contains(name, "=") || keyword != "user" && strings.Contains(name, "@") {
			return refuseKeyword(keyword, "a name without = and @ (in a password, write %3D and %40)")
		}
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
		stale := err.Code == pgerrcode.ReadOnlySQLTransaction && conn.ParameterStatus(StandbyParameter) != "off"
		// what a Tx has prepared, it never prepares again
		return usable(conn, err) && !stale && !schemaChanged(err) && !StatementLost(err)
	}
	switch config.DefaultQueryExecMode {
	case pgx.QueryExecModeExec, pgx.QueryExecModeSimpleProtocol:
		return refuseKeyword("default_query_exec_mode", takesExecMode)
	default:
		return checkKeywords(config)
	}
}

// StandbyParameter is the parameter by which a server reports, at the connect and at each change, that it is a standby.
// transaction_read_only would not do: a default of the login may set it on a primary.
const StandbyParameter = "in_hot_standby"

// ErrStandby is returned where a server is a standby.
var ErrStandby = errors.New("this server is a hot standby and read-only: set the URL to the primary, or name all " +
	"hosts in it")

// refuseStandby refuses a server in hot standby, so that the URL's next host is tried.
func refuseStandby(ctx context.Context, conn *pgconn.PgConn) error {
	if conn.ParameterStatus(StandbyParameter) != "on" {
		return nil // or unknown, through some poolers
	}
	// a pooler may repeat an earlier report of a server that has been promoted since
	result, err := conn.Exec(ctx, "select pg_catalog.pg_is_in_recovery()").ReadAll()
	if err != nil {
		return err
	}
	if string(result[0].Rows[0][0]) == "t" {
		return ErrStandby
	}
	return nil
}

// readOnlyServer reports whether the server refused to begin a writing transaction: it has become a standby, or the
// pooler leads to one now.
func readOnlyServer(err error) bool {
	pg, ok := errors.AsType[*pgconn.PgError](err)
	// "begin read write" is refused in recovery as a feature not supported
	return errors.Is(err, ErrStandby) ||
		ok && (pg.Code == pgerrcode.ReadOnlySQLTransaction || pg.Code == pgerrcode.FeatureNotSupported)
}

// ClosePool closes a pool, and waits up to ClosePoolTimeout for connections in use: a dead network or a handler that
// does not return may never give them back.
func ClosePool(pool *pgxpool.Pool) {
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		pool.Close()
	}()
	Pause(context.Background(), ClosePoolTimeout, closed)
}
