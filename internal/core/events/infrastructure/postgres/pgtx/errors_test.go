package pgtx_test

import (
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"spectral/internal/core/events/infrastructure/postgres/pgtx"
)

// What our functions raise is a refusal with all that they say; what else goes wrong stays as it is.
func TestAsRefused(t *testing.T) {
	t.Parallel()
	err := pgtx.AsRefused(&pgconn.PgError{
		Code: "SP030", ColumnName: "event_id", Message: "event_id: is null", Detail: "a detail", Hint: "a hint",
	})
	refused, ok := errors.AsType[*pgtx.RefusedError](err)
	if !ok || refused.Field != "event_id" || err.Error() != "event_id: is null (SP030); a detail; a hint" {
		t.Errorf("%#v", err)
	}
	other := &pgconn.PgError{Code: "40001"}
	if err := pgtx.AsRefused(other); err != error(other) { //nolint:errorlint // the very error
		t.Errorf("%#v", err)
	}
	if err := pgtx.AsRefused(nil); err != nil {
		t.Errorf("%#v", err)
	}
}

// The year 1 is no time.
func TestPresent(t *testing.T) {
	t.Parallel()
	if at := pgtx.Present(time.Time{}.In(time.FixedZone("", 3600))); at != nil {
		t.Errorf("%v", at)
	}
	at := time.Date(2026, 1, 1, 1, 0, 0, 0, time.FixedZone("", 3600))
	if have := pgtx.Present(at); have == nil || !have.Equal(at) || have.Location() != time.UTC {
		t.Errorf("%v", have)
	}
}
