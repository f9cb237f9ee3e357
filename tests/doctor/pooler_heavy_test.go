//go:build heavy

package doctor_test

import (
	"strings"
	"testing"

	"spectral/internal/app/doctor"
	"spectral/tests/pgbouncer"
)

func TestATransactionPoolerIsFound(t *testing.T) {
	p := setup(t)
	p.url = pgbouncer.Start(t, pgbouncer.Transaction, p.admin.Config().ConnString()).URL
	result := p.examine("notifications", doctor.Config{})
	if result.State != doctor.Critical || !strings.Contains(result.Findings[0].Problem, "transaction pooler") ||
		!strings.Contains(result.Findings[0].Fix, "SPECTRAL_POOL_URL") {
		t.Errorf("through a transaction pooler it says %+v", result)
	}
}
