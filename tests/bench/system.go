package main

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	pgxuuid "github.com/vgarvardt/pgx-google-uuid/v5"

	"spectral/internal/core/events/infrastructure/postgres/pgtx"
)

// event is what all systems publish: a number, and the key of the row that its effect changes.
type event struct {
	N   int `json:"n"`
	Key int `json:"key"`
	// at is when it was handled, where another process did that; zero means now.
	at time.Time
}

// info describes a system.
type info struct {
	name     string // for the report
	database string // its name; several systems may share one
	tables   string // those to empty, with commas
	left     string // a query that tells whether events are left to settle
}

// system publishes and works events.
type system interface {
	Info() info
	// Prepare creates the schema in an empty database.
	Prepare(ctx context.Context, d *database) error
	// Publisher returns a function that publishes events in one transaction on a pool of producers, for as many callers
	// at once as the pool has connections.
	Publisher(ctx context.Context, d *database, pool *pgxpool.Pool) (publishFunc, error)
	// Fill adds events that are due, numbered from zero, by the fastest way that there is.
	Fill(ctx context.Context, d *database, b backlog) error
	// Work starts a worker.
	Work(ctx context.Context, d *database, j job) (stop func() error, err error)
}

type publishFunc func(ctx context.Context, events []event) error

// backlog is count events, whose keys repeat after keys, each with bytes of padding.
type backlog struct{ count, keys, bytes int }

// args are the arguments of fillRows.
func (b backlog) args() []any { return []any{b.count, max(b.keys, 1), b.bytes} }

// errSkipped is returned by Prepare where a system cannot run on this machine.
var errSkipped = errors.New("skipped")

// effect says what handlers write.
type effect int

const (
	noEffect effect = iota
	perEvent        // a statement for each event
	perBatch        // a statement for each batch, where the system has batch handlers
)

// job is what workers do with each event.
type job struct {
	effect effect
	// handle is called for each event after its effect. Safe for concurrent use.
	handle func(event) error
}

const (
	effectsTable = `create schema bench; create table bench.effects (key int primary key, n int not null);
		grant usage on schema bench to public; grant all on bench.effects to public`
	writeEffect = `insert into bench.effects as e (key, n) values ($1, 1)
		on conflict (key) do update set n = e.n + excluded.n`
	writeEffects = `insert into bench.effects as e (key, n) select * from unnest($1::int[], $2::int[])
		on conflict (key) do update set n = e.n + excluded.n`
)

// effects returns the arguments of writeEffects, in the order in which keys first appear.
func effects(events []event) (keys, counts []int32) {
	at := make(map[int]int, len(events))
	for _, e := range events {
		i, ok := at[e.Key]
		if !ok {
			i = len(keys)
			at[e.Key] = i
			keys, counts = append(keys, int32(e.Key)), append(counts, 0)
		}
		counts[i]++
	}
	return keys, counts
}

// openPool opens a pool with the driver's defaults.
func openPool(ctx context.Context, url string, connections int) (*pgxpool.Pool, error) {
	return newPool(ctx, url, connections, func(url string) (*pgxpool.Config, error) {
		config, err := pgxpool.ParseConfig(url)
		if err == nil {
			config.AfterConnect = func(_ context.Context, conn *pgx.Conn) error {
				pgxuuid.Register(conn.TypeMap()) // binary ids in arrays: the floor's drain is a third slower without
				return nil
			}
		}
		return config, err
	})
}

// openProducers opens the pool that a system publishes through.
func openProducers(ctx context.Context, d *database, s system, connections int) (*pgxpool.Pool, error) {
	if _, ours := s.(spectral); ours {
		return openAppPool(ctx, d.producer, connections)
	}
	return openPool(ctx, d.producer, connections)
}

// openAppPool opens a pool as internal/app does.
func openAppPool(ctx context.Context, url string, connections int) (*pgxpool.Pool, error) {
	return newPool(ctx, url, connections, func(url string) (*pgxpool.Config, error) {
		return pgtx.PoolConfig(url, 0, false)
	})
}

func newPool(ctx context.Context, url string, connections int,
	parse func(string) (*pgxpool.Config, error)) (*pgxpool.Pool, error) {
	config, err := parse(url)
	if err != nil {
		return nil, err
	}
	config.MaxConns = int32(connections)
	return pgxpool.NewWithConfig(ctx, config)
}

// inTx calls do in a transaction.
func inTx(ctx context.Context, pool *pgxpool.Pool, do func(pgx.Tx) error) error {
	return pgx.BeginFunc(ctx, pool, do)
}
