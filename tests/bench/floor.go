package main

import (
	"cmp"
	"context"
	"encoding/json"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// floor is bare SQL that does what an outbox has to do, and nothing more: INSERT, then claim, dedup and settle in one
// transaction for each batch. Its tables have the columns and indexes of this project's, without CHECKs and trigger.
type floor struct {
	name   string
	notify bool // with each transaction
	// direct is a table to publish into instead, in this project's database, with its trigger enabled or not.
	direct  string
	trigger bool
	empty   bool // publish nothing, by an empty statement
}

func (f floor) Info() info {
	if f.direct != "" {
		return info{name: f.name, database: "spectral", tables: f.direct}
	}
	return info{f.name, "floor", "bench.events, bench.handled",
		"select exists (select from bench.events where status = 'pending' and deleted_at is null)"}
}

func (f floor) Prepare(ctx context.Context, d *database) error {
	err := spectral{}.Prepare(ctx, d)
	if err != nil || f.direct != "" {
		return err
	}
	return d.exec(ctx, `create table bench.events (like core.outbox including defaults including indexes);
		create table bench.handled (like core.event_handled including defaults including indexes);
		grant all on bench.events, bench.handled to public`)
}

const (
	insertColumns = ` (id, event_type, event_version, occurred_at, source, target, content_class, channel, generation,
		workspace_id, payload, idempotency_key, trace_context, status, created_at, available_at, delivered_at) `
	insertOne = insertColumns + `values ($1, 'worlds.bench.happened', 1, $2, 'worlds', null, 'operational',
		'outbox_gen_1', 1, null, $3, $4, null, 'pending', $2, $2, null)`
	insertMany = insertColumns + `select i, 'worlds.bench.happened', 1, $3, 'worlds', null, 'operational',
		'outbox_gen_1', 1, null, p, i::text, null, 'pending', $3, $3, null from unnest($1::uuid[], $2::jsonb[]) as r(i, p)`
)

func (f floor) Publisher(ctx context.Context, d *database, pool *pgxpool.Pool) (publishFunc, error) {
	table := "bench.events"
	if f.direct != "" {
		table = f.direct
		sql := "grant insert on " + table + " to bench_producer"
		if !f.trigger {
			sql += "; alter table " + table + " disable trigger all"
			d.atEnd(func(ctx context.Context) error { return d.exec(ctx, "alter table "+table+" enable trigger all") })
		}
		if err := d.exec(ctx, sql); err != nil {
			return nil, err
		}
	}
	if f.empty {
		return func(ctx context.Context, _ []event) error {
			_, err := pool.Exec(ctx, "select")
			return err
		}, nil
	}
	return func(ctx context.Context, batch []event) error {
		ids, payloads, now := make([]uuid.UUID, len(batch)), make([]string, len(batch)), time.Now()
		for i, e := range batch {
			payload, err := json.Marshal(e)
			if err != nil {
				return err
			}
			ids[i], payloads[i] = uuid.Must(uuid.NewV7()), string(payload)
		}
		sql, args := insertOne, []any{ids[0], now, payloads[0], ids[0].String()}
		if len(batch) > 1 {
			sql, args = insertMany, []any{ids, payloads, now}
		}
		if !f.notify {
			_, err := pool.Exec(ctx, "insert into "+table+sql, args...)
			return err
		}
		both := &pgx.Batch{} // one round trip and one implicit transaction
		both.Queue("insert into "+table+sql, args...)
		both.Queue("select pg_notify('bench', '')")
		return pool.SendBatch(ctx, both).Close()
	}, nil
}

func (f floor) Fill(ctx context.Context, d *database, b backlog) error {
	return fillOutbox(ctx, d, "bench.events", b, 1)
}

const (
	// floorClaim starts at the first row of the full batch before: what lies before it is settled or held by another.
	// After a batch that was not full it starts at the beginning, and so finds events that were committed late.
	floorClaim = `select id, payload, idempotency_key, available_at from bench.events
		where generation = 1 and event_type = 'worlds.bench.happened' and status = 'pending' and deleted_at is null
			and available_at >= $1 and available_at <= now()
		order by available_at limit $2 for update skip locked`
	floorKeys = `insert into bench.handled (handler_name, idempotency_key, event_id, event_type, content_class)
		select 'bench', k, i, 'worlds.bench.happened', 'operational' from unnest($1::text[], $2::uuid[]) as r(k, i)
		order by k on conflict do nothing`
	floorSettle = `update bench.events set status = 'delivered', delivered_at = clock_timestamp(), attempts = attempts + 1
		where id = any ($1)`
)

const (
	floorConnections = 2 // transactions at once; on 2 cores more are no faster
	floorBatch       = 1000
)

func (f floor) Work(ctx context.Context, d *database, j job) (func() error, error) {
	pool, err := openPool(ctx, d.worker, floorConnections)
	if err != nil {
		return nil, err
	}
	listener, err := pgx.Connect(ctx, d.worker)
	if err != nil {
		return nil, err
	}
	if _, err := listener.Exec(ctx, "listen bench"); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	wake := make(chan struct{}, floorConnections)
	running.Go(func() {
		defer func() { _ = listener.Close(context.WithoutCancel(ctx)) }()
		for ctx.Err() == nil {
			if _, err := listener.WaitForNotification(ctx); err == nil {
				select {
				case wake <- struct{}{}:
				default: // a poll that has not begun will find it
				}
			}
		}
	})
	failed := make(chan error, floorConnections)
	for range floorConnections {
		running.Go(func() {
			var bound time.Time
			for ctx.Err() == nil {
				n, err := f.batch(ctx, pool, j, &bound)
				if err != nil && ctx.Err() == nil {
					failed <- err
					return
				}
				if n > 0 {
					continue
				}
				select {
				case <-wake:
				case <-time.After(time.Second):
				case <-ctx.Done():
				}
			}
		})
	}
	return func() error {
		cancel()
		running.Wait()
		pool.Close()
		select {
		case err := <-failed:
			return err
		default:
			return nil
		}
	}, nil
}

// batch claims, handles and settles up to floorBatch events in one transaction.
func (f floor) batch(ctx context.Context, pool *pgxpool.Pool, j job, bound *time.Time) (n int, err error) {
	err = inTx(ctx, pool, func(tx pgx.Tx) error {
		type claimed struct {
			ID      uuid.UUID
			Payload event
			Key     string
			Due     time.Time
		}
		rows, err := tx.Query(ctx, floorClaim, *bound, floorBatch)
		if err != nil {
			return err
		}
		all, err := pgx.CollectRows(rows, pgx.RowToStructByPos[claimed])
		if n = len(all); err != nil || n == 0 {
			return err
		}
		*bound = time.Time{}
		if n == floorBatch {
			*bound = all[0].Due
		}
		ids, keys, payloads := make([]uuid.UUID, n), make([]string, n), make([]event, n)
		for i, c := range all {
			ids[i], keys[i], payloads[i] = c.ID, c.Key, c.Payload
		}
		if _, err := tx.Exec(ctx, floorKeys, keys, ids); err != nil {
			return err
		}
		if err := f.effects(ctx, tx, j, payloads); err != nil {
			return err
		}
		_, err = tx.Exec(ctx, floorSettle, ids)
		return err
	})
	return n, err
}

// effects writes in the order of the keys, so that two batches cause no deadlock.
func (f floor) effects(ctx context.Context, tx pgx.Tx, j job, payloads []event) error {
	slices.SortFunc(payloads, func(a, b event) int { return cmp.Compare(a.Key, b.Key) })
	if j.effect == perBatch {
		keys, counts := effects(payloads)
		if _, err := tx.Exec(ctx, writeEffects, keys, counts); err != nil {
			return err
		}
	}
	for _, e := range payloads {
		if j.effect == perEvent {
			if _, err := tx.Exec(ctx, writeEffect, e.Key); err != nil {
				return err
			}
		}
		if err := j.handle(e); err != nil {
			return err
		}
	}
	return nil
}
