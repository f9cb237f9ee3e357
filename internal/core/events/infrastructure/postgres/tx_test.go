package postgres

import (
	"errors"
	"testing"

	"github.com/jackc/pgx/v5"
)

// However a statement is written that ends the transaction, the handler that it was lent to cannot.
func TestTxControlIsRefused(t *testing.T) {
	t.Parallel()
	for _, sql := range []string{
		"commit", "COMMIT;", " ; commit", "/**/ commit", "/* a /* nested */ one */commit", "-- a line\ncommit and chain",
		"rollback", "rollback work", "end", "abort", "begin", "start transaction", "prepare transaction 'x'",
	} {
		if err := new(lentTx).begin(sql); !errors.Is(err, ErrTxControl) {
			t.Errorf("%q: %v", sql, err)
		}
		batch := &pgx.Batch{}
		batch.Queue(sql)
		if err := new(lentTx).SendBatch(t.Context(), batch).Close(); !errors.Is(err, ErrTxControl) {
			t.Errorf("%q in a batch: %v", sql, err)
		}
	}
	if err := new(lentTx).begin("select 1; commit", pgx.QueryExecModeSimpleProtocol); !errors.Is(err, ErrTxControl) {
		t.Errorf("several statements at once: %v", err)
	}
	for _, sql := range []string{"select 1", "rollback to savepoint a", "savepoint a", "/* commit */ select 1", "-- commit", "/* never ends", ""} {
		if err := new(lentTx).begin(sql); err != nil {
			t.Errorf("%q: %v", sql, err)
		}
	}
}
