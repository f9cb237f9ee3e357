package main

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"
)

// riverQueue is River. The doc comment of river.Config says that FetchCooldown limits throughput; 1 ms is the least. An
// inserting client notifies at most once in its FetchCooldown, so it has 1 ms too. MaxWorkers bounds how many jobs a
// fetch takes. InsertManyFastTx is documented as the fast way to insert many.
type riverQueue struct{}

func (riverQueue) Info() info {
	return info{"river", "river", "river_job", `select exists (select from river_job
		where state in ('available', 'pending', 'retryable', 'running', 'scheduled'))`}
}

// riverArgs makes an event the arguments of a job.
type riverArgs event

// Kind implements [river.JobArgs].
func (riverArgs) Kind() string { return "bench" }

func (riverQueue) Prepare(ctx context.Context, d *database) error {
	migrator, err := rivermigrate.New(riverpgxv5.New(d.pool), &rivermigrate.Config{Logger: discard})
	if err == nil {
		_, err = migrator.Migrate(ctx, rivermigrate.DirectionUp, nil)
	}
	return err
}

func riverConfig() *river.Config {
	return &river.Config{FetchCooldown: time.Millisecond, Logger: discard}
}

func (riverQueue) Publisher(_ context.Context, _ *database, pool *pgxpool.Pool) (publishFunc, error) {
	client, err := river.NewClient(riverpgxv5.New(pool), riverConfig())
	return func(ctx context.Context, batch []event) error {
		return inTx(ctx, pool, func(tx pgx.Tx) error {
			if len(batch) == 1 {
				_, err := client.InsertTx(ctx, tx, riverArgs(batch[0]), nil)
				return err
			}
			params := make([]river.InsertManyParams, len(batch))
			for i, e := range batch {
				params[i].Args = riverArgs(e)
			}
			_, err := client.InsertManyFastTx(ctx, tx, params)
			return err
		})
	}, err
}

func (riverQueue) Fill(ctx context.Context, d *database, b backlog) error {
	_, err := d.pool.Exec(ctx, `with r as materialized (`+fillRows+`)
		insert into river_job (args, kind, max_attempts, scheduled_at, created_at)
		select payload, 'bench', 25, t, t from r`, b.args()...)
	return err
}

// riverWorker writes effects outside the job's completion, which is batched and so the faster way: after a crash they
// may be repeated.
type riverWorker struct {
	river.WorkerDefaults[riverArgs]
	pool *pgxpool.Pool
	job  job
}

// Work implements [river.Worker].
func (w riverWorker) Work(ctx context.Context, j *river.Job[riverArgs]) error {
	if w.job.effect != noEffect {
		if _, err := w.pool.Exec(ctx, writeEffect, j.Args.Key); err != nil {
			return err
		}
	}
	return w.job.handle(event(j.Args))
}

func (riverQueue) Work(ctx context.Context, d *database, j job) (func() error, error) {
	pool, err := openPool(ctx, d.worker, 16)
	if err != nil {
		return nil, err
	}
	config := riverConfig()
	config.Workers = river.NewWorkers()
	river.AddWorker(config.Workers, riverWorker{pool: pool, job: j})
	config.Queues = map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: 2000}}
	client, err := river.NewClient(riverpgxv5.New(pool), config)
	if err != nil {
		return nil, err
	}
	return func() error {
		defer pool.Close()
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		return client.Stop(ctx)
	}, client.Start(ctx)
}
