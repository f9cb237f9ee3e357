package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
)

// drain measures how fast workers settle a backlog.
type drain struct {
	count, keys int // keys repeat after so many events; zero: never
	bytes       int // of padding in each event
	effect      effect
	hold        bool // a snapshot
	resources   bool // report CPU, WAL and allocations too
	statements  bool // report statements instead of the rate
	failing     bool // every tenth event fails twice
	stale       bool // statistics are of the empty table
	history     int  // delivered events
	processes   int  // zero: one worker, in this process
}

// drainTimeout ends a drain that hangs.
const drainTimeout = 30 * time.Minute

func (w drain) run(ctx context.Context, d *database, s system) ([]metric, error) {
	ctx, cancel := context.WithTimeout(ctx, drainTimeout)
	defer cancel()
	if s.Info().name == "gue" {
		w.count /= 10 // it is so much slower
	}
	if w.keys == 0 {
		w.keys = w.count
	}
	if w.hold {
		if err := d.holdSnapshot(ctx); err != nil {
			return nil, err
		}
	}
	if err := w.fill(ctx, d, s); err != nil {
		return nil, err
	}
	if w.statements {
		if err := d.countStatements(ctx); err != nil {
			return nil, err
		}
	}
	before, err := d.usage(ctx)
	if err != nil {
		return nil, err
	}
	took, err := w.settle(ctx, d, s)
	if err != nil {
		return nil, err
	}
	after, err := d.usage(ctx)
	if err != nil {
		return nil, err
	}
	if w.hold {
		if held, err := one[bool](ctx, d, "select exists (select from pg_stat_activity where "+holder+
			" and backend_xmin is not null)"); err != nil || !held {
			return nil, errors.Join(err, errors.New("the snapshot was not held"))
		}
	}
	n := float64(w.count)
	if w.statements {
		sent, err := d.statements(ctx)
		return []metric{{"statements", "per event", float64(sent) / n, true}}, err
	}
	metrics := []metric{{"drain", "events/s", n / took.Seconds(), false}}
	if w.resources {
		metrics = append(metrics, after.since(before, n, s)...)
	}
	return metrics, nil
}

// of measures always the same system.
func (w drain) of(s system) runner {
	return func(ctx context.Context, d *database, _ system) ([]metric, error) { return w.run(ctx, d, s) }
}

// fill makes the backlog. The statistics are those of the full table, except with stale.
func (w drain) fill(ctx context.Context, d *database, s system) (err error) {
	const chunk = 100_000
	for done := 0; done < w.history && err == nil; done += chunk {
		if err = s.Fill(ctx, d, backlog{count: min(chunk, w.history-done), keys: chunk}); err == nil {
			err = d.exec(ctx, historyOf[s.Info().database])
		}
	}
	if err == nil && w.stale {
		err = d.exec(ctx, "alter table core.outbox set (autovacuum_enabled = off); analyze "+s.Info().tables)
		d.atEnd(func(ctx context.Context) error {
			return d.exec(ctx, "alter table core.outbox reset (autovacuum_enabled)")
		})
	}
	if err == nil {
		err = s.Fill(ctx, d, backlog{w.count, w.keys, w.bytes})
	}
	if err == nil && !w.stale {
		err = d.exec(ctx, "analyze "+s.Info().tables)
	}
	if err == nil {
		err = d.exec(ctx, "checkpoint")
	}
	return err
}

// historyOf has the statement that makes all events delivered ones, by database.
var historyOf = map[string]string{
	"spectral": "update core.outbox set status = 'delivered', delivered_at = now() where status = 'pending'",
	"river":    "update river_job set state = 'completed', finalized_at = now() where state = 'available'",
}

// settle starts workers, waits until all events are settled, and stops the workers. It returns how long it took from
// when the workers ran until all was settled.
func (w drain) settle(ctx context.Context, d *database, s system) (took time.Duration, err error) {
	handled := make(chan struct{})
	var stop func() error
	if ours, ok := s.(spectral); w.processes > 0 || ok && ours.relay == sending { // no handler runs here
		close(handled)
	}
	if w.processes > 0 {
		stop, err = startProcesses(d, s, w.processes)
	} else {
		stop, err = s.Work(ctx, d, job{effect: w.effect, handle: w.counter(handled)})
	}
	if err != nil {
		return 0, err
	}
	started := time.Now()
	defer func() { err = errors.Join(err, stop()) }()
	select {
	case <-handled:
	case <-ctx.Done():
		return 0, fmt.Errorf("not all events were handled: %w", ctx.Err())
	}
	err = d.awaitSettled(ctx, s)
	return time.Since(started), err
}

// counter returns a handler that closes handled when it has handled all events.
func (w drain) counter(handled chan struct{}) func(event) error {
	var n atomic.Int64
	var once sync.Once
	var failures sync.Map
	return func(e event) error {
		if w.failing && e.N%10 == 0 {
			v, _ := failures.LoadOrStore(e.N, new(atomic.Int64))
			if v.(*atomic.Int64).Add(1) <= 2 {
				return errors.New("fails twice")
			}
		}
		if n.Add(1) >= int64(w.count) { // more, if a batch is rolled back
			once.Do(func() { close(handled) })
		}
		return nil
	}
}

// awaitSettled waits until no event is left.
func (d *database) awaitSettled(ctx context.Context, s system) error {
	conn, err := d.pool.Acquire(ctx)
	if err != nil {
		return err
	}
	defer conn.Release()
	if _, err := conn.Exec(ctx, "set enable_seqscan = off"); err != nil {
		return err
	}
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		var left bool
		if err := conn.QueryRow(ctx, s.Info().left).Scan(&left); err != nil || !left {
			return err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("not all events were settled: %w", ctx.Err())
		}
	}
}

const holder = "application_name = 'holds a snapshot'"

// holdSnapshot opens a transaction that keeps dead rows from being removed, until the run ends.
func (d *database) holdSnapshot(ctx context.Context) error {
	conn, err := pgx.Connect(ctx, d.admin)
	if err != nil {
		return err
	}
	d.atEnd(conn.Close)
	_, err = conn.Exec(ctx, "set "+holder+"; begin isolation level repeatable read; select 1")
	return err
}

// workerProcess is the argument that makes this program a worker process, until its input ends.
const workerProcess = "worker-process"

func startProcesses(d *database, s system, n int) (stop func() error, err error) {
	program, err := os.Executable()
	if err != nil {
		return nil, err
	}
	var inputs []io.Closer
	var commands []*exec.Cmd
	stop = func() (err error) {
		for i, c := range commands {
			err = errors.Join(err, inputs[i].Close(), c.Wait())
		}
		return err
	}
	for range n {
		c := exec.Command(program, workerProcess, d.worker, s.Info().name, d.bench.broker.url)
		c.Stderr = os.Stderr
		input, err := c.StdinPipe()
		if err == nil {
			err = c.Start()
		}
		if err != nil {
			return nil, errors.Join(err, stop())
		}
		inputs, commands = append(inputs, input), append(commands, c)
	}
	return stop, nil
}

// runWorkerProcess runs a worker of this project, or a variant with a relay, without effects.
func runWorkerProcess(url, name, brokerURL string) error {
	s := system(product)
	if i := slices.IndexFunc(relayed, func(r system) bool { return r.Info().name == name }); i >= 0 {
		s = relayed[i]
	}
	b := &bench{broker: &broker{url: brokerURL}}
	stop, err := s.Work(context.Background(), &database{worker: url, bench: b}, job{})
	if err != nil {
		return err
	}
	_, _ = io.Copy(io.Discard, os.Stdin)
	return stop()
}
