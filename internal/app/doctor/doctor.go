package doctor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"spectral/internal/app"
	"spectral/internal/core/events"
	"spectral/internal/core/events/infrastructure/postgres/operator"
	"spectral/internal/core/events/infrastructure/postgres/pgtx"
)

// State of what was looked at.
type State string

// The states, from the best to the worst.
const (
	Fine     State = "fine"
	Note     State = "note"    // of a finding: nothing is wrong, but somebody should know
	Unknown  State = "unknown" // it could not be looked at
	Warning  State = "warning" // it will go wrong if nobody does anything
	Critical State = "critical"
)

// Finding is something wrong, with what to do about it.
type Finding struct {
	State State  `json:"state"`
	Seen  string `json:"seen"`
	Cure  string `json:"cure"`
}

// Result of one check.
type Result struct {
	Check    string    `json:"check"`
	State    State     `json:"state"` // the worst of the findings
	Seen     string    `json:"seen"`  // the figures looked at; empty where that would only say that all is well
	Findings []Finding `json:"findings"`
}

// Report of one pass.
type Report struct {
	Results []Result `json:"checks"`
}

// Worst is the worst state of the report.
func (r Report) Worst() State {
	worst := Fine
	for _, result := range r.Results {
		worst = worse(worst, result.State)
	}
	return worst
}

var ranks = map[State]int{Fine: 0, Note: 0, Unknown: 1, Warning: 2, Critical: 3}

// rank orders states. Queries name states too: one that does not exist ranks highest.
func rank(s State) int {
	if _, known := ranks[s]; !known {
		s = Critical
	}
	return ranks[s]
}

// worse is the worse of two states, the first of equals.
func worse(a, b State) State {
	if rank(b) > rank(a) {
		return b
	}
	return a
}

// Config of a pass.
type Config struct {
	// URL is DATABASE_URL: where workers LISTEN.
	URL string
	// Generation is the one that this build runs as; zero: it is not known, and what another generation's build may have registered is only noted.
	Generation events.Generation
	// Now is this host's clock, which is compared with the database's.
	Now func() time.Time
	// IdleAfter is how long a session may idle in a transaction, SnapshotAfter how long a snapshot may be held; zero
	// means a minute and five minutes.
	IdleAfter, SnapshotAfter time.Duration
	// Checks are the names of those to make; none: all of them.
	Checks []string
}

// Names of the checks, in their order.
func Names() []string {
	names := make([]string, len(checks))
	for i, c := range checks {
		names[i] = c.name
	}
	return names
}

// Validate reports a check that does not exist.
func (c Config) Validate() error {
	for _, name := range c.Checks {
		if !slices.Contains(Names(), name) {
			return fmt.Errorf("there is no check %.100q; there are: %s", name, strings.Join(Names(), ", "))
		}
	}
	return nil
}

// checkTimeout bounds one check, so that a lock or a huge table keeps nobody waiting for the others.
const checkTimeout = 15 * time.Second

// visit is what the checks have, and what the running one has found.
type visit struct {
	Config
	conn     *pgx.Conn
	ctx      context.Context // of the running check
	tx       pgx.Tx          // of the running check, read only
	findings []Finding
	err      error // why the check saw no more; what it would find after that is left out
}

// Examine makes one pass. Its error is that the database cannot be examined at all; what a check cannot see is in the
// report.
func Examine(ctx context.Context, config Config) (report Report, err error) {
	config.IdleAfter = cmp.Or(config.IdleAfter, time.Minute)
	config.SnapshotAfter = cmp.Or(config.SnapshotAfter, 5*time.Minute)
	direct, err := pgtx.DirectConfig(config.URL)
	if err != nil {
		return Report{}, err
	}
	direct.DefaultQueryExecMode = pgx.QueryExecModeExec // whatever is in between
	// bounds every statement, whatever the login's or the database's own limits are
	limits := fmt.Sprintf("set statement_timeout = %d; set lock_timeout = 2000", (checkTimeout - time.Second).Milliseconds())
	direct.AfterConnect = func(ctx context.Context, conn *pgconn.PgConn) error { return conn.Exec(ctx, limits).Close() }
	var conn *pgx.Conn
	defer func() {
		if conn != nil {
			_ = conn.Close(context.WithoutCancel(ctx))
		}
	}()
	for _, c := range checks {
		if len(config.Checks) > 0 && !slices.Contains(config.Checks, c.name) {
			continue
		}
		if conn == nil || conn.IsClosed() { // by a check that ran into its time, or a server that is going down
			if conn, err = pgx.ConnectConfig(ctx, direct); err != nil {
				return Report{}, fmt.Errorf("connect: %w", err)
			}
		}
		report.Results = append(report.Results, c.run(ctx, &visit{Config: config, conn: conn}))
		if ctx.Err() != nil {
			return Report{}, ctx.Err()
		}
	}
	return report, nil
}

// run makes the check.
func (c check) run(ctx context.Context, v *visit) Result {
	var cancel context.CancelFunc
	v.ctx, cancel = context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	result := Result{Check: c.name, State: Fine, Seen: v.look(c)}
	if v.err != nil {
		result.Seen = ""
		v.findings = append(v.findings, unknown(v.err))
	}
	result.Findings = append([]Finding{}, v.findings...) // in JSON never null
	for _, f := range result.Findings {
		result.State = worse(result.State, f.State)
	}
	if c.claim && rank(result.State) > 0 {
		result.Seen = ""
	}
	return result
}

// look calls the check, in a transaction that only reads unless the check does without.
func (v *visit) look(c check) (seen string) {
	if !c.outside {
		v.tx, v.err = v.conn.BeginTx(v.ctx, pgx.TxOptions{BeginQuery: "begin isolation level read committed read only; " + app.FixedSettings})
		if v.err != nil {
			return ""
		}
		defer func() { _ = v.tx.Rollback(context.WithoutCancel(v.ctx)) }()
		// who does not inherit the role takes it on; who does stays what else it is, which may see more
		_, v.err = v.tx.Exec(v.ctx, "select set_config('role', '"+operator.Role+"', true) where not pg_has_role('"+operator.Role+"', 'usage')")
	}
	if c.build {
		if applied, latest := v.migrated(); applied > latest {
			return "not compared: the database is newer than this build; ask the newer build's doctor"
		}
	}
	return c.look(v)
}

// found adds what is wrong, unless the check has failed before.
func (v *visit) found(state State, seen, cure string) {
	if v.err == nil {
		v.findings = append(v.findings, Finding{state, seen, cure})
	}
}

// fail notes the first error of the check, after which nothing more is found. It returns what was seen: nothing.
func (v *visit) fail(err error) string {
	if v.err == nil {
		v.err = err
	}
	return ""
}

// list adds the findings that a query returns.
func (v *visit) list(sql string, arguments ...any) {
	v.findings = append(v.findings, all[Finding](v, sql, arguments...)...)
}

// unknown says why a check saw nothing.
func unknown(err error) Finding {
	f := Finding{State: Unknown, Seen: "could not be looked at: " + strings.Join(strings.Fields(err.Error()), " "), Cure: "run it again; if it stays so, look at the reason"}
	pg, ok := errors.AsType[*pgconn.PgError](err)
	switch {
	case ok && pg.Code == "42501":
		f.Cure = "run it as a member of " + operator.Role + "; if it is one, see the check of privileges"
	case ok && pg.Code == "57014", ok && pg.Code == "55P03", errors.Is(err, context.DeadlineExceeded):
		f.Cure = "the database is busy or somebody holds a lock: see `select pid, wait_event, query from pg_stat_activity where wait_event_type = 'Lock'`, and run it again"
	}
	return f
}

// check is one subject that is looked at.
type check struct {
	name string
	// outside: it needs no transaction, or one of its own
	outside bool
	// claim: what was seen says that all is well
	claim bool
	// build: it knows the schema of this build alone
	build bool
	// look returns what was seen, for the healthy too
	look func(*visit) (seen string)
}

// all reads rows; none if the check has failed.
func all[T any](v *visit, sql string, arguments ...any) (read []T) {
	if v.err == nil {
		rows, _ := v.tx.Query(v.ctx, sql, arguments...) // its error is also that of the rows
		read, v.err = pgx.CollectRows(rows, pgx.RowToStructByPos[T])
	}
	return read
}

// one reads the one row of a query; a zero one if the check fails.
func one[T any](v *visit, sql string, arguments ...any) (row T) {
	rows := all[T](v, sql, arguments...)
	if len(rows) == 0 {
		v.fail(pgx.ErrNoRows)
		return row
	}
	return rows[0]
}

// span is a number of seconds for people.
func span(seconds float64) string {
	d := time.Duration(seconds * float64(time.Second))
	switch {
	case d >= 48*time.Hour:
		return fmt.Sprintf("%d days", int(d.Hours()/24))
	case d >= time.Minute:
		return d.Round(time.Second).String()
	default:
		return d.Round(time.Millisecond).String()
	}
}
