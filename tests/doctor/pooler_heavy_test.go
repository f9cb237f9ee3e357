//go:build heavy

package doctor_test

import (
	"strings"
	"testing"

	"spectral/internal/app/doctor"
	"spectral/tests/pgbouncer"
)

func TestAPoolerInTheWay(t *testing.T) {
	p := admit(t)
	p.url = pgbouncer.Start(t, pgbouncer.Transaction, p.admin.Config().ConnString()).URL
	result := p.examine("notifications", nil)
	if result.State != doctor.Critical || !strings.Contains(result.Findings[0].Seen, "transaction pooler") ||
		!strings.Contains(result.Findings[0].Cure, "SPECTRAL_POOL_URL") {
		t.Errorf("through a transaction pooler it says %+v", result)
	}
}
