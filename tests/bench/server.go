package main

import (
	"context"
	"errors"
	"net/url"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"spectral/internal/app"
	"spectral/internal/app/embeddedpg"
)

// serverSettings leave durability as it is by default: fsync and synchronous_commit are on. Checkpoints are rare and
// forced before each measurement, so that none falls into one system's turn.
var serverSettings = map[string]string{
	"max_connections": "400", "max_wal_size": "8GB", "checkpoint_timeout": "1h",
	"shared_preload_libraries": "pg_stat_statements", "pg_stat_statements.track": "none",
}

const password = "bench" // of the logins, on a server that only this process knows

// bench is a running server with the databases of the systems.
type bench struct {
	sizes     sizes
	server    *embeddedpg.Server
	broker    *broker
	dir       string
	databases map[string]*database
	skipped   map[string]bool
}

// start starts the server in a temporary folder.
func start(ctx context.Context, sizes sizes) (*bench, error) {
	dir, err := os.MkdirTemp("", "spectral-bench-")
	if err == nil {
		err = os.Chmod(dir, 0o755) // the server's user must enter
	}
	if err != nil {
		return nil, err
	}
	b := &bench{sizes: sizes, dir: dir, databases: make(map[string]*database), skipped: make(map[string]bool)}
	b.server, err = embeddedpg.Start(ctx, embeddedpg.Config{
		Dir: filepath.Join(dir, "postgres"), Settings: serverSettings, BinDir: os.Getenv(app.EnvPostgresBin)})
	if err == nil {
		if b.broker, err = startBroker(); err != nil {
			err = errors.Join(err, b.server.Stop(ctx))
		}
	}
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	return b, nil
}

func (b *bench) stop() error {
	for _, d := range b.databases {
		d.pool.Close()
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel() // the data need not be written
	return errors.Join(b.broker.stop(), b.server.Stop(ctx), os.RemoveAll(b.dir))
}

// database is one system's database. Its worker and its producers have separate logins, so that their statements are
// counted separately.
type database struct {
	bench                   *bench
	admin, worker, producer string // URLs
	pool                    *pgxpool.Pool
	ends                    []func(context.Context) error // to be called after a run
}

// atEnd makes f run when the workload's run ends.
func (d *database) atEnd(f func(context.Context) error) { d.ends = append(d.ends, f) }

func (d *database) end(ctx context.Context) (err error) {
	for _, f := range d.ends {
		err = errors.Join(err, f(ctx))
	}
	d.ends = nil
	return err
}

// open returns a system's database, and creates it at the first call.
func (b *bench) open(ctx context.Context, s system) (*database, error) {
	name := s.Info().database
	if b.skipped[name] {
		return nil, errSkipped
	}
	if d := b.databases[name]; d != nil {
		return d, nil
	}
	d := &database{bench: b, admin: b.server.URL(name)}
	d.worker, d.producer = login(d.admin, "bench_worker"), login(d.admin, "bench_producer")
	root, err := openPool(ctx, b.server.URL("postgres"), 1)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	for _, sql := range []string{
		"create database " + name,
		"do $$ begin create role bench_worker login password 'bench'; exception when duplicate_object then null; end $$",
		"do $$ begin create role bench_producer login password 'bench'; exception when duplicate_object then null; end $$",
	} {
		if _, err := root.Exec(ctx, sql); err != nil {
			return nil, err
		}
	}
	if d.pool, err = openPool(ctx, d.admin, 4); err != nil {
		return nil, err
	}
	if err := d.exec(ctx, "create extension pg_stat_statements; "+effectsTable); err != nil {
		return nil, err
	}
	if err := s.Prepare(ctx, d); err != nil {
		d.pool.Close()
		b.skipped[name] = errors.Is(err, errSkipped)
		return nil, err
	}
	b.databases[name] = d
	return d, d.exec(ctx, `grant all on schema public to public; grant all on all tables in schema public to public;
		grant all on all sequences in schema public to public`)
}

func login(admin, name string) string {
	u, err := url.Parse(admin)
	if err != nil {
		panic(err) // it is the server's
	}
	u.User = url.UserPassword(name, password)
	return u.String()
}

func (d *database) exec(ctx context.Context, sql string) error {
	_, err := d.pool.Exec(ctx, sql)
	return err
}

func one[T any](ctx context.Context, d *database, sql string) (v T, err error) {
	err = d.pool.QueryRow(ctx, sql).Scan(&v)
	return v, err
}

// empty removes all events, and writes what the server has not yet written, before the next system's turn.
func (d *database) empty(ctx context.Context, s system) error {
	return d.exec(ctx, "truncate bench.effects, "+s.Info().tables+"; checkpoint")
}

// usage counts what was used until now.
type usage struct {
	client, server, broker time.Duration // CPU
	wal                    int64         // bytes
	allocations            uint64
}

func (d *database) usage(ctx context.Context) (u usage, err error) {
	for _, who := range []int{syscall.RUSAGE_SELF, syscall.RUSAGE_CHILDREN} { // ended children: workers
		var used syscall.Rusage
		if err := syscall.Getrusage(who, &used); err != nil {
			return u, err
		}
		u.client += time.Duration(used.Utime.Nano() + used.Stime.Nano())
	}
	u.server, u.broker = serverCPU(), d.bench.broker.cpu()
	var memory runtime.MemStats
	runtime.ReadMemStats(&memory)
	u.allocations = memory.Mallocs
	u.wal, err = one[int64](ctx, d, "select (pg_current_wal_insert_lsn() - '0/0')::bigint")
	return u, err
}

// since returns what each of n events of a system used, from before to u.
func (u usage) since(before usage, n float64, s system) []metric {
	metrics := []metric{
		{"client CPU", "µs", float64((u.client - before.client).Microseconds()) / n, true},
		{"server CPU", "µs", float64((u.server - before.server).Microseconds()) / n, true},
		{"WAL", "bytes", float64(u.wal-before.wal) / n, true}}
	if ours, ok := s.(spectral); ok && ours.relay != noRelay {
		metrics = append(metrics, metric{"broker CPU", "µs", float64((u.broker - before.broker).Microseconds()) / n, true})
	}
	if _, elsewhere := s.(node); !elsewhere {
		metrics = append(metrics, metric{"allocations", "per event", float64(u.allocations-before.allocations) / n, true})
	}
	return metrics
}

// tick is 1 / USER_HZ, which is 100 on Linux.
const tick = time.Second / 100

// serverCPU returns the CPU time of the server's processes, ended ones included; zero where /proc is missing.
func serverCPU() time.Duration {
	var ticks int64
	postmaster := ""
	own := strconv.Itoa(os.Getpid())
	files, _ := filepath.Glob("/proc/[0-9]*/stat")
	stats := make(map[string][]string)
	for _, file := range files {
		text, _ := os.ReadFile(file) // it may have ended
		_, rest, _ := strings.Cut(string(text), "(postgres) ")
		if fields := strings.Fields(rest); len(fields) > 15 {
			pid := filepath.Base(filepath.Dir(file))
			stats[pid] = fields
			if fields[1] == own {
				postmaster = pid
			}
		}
	}
	for pid, fields := range stats {
		until := 13 // user and system time
		if pid == postmaster {
			until = 15 // and those of its ended children
		} else if fields[1] != postmaster {
			continue
		}
		for _, field := range fields[11:until] {
			n, _ := strconv.ParseInt(field, 10, 64)
			ticks += n
		}
	}
	return time.Duration(ticks) * tick
}

// transactions returns how many transactions the database has had, failed ones included.
func (d *database) transactions(ctx context.Context) (int64, error) {
	return one[int64](ctx, d, `select xact_commit + xact_rollback from pg_stat_database
		where datname = current_database()`)
}

// countStatements makes new sessions of workers count their statements, until the run ends.
func (d *database) countStatements(ctx context.Context) error {
	const track = "alter role bench_worker set pg_stat_statements.track = "
	d.atEnd(func(ctx context.Context) error { return d.exec(ctx, track+"none") })
	return d.exec(ctx, "select pg_stat_statements_reset(); "+track+"top")
}

// statements returns how many statements the sessions of the worker's login have sent, in whichever role.
func (d *database) statements(ctx context.Context) (int64, error) {
	return one[int64](ctx, d, `select coalesce(sum(calls), 0)::bigint from pg_stat_statements
		where dbid = (select oid from pg_database where datname = current_database())`)
}
