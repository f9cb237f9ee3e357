package main

import (
	"context"
	"encoding/json"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/vgarvardt/gue/v5"
	"github.com/vgarvardt/gue/v5/adapter/pgxv5"
)

// gueQueue is gue. Its schema, which the module ships as a file, has one index, by queue, run_at and priority, in whose
// order only RunAtPollStrategy claims. It claims one job for each transaction and has no notifications, so a pool of 16
// workers polls every 10 ms.
type gueQueue struct{}

func (gueQueue) Info() info {
	return info{"gue", "gue", "gue_jobs", "select exists (select from gue_jobs)"}
}

func (gueQueue) Prepare(ctx context.Context, d *database) error {
	return d.exec(ctx, `create table gue_jobs (job_id text primary key, priority smallint not null, run_at timestamptz not
		null, job_type text not null, args bytea not null, error_count integer not null default 0, last_error text,
		queue text not null, created_at timestamptz not null, updated_at timestamptz not null);
		create index idx_gue_jobs_selector on gue_jobs (queue, run_at, priority)`)
}

func (gueQueue) Publisher(_ context.Context, _ *database, pool *pgxpool.Pool) (publishFunc, error) {
	client, err := gue.NewClient(pgxv5.NewConnPool(pool))
	return func(ctx context.Context, batch []event) error {
		jobs := make([]*gue.Job, len(batch))
		for i, e := range batch {
			args, err := json.Marshal(e)
			if err != nil {
				return err
			}
			jobs[i] = &gue.Job{Type: "bench", Args: args}
		}
		return inTx(ctx, pool, func(tx pgx.Tx) error { return client.EnqueueBatchTx(ctx, jobs, pgxv5.NewTx(tx)) })
	}, err
}

func (gueQueue) Fill(ctx context.Context, d *database, b backlog) error {
	_, err := d.pool.Exec(ctx, `with r as materialized (`+fillRows+`)
		insert into gue_jobs (job_id, priority, run_at, job_type, args, queue, created_at, updated_at)
		select '01' || lpad((row_number() over (order by t))::text, 24, '0'), 0, t, 'bench',
			convert_to(payload::text, 'UTF8'), '', t, t from r`, b.args()...)
	return err
}

func (gueQueue) Work(ctx context.Context, d *database, j job) (func() error, error) {
	const workers = 16
	pool, err := openPool(ctx, d.worker, workers)
	if err != nil {
		return nil, err
	}
	client, err := gue.NewClient(pgxv5.NewConnPool(pool))
	if err != nil {
		return nil, err
	}
	work := func(ctx context.Context, job *gue.Job) error {
		var e event
		if err := json.Unmarshal(job.Args, &e); err != nil {
			return err
		}
		if j.effect != noEffect {
			if _, err := job.Tx().Exec(ctx, writeEffect, e.Key); err != nil {
				return err
			}
		}
		return j.handle(e)
	}
	p, err := gue.NewWorkerPool(client, gue.WorkMap{"bench": work}, workers,
		gue.WithPoolPollInterval(10*time.Millisecond), gue.WithPoolPollStrategy(gue.RunAtPollStrategy))
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	running.Go(func() { err = p.Run(ctx) })
	return func() error {
		cancel()
		running.Wait()
		pool.Close()
		return err
	}, nil
}
