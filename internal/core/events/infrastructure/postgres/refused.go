package postgres

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"spectral/internal/core/events"
)

// RefusedError is a refusal of one of the SQL functions that operators and retention call: nothing was done.
type RefusedError struct {
	Code   events.Code // docs/runbook.md lists them
	Field  string      // the parameter at fault; may be empty
	Reason string
	Detail string // more of the reason; may be empty
	Hint   string // what to do; may be empty
}

func (e *RefusedError) Error() string {
	var s strings.Builder
	_, _ = fmt.Fprintf(&s, "%s (%s)", e.Reason, e.Code)
	for _, further := range []string{e.Detail, e.Hint} {
		if further != "" {
			_, _ = fmt.Fprintf(&s, "; %s", further)
		}
	}
	return s.String()
}

// AsRefused turns an error that one of our functions raised on purpose into a [*RefusedError]. Any other is returned as it is.
func AsRefused(err error) error {
	pg, ok := errors.AsType[*pgconn.PgError](err)
	if !ok || !strings.HasPrefix(pg.Code, "SP") {
		return err
	}
	return &RefusedError{Code: events.Code(pg.Code), Field: pg.ColumnName, Reason: pg.Message, Detail: pg.Detail, Hint: pg.Hint}
}

// Present is a time in UTC, nil for the year 1, which stands for none in queries.
func Present(t time.Time) *time.Time {
	if t.Year() <= 1 {
		return nil
	}
	t = t.UTC()
	return &t
}
