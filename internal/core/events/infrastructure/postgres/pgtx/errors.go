package pgtx

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"slices"
	"strings"

	"github.com/jackc/pgerrcode"
	"github.com/jackc/pgx/v5/pgconn"

	"spectral/internal/core/events"
)

// RefusedError is a refusal by one of the SQL functions that operators and retention call. Nothing was done.
type RefusedError struct {
	Code   events.Code // docs/runbook.md lists them
	Field  string      // the parameter that is wrong; may be empty
	Reason string
	Detail string // more of the reason; may be empty
	Hint   string // what to do; may be empty
}

func (e *RefusedError) Error() string {
	s := fmt.Sprintf("%s (%s)", e.Reason, e.Code)
	for _, further := range []string{e.Detail, e.Hint} {
		if further != "" {
			s += "; " + further
		}
	}
	return s
}

// AsRefused turns an error that one of our SQL functions raised into a [*RefusedError], and returns any other
// unchanged.
func AsRefused(err error) error {
	pg, ok := errors.AsType[*pgconn.PgError](err)
	if !ok || !strings.HasPrefix(pg.Code, "SP") {
		return err
	}
	return &RefusedError{
		Code: events.Code(pg.Code), Field: pg.ColumnName, Reason: pg.Message, Detail: pg.Detail, Hint: pg.Hint,
	}
}

// The classes that retry decisions ask for.
const (
	ClassConnection    = "ConnectionError"
	ClassDeadlock      = "DeadlockError"
	ClassIntegrity     = "IntegrityError"
	ClassSerialization = "SerializationError"
	ClassServer        = "ServerError" // by its state: no space, no memory, shutting down
	ClassSchemaChanged = "SchemaChangedError"
	ClassTimeout       = "TimeoutError" // by the client's or the server's clock
)

// ServerState reports whether an error is that of the server's state, which will pass, and not of the statement.
func ServerState(err error) bool {
	pg, ok := errors.AsType[*pgconn.PgError](err)
	if !ok || pg.Code == pgerrcode.ConfigurationLimitExceeded { // by one query, for one with its temporary files
		return false
	}
	return pgerrcode.IsInsufficientResources(pg.Code) || pgerrcode.IsSystemError(pg.Code) ||
		strings.HasPrefix(pg.Code, "57P0") || pg.Code == pgerrcode.ReadOnlySQLTransaction || schemaChanged(pg)
}

// RowFault reports whether an error of a statement may be the fault of a row that it read or wrote, so that the next
// try would fail too: as core.row_fault says. A function that is missing or not allowed is not a row's fault; an error
// within one may be.
func RowFault(err error) bool {
	pg, ok := errors.AsType[*pgconn.PgError](err)
	if !ok || len(pg.Code) < 2 || pg.Where == "" && pgerrcode.IsSyntaxErrororAccessRuleViolation(pg.Code) {
		return false
	}
	return !slices.Contains([]string{"08", "25", "26", "40", "53", "55", "57", "58", "72"}, pg.Code[:2]) &&
		!schemaChanged(pg)
}

// StatementLost reports whether a prepared statement does not exist any more: a function has deallocated it.
func StatementLost(err error) bool {
	pg, ok := errors.AsType[*pgconn.PgError](err)
	return ok && pg.Code == pgerrcode.InvalidSQLStatementName
}

// schemaChanged reports whether a migration invalidated a prepared statement of a handler; the driver prepares it
// again. The adapter's own statements cast their columns, so they stay valid.
func schemaChanged(pg *pgconn.PgError) bool {
	return pg.Code == pgerrcode.FeatureNotSupported && pg.Routine == "RevalidateCachedQuery"
}

// ErrorClass returns the class of an error of a statement, a connection or a file: the first word of last_error, by
// which operators group failures. Any other error is a HandlerError.
func ErrorClass(err error) string {
	var (
		pg      *pgconn.PgError
		network net.Error
		file    *fs.PathError
		link    *os.LinkError
	)
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return ClassTimeout
	case errors.As(err, &pg):
		return postgresClass(pg)
	case errors.As(err, &file), errors.As(err, &link): // before net.Error, which their cause satisfies
		return "FileError"
	case errors.As(err, &network), errors.Is(err, net.ErrClosed), errors.Is(err, io.EOF),
		errors.Is(err, io.ErrUnexpectedEOF):
		return ClassConnection
	default:
		return "HandlerError"
	}
}

func postgresClass(pg *pgconn.PgError) string {
	switch {
	case pgerrcode.IsIntegrityConstraintViolation(pg.Code):
		return ClassIntegrity
	case pg.Code == pgerrcode.SerializationFailure:
		return ClassSerialization
	case pg.Code == pgerrcode.DeadlockDetected:
		return ClassDeadlock
	case pg.Code == pgerrcode.AdminShutdown, pg.Code == pgerrcode.CrashShutdown,
		pg.Code == pgerrcode.CannotConnectNow, pgerrcode.IsConnectionException(pg.Code):
		return ClassConnection
	case schemaChanged(pg):
		return ClassSchemaChanged
	case ServerState(pg):
		return ClassServer
	case pg.Code == pgerrcode.QueryCanceled, pg.Code == pgerrcode.LockNotAvailable:
		return ClassTimeout
	case pg.Code == pgerrcode.InFailedSQLTransaction:
		return "AbortedTransaction"
	default:
		return "DatabaseError"
	}
}

// Answered reports whether the server answered a COMMIT with an error, so that it is certainly rolled back.
func Answered(err error) bool {
	pg, ok := errors.AsType[*pgconn.PgError](err)
	return ok && pg.SeverityUnlocalized != "FATAL"
}

// MaxErrorBytes is how much of an error core.error_text keeps whole.
const MaxErrorBytes = 8192

// CleanText makes s storable: no NUL, valid UTF-8, at most limit bytes.
func CleanText(s string, limit int) string {
	s = strings.ToValidUTF8(strings.ReplaceAll(s, "\x00", "\uFFFD"), "\uFFFD")
	if len(s) > limit {
		s = strings.ToValidUTF8(s[:limit], "") // without half a rune at the end
	}
	return s
}
