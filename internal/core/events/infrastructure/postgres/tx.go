package postgres

import (
	"context"
	"errors"
	"regexp"
	"slices"
	"strings"
	"sync"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"spectral/internal/core/events"
)

var (
	// ErrTxOver is what a Tx answers once the handler or unit of work it was lent to has returned.
	ErrTxOver = errors.New("this transaction's handler or unit of work has returned: its Tx may not be used any more")
	// ErrTxControl is what a Tx answers to a statement that would end the transaction.
	ErrTxControl = errors.New("whoever began the transaction ends it: return an error to undo it, nil to keep it")
)

// lentTx lends a transaction to user code: query methods only, so that no type assertion reaches
// Commit or Rollback, and an error from each once it is taken back. It guards against mistakes.
type lentTx struct {
	tx pgx.Tx

	mu    sync.Mutex
	calls int // in flight
	over  bool
	kept  bool // a statement has left something behind for the session, past its transaction
	// what has been set since the handler or unit of work began, or since takeSettings
	local  []string // names of settings, for the transaction only
	opaque bool     // something that cannot be taken back by its name
}

var _ events.Tx = (*lentTx)(nil)

// takeBack lets no further call begin, and reports whether one is in flight: the transaction is
// then still in use, by a goroutine that outlived its handler.
func (l *lentTx) takeBack() (inUse bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.over = true
	return l.calls > 0
}

// controlsTx finds statements that would end the transaction. One that hides behind another statement is
// not found; as a rule the connection's state tells afterwards.
var controlsTx = regexp.MustCompile(`(?i)^(begin|start\s+transaction|commit|end|abort|prepare\s+transaction|rollback(\s+(work|transaction))?\s*(and\s.*)?;?\s*$)`)

// leaves reports whether the session is no longer as it was, as far as the statements tell: what a
// function does is not seen.
func (l *lentTx) leaves() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.kept
}

// takeSettings returns what statements have set for the transaction, by name, and whether something was set that its name
// does not take back.
func (l *lentTx) takeSettings() (local []string, opaque bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	local, opaque = l.local, l.opaque
	l.local, l.opaque = nil, false
	return local, opaque
}

// restored is the SQL that takes settings for the transaction back: whoever ran before has set them. They had the session's values, or own,
// which are the transaction's.
func restored(local []string, own string) string {
	if len(local) == 0 {
		return ""
	}
	return "set local " + strings.Join(local, " to default; set local ") + " to default; " + own
}

// note finds statements whose effect outlives the transaction without being in a table: settings,
// temporary tables, subscriptions, prepared statements, locks. L is locked.
func (l *lentTx) note(sql string) {
	local, names := false, []string(nil)
	if words := sessionWords.FindStringSubmatch(sql); words != nil {
		switch strings.ToLower(words[2]) {
		case "constraints", "transaction":
			return
		case "local":
			local, names = true, settingNames(localSetting, sql)
			if timeZone.MatchString(sql) {
				names = []string{"timezone"}
			}
		}
	} else if n := strings.Count(sql, "set_config"); n > 0 {
		local, names = setsLocally.MatchString(sql), settingNames(configSetting, sql)
		if len(names) != n {
			names = nil
		}
	} else if !strings.Contains(sql, "advisory_lock") {
		return
	}
	l.kept = l.kept || !local
	several := strings.Contains(strings.TrimRight(sql, "; \t\r\n"), ";") // or a text with one in it
	if !local || len(names) == 0 || several {
		l.opaque = true
		return
	}
	for _, name := range names {
		if !slices.Contains(l.local, name) {
			l.local = append(l.local, name)
		}
	}
}

// settingNames are the names that form finds.
func settingNames(form *regexp.Regexp, sql string) (names []string) {
	for _, found := range form.FindAllStringSubmatch(sql, -1) {
		names = append(names, strings.ToLower(found[1]))
	}
	return names
}

var (
	sessionWords = regexp.MustCompile(`(?i)^\s*(set|reset|discard|listen|prepare|deallocate|load|create\s+(?:(?:global|local)\s+)?temp(?:orary)?)\s+(\w*)`)
	localSetting = regexp.MustCompile(`(?i)^\s*set\s+local\s+([a-z_]\w*(?:\.[a-z_]\w*)*)\s*(?:=|\bto\b)`)
	timeZone     = regexp.MustCompile(`(?i)^\s*set\s+local\s+time\s+zone\s`)
	// configSetting finds names that are not parameters
	configSetting = regexp.MustCompile(`(?i)set_config\s*\(\s*'([a-z_]\w*(?:\.[a-z_]\w*)*)'\s*,`)
	setsLocally   = regexp.MustCompile(`(?i),\s*true\s*\)`)
)

// withoutComments is sql from its first word on.
func withoutComments(sql string) string {
	for {
		sql = strings.TrimLeft(sql, " \t\r\n\f\v;")
		switch {
		case strings.HasPrefix(sql, "--"):
			_, sql, _ = strings.Cut(sql, "\n")
		case strings.HasPrefix(sql, "/*"):
			depth := 0 // they nest
			for i := 0; ; {
				switch {
				case strings.HasPrefix(sql[i:], "/*"):
					depth, i = depth+1, i+2
				case strings.HasPrefix(sql[i:], "*/"):
					depth, i = depth-1, i+2
				default:
					i++
				}
				if depth == 0 || i >= len(sql) {
					sql = sql[min(i, len(sql)):]
					break
				}
			}
		default:
			return sql
		}
	}
}

// refuseControl refuses a statement, without leading comments, that would end the transaction.
func refuseControl(sql string) error {
	if !controlsTx.MatchString(sql) {
		return nil
	}
	word, _, _ := strings.Cut(sql, " ")
	return &controlError{word}
}

// begin notes a call; whoever gets nil calls done.
func (l *lentTx) begin(sql string, args ...any) error {
	sql = withoutComments(sql)
	if err := refuseControl(sql); err != nil {
		return err
	}
	// several statements in one, of which any might end the transaction
	if len(args) > 0 && args[0] == pgx.QueryExecModeSimpleProtocol {
		return &controlError{"the simple protocol"}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.over {
		return ErrTxOver
	}
	l.calls++
	l.note(sql)
	return nil
}

func (l *lentTx) done() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.calls--
}

// controlError is an ErrTxControl that names the statement.
type controlError struct{ statement string }

func (e *controlError) Error() string { return e.statement + ": " + ErrTxControl.Error() }
func (e *controlError) Unwrap() error { return ErrTxControl }

func (l *lentTx) Exec(ctx context.Context, sql string, arguments ...any) (pgconn.CommandTag, error) {
	if err := l.begin(sql, arguments...); err != nil {
		return pgconn.CommandTag{}, err
	}
	defer l.done()
	return l.tx.Exec(ctx, sql, arguments...)
}

func (l *lentTx) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	if err := l.begin(sql, args...); err != nil {
		return nil, err
	}
	defer l.done()
	return l.tx.Query(ctx, sql, args...)
}

func (l *lentTx) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	if err := l.begin(sql, args...); err != nil {
		return refusedRow{err}
	}
	defer l.done()
	return l.tx.QueryRow(ctx, sql, args...)
}

func (l *lentTx) SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults {
	if err := l.begin(""); err != nil {
		return refusedBatch{err}
	}
	defer l.done()
	for _, q := range b.QueuedQueries {
		if err := refuseControl(withoutComments(q.SQL)); err != nil {
			return refusedBatch{err}
		}
	}
	l.mu.Lock()
	for _, q := range b.QueuedQueries {
		l.note(withoutComments(q.SQL))
	}
	l.mu.Unlock()
	return l.tx.SendBatch(ctx, b)
}

func (l *lentTx) CopyFrom(ctx context.Context, table pgx.Identifier, columns []string, source pgx.CopyFromSource) (int64, error) {
	if err := l.begin(""); err != nil {
		return 0, err
	}
	defer l.done()
	return l.tx.CopyFrom(ctx, table, columns, source)
}

type refusedRow struct{ err error }

func (r refusedRow) Scan(...any) error { return r.err }

type refusedBatch struct{ err error }

func (r refusedBatch) Exec() (pgconn.CommandTag, error) { return pgconn.CommandTag{}, r.err }
func (r refusedBatch) Query() (pgx.Rows, error)         { return nil, r.err }
func (r refusedBatch) QueryRow() pgx.Row                { return refusedRow(r) }
func (r refusedBatch) Close() error                     { return r.err }
func (r refusedBatch) Tx() pgx.Tx                       { return nil }
