package maintenance

import (
	"context"
	"encoding/json"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"spectral/internal/core/events"
	"spectral/internal/core/events/infrastructure/postgres/coredb"
	"spectral/internal/core/events/infrastructure/postgres/notify"
	"spectral/internal/core/events/infrastructure/postgres/pgtx"
	"spectral/internal/core/telemetry"
)

// Observer reads what the database knows and this process should tell, and writes what this process has counted. Few
// transactions do all of it, because an idle worker should cost little.
type Observer struct {
	Generation events.Generation
	Pool       *pgxpool.Pool
	Telemetry  *telemetry.Telemetry
	Log        *slog.Logger

	started time.Time
	turn    int
	unread  bool   // metrics could not be read last time, which is logged
	state   string // of the generation, that was logged last
	failing bool   // statistics could not be written last time, which is logged
}

// Service returns the duty of o.
func (o *Observer) Service(health *notify.Health) *Service {
	o.started = time.Now()
	return Every(pgtx.ObserveInterval, "observer", health, func(ctx context.Context) {
		err := pgtx.InTx(ctx, o.Pool, pgtx.WorkerRole, func(ctx context.Context, tx *pgtx.Tx) error {
			return o.read(ctx, coredb.New(tx))
		})
		if err != nil && ctx.Err() == nil && !o.unread {
			o.Log.WarnContext(ctx, "metrics of the database were not read; it is tried again every 30 s", pgtx.LogError(err)...)
		}
		o.unread = err != nil
		if o.turn%2 == 0 {
			o.write(ctx)
		}
		o.turn++
	})
}

// maxLines is how many lines core.event_stats_add takes at once.
const maxLines = 2000

// read reads the metrics of the database. It logs when the worker's generation is drained or retired, so that the
// worker can be stopped.
func (o *Observer) read(ctx context.Context, queries *coredb.Queries) error {
	rows, err := queries.Metrics(ctx, o.started)
	if err != nil {
		return err
	}
	values := make([]telemetry.Value, 0, len(rows)+1)
	for _, r := range rows {
		values = append(values, telemetry.Value(r))
	}
	state, err := queries.GenerationState(ctx, int64(o.Generation))
	if err != nil {
		return err
	}
	o.logState(ctx, state)
	if err := queries.ActAsLogin(ctx); err != nil { // which may see other sessions, as the worker role does not
		return err
	}
	age, err := queries.SnapshotAge(ctx)
	if err != nil {
		return err
	}
	if age >= 0 {
		values = append(values, telemetry.Value{Metric: telemetry.SnapshotAge, Value: age})
	}
	o.Telemetry.Read(values)
	return nil
}

func (o *Observer) logState(ctx context.Context, state string) {
	if state == o.state {
		return
	}
	o.state = state
	switch state {
	case "retired":
		o.Log.WarnContext(ctx, "this worker's generation is retired: the worker has nothing left to do; stop it")
	case "drained":
		o.Log.InfoContext(ctx, "this worker's generation is drained: nothing is left to do; stop the producers that still "+
			"publish into it, then the worker")
	}
}

// write adds what this process has counted since the last time to core.event_stats, also if that is nothing: one of
// the workers counts what was published. The first worker of a minute samples for all how long events wait until they
// are delivered, by which to decide on another relay (docs/decisions/0017). What cannot be written is kept for the next
// time.
func (o *Observer) write(ctx context.Context) {
	lines := o.Telemetry.TakeStats()
	err := pgtx.InTx(ctx, o.Pool, pgtx.WorkerRole, func(ctx context.Context, tx *pgtx.Tx) error {
		queries := coredb.New(tx)
		for left := lines; ; {
			n := 0
			for n < min(len(left), maxLines) && left[n].Minute.Equal(left[0].Minute) {
				n++
			}
			if err := o.addMinute(ctx, queries, left[:n]); err != nil {
				return err
			}
			if left = left[n:]; len(left) == 0 {
				break
			}
		}
		_, err := queries.SampleLatency(ctx)
		return err
	})
	if err != nil {
		o.Telemetry.AddStats(lines)
		if ctx.Err() == nil && !o.failing {
			o.Log.WarnContext(ctx, "statistics and delivery latency were not written; it is tried again every minute",
				pgtx.LogError(err)...)
		}
	}
	o.failing = err != nil
}

// addMinute adds the lines of a minute, or none. It says how long ago the middle of that was: this process's clock may
// differ from the database's.
func (o *Observer) addMinute(ctx context.Context, queries *coredb.Queries, lines []telemetry.Line) error {
	encoded, err := json.Marshal(append([]telemetry.Line{}, lines...)) // not null
	if err != nil {
		return err
	}
	ago := 0.0
	if len(lines) > 0 {
		ago = time.Since(lines[0].Middle()).Seconds()
	}
	return queries.AddStats(ctx, coredb.AddStatsParams{
		Generation: int64(o.Generation), Lines: encoded, SecondsAgo: max(ago, 0),
	})
}

// Last writes what was counted since the last time, if there is anything and the database answers soon. Call it when
// the duty has ended.
func (o *Observer) Last(ctx context.Context) {
	if !o.Telemetry.HasStats() {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, pgtx.LastStats)
	defer cancel()
	o.write(ctx)
}
