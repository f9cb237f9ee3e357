package maintenance

import (
	"context"
	"time"

	"spectral/internal/core/events/infrastructure/postgres/coredb"
	"spectral/internal/core/telemetry"
)

// ReadMetrics returns the duty to read what the metrics of this process say about the database.
func ReadMetrics(t *telemetry.Telemetry) func(context.Context, *coredb.Queries) error {
	since := time.Now()
	return func(ctx context.Context, queries *coredb.Queries) error {
		rows, err := queries.Metrics(ctx, since)
		if err != nil {
			return err
		}
		values := make([]telemetry.Value, 0, len(rows)+1)
		for _, r := range rows {
			values = append(values, telemetry.Value(r))
		}
		// the login may be allowed to see other sessions, the worker role is not
		if err := queries.ActAsLogin(ctx); err != nil {
			return err
		}
		age, err := queries.SnapshotAge(ctx)
		if err == nil {
			t.Read(append(values, telemetry.Value{Metric: telemetry.SnapshotAge, Value: age}))
		}
		return err
	}
}
