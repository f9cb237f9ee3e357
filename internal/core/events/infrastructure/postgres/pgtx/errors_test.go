package pgtx_test

import (
	"errors"
	"testing"

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
