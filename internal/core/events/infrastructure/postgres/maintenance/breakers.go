package maintenance

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"spectral/internal/core/events"
	"spectral/internal/core/events/infrastructure/postgres/coredb"
	"spectral/internal/core/events/infrastructure/postgres/dispatch"
	"spectral/internal/core/events/infrastructure/postgres/notify"
	"spectral/internal/core/events/infrastructure/postgres/pgtx"
)

// Breakers returns the duty that probes the open breakers of a generation's handlers, and makes due what waited for
// one that closes (docs/decisions/0024). Work is the context of handlers. Tripped wakes it when a consumer has found an
// open breaker.
func Breakers(work context.Context, pool *pgxpool.Pool, generation events.Generation,
	consumers map[string]*dispatch.Consumer, tripped <-chan struct{}, log *slog.Logger, health *notify.Health) *Service {
	b := &breakers{work: work, pool: pool, generation: generation, consumers: consumers, log: log,
		probing: make(map[string]bool), over: make(chan struct{}, 1)}
	return NewService(func(ctx context.Context) {
		defer b.probes.Wait()
		for ctx.Err() == nil {
			changed, wait := health.Changed(), pgtx.BreakersInterval
			if answers(health, wait) {
				end := health.Step("breakers")
				open, err := b.read(ctx)
				end()
				if err != nil && ctx.Err() == nil {
					log.WarnContext(ctx, "breakers were not read; it is tried again", pgtx.LogError(err)...)
				}
				b.probe(ctx, open)
				wait = untilProbe(open)
			}
			timer := time.NewTimer(pgtx.Jittered(wait))
			select {
			case <-timer.C:
			case <-tripped:
			case <-b.over:
			case <-changed:
			case <-ctx.Done():
			}
			timer.Stop()
		}
	})
}

// untilProbe returns when to read the breakers again.
func untilProbe(open []coredb.BreakersRow) time.Duration {
	if len(open) == 0 {
		return pgtx.BreakersInterval
	}
	wait := pgtx.OpenBreakersInterval
	for _, row := range open {
		if row.NextIn >= 0 {
			wait = min(wait, max(pgtx.Seconds(row.NextIn), pgtx.MinProbePause))
		}
	}
	return wait
}

type breakers struct {
	work       context.Context //nolint:containedctx // of handlers, which a stop of the duty does not end
	pool       *pgxpool.Pool
	generation events.Generation
	consumers  map[string]*dispatch.Consumer
	log        *slog.Logger

	mu      sync.Mutex
	probing map[string]bool // handlers that are probed now
	probes  sync.WaitGroup
	over    chan struct{} // gets a value when a probe has ended
}

// read returns the open breakers, and tells the consumers of them.
func (b *breakers) read(ctx context.Context) (open []coredb.BreakersRow, err error) {
	err = pgtx.InTx(ctx, b.pool, pgtx.WorkerRole, func(ctx context.Context, tx *pgtx.Tx) error {
		open, err = coredb.New(tx).Breakers(ctx, int64(b.generation))
		return err
	})
	if err != nil {
		return nil, err
	}
	for eventType, c := range b.consumers {
		var names []string
		for _, row := range open {
			if row.EventType == eventType {
				names = append(names, row.HandlerName)
			}
		}
		c.SetOpenBreakers(names)
	}
	return open, nil
}

// probe begins to probe those breakers whose time has come, and to close those that may close. A slow probe holds up no
// other one.
func (b *breakers) probe(ctx context.Context, open []coredb.BreakersRow) {
	for _, row := range open {
		c, handles := b.consumers[row.EventType]
		if !handles || !row.Closing && row.NextIn != 0 || !b.begin(row.HandlerName) {
			continue
		}
		b.probes.Go(func() {
			defer b.end(row.HandlerName)
			closing, err := row.Closing, error(nil)
			for next := true; next && !closing && err == nil && ctx.Err() == nil; {
				closing, next, err = c.ProbeBreaker(b.work, row.HandlerName)
			}
			if err == nil && closing {
				err = b.close(ctx, row.HandlerName)
			}
			if err != nil && ctx.Err() == nil {
				b.log.WarnContext(ctx, "a breaker was not probed; it is tried again",
					append(pgtx.LogError(err), pgtx.LogHandler, row.HandlerName)...)
			}
		})
	}
}

// begin reports whether a handler is not being probed, and marks it as that.
func (b *breakers) begin(handler string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	free := !b.probing[handler]
	b.probing[handler] = true
	return free
}

// end wakes the duty: the next probe may follow at once.
func (b *breakers) end(handler string) {
	b.mu.Lock()
	delete(b.probing, handler)
	b.mu.Unlock()
	select {
	case b.over <- struct{}{}:
	default:
	}
}

// close makes due what waits for a breaker.
func (b *breakers) close(ctx context.Context, handler string) error {
	total := 0
	for released := int32(1); released > 0 && ctx.Err() == nil; total += int(released) {
		err := pgtx.InTx(ctx, b.pool, pgtx.WorkerRole, func(ctx context.Context, tx *pgtx.Tx) (err error) {
			released, err = coredb.New(tx).ReleaseBreaker(ctx, coredb.ReleaseBreakerParams{
				Generation: int64(b.generation), Handler: handler, RowLimit: events.MaxBatchSize,
			})
			return err
		})
		if err != nil {
			return err
		}
	}
	b.log.InfoContext(ctx, "breaker closed: the events that waited are due", pgtx.LogHandler, handler, pgtx.LogRows, total)
	return nil
}
