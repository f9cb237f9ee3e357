package main

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"
)

// publishing is a number of connections that publish in transactions of so many events, as fast as they can.
type publishing struct {
	connections, events int
	async               bool // synchronous_commit off
	duration            time.Duration
}

func (p publishing) run(ctx context.Context, d *database, s system) ([]metric, error) {
	if p.async {
		const role = "alter role bench_producer "
		if err := d.exec(ctx, role+"set synchronous_commit = off"); err != nil {
			return nil, err
		}
		d.atEnd(func(ctx context.Context) error { return d.exec(ctx, role+"reset synchronous_commit") })
	}
	pool, err := openProducers(ctx, d, s, p.connections)
	if err != nil {
		return nil, err
	}
	defer pool.Close()
	publish, err := s.Publisher(ctx, d, pool)
	if err != nil {
		return nil, err
	}
	batch := make([]event, p.events)
	for i := range batch {
		batch[i] = event{N: i, Key: i}
	}
	if _, err := p.repeat(ctx, publish, batch, p.duration/10); err != nil { // connect, prepare, plan
		return nil, err
	}
	before, err := d.usage(ctx)
	if err != nil {
		return nil, err
	}
	started := time.Now()
	n, err := p.repeat(ctx, publish, batch, p.duration)
	took := time.Since(started).Seconds()
	if err != nil {
		return nil, err
	}
	after, err := d.usage(ctx)
	if p.async {
		return []metric{{"time per call", "µs", took / float64(n) * 1e6, true}}, err
	}
	published := float64(n * p.events)
	rate := metric{"events", "events/s", published / took, false}
	if p.events == 1 {
		rate.name, rate.unit = "commits", "commits/s"
	}
	return append([]metric{rate}, after.since(before, published, s)...), err
}

// repeat publishes for so long on all connections, and returns the number of transactions.
func (p publishing) repeat(ctx context.Context, publish publishFunc, batch []event, d time.Duration) (int, error) {
	var n atomic.Int64
	errs := make([]error, p.connections)
	until := time.Now().Add(d)
	var running sync.WaitGroup
	for i := range p.connections {
		running.Go(func() {
			for time.Now().Before(until) && errs[i] == nil {
				errs[i] = publish(ctx, batch)
				n.Add(1)
			}
		})
	}
	running.Wait()
	return int(n.Load()), errors.Join(errs...)
}

// firstPublish measures the first publication of connections that did nothing before.
func firstPublish(ctx context.Context, d *database, s system) ([]metric, error) {
	all := make([]float64, d.bench.sizes.firsts)
	for i := range all {
		pool, err := openProducers(ctx, d, s, 1)
		if err != nil {
			return nil, err
		}
		d.atEnd(func(context.Context) error { pool.Close(); return nil })
		publish, err := s.Publisher(ctx, d, pool)
		if err == nil {
			err = pool.Ping(ctx) // connects
		}
		if err != nil {
			return nil, err
		}
		started := time.Now()
		if err := publish(ctx, []event{{}}); err != nil {
			return nil, err
		}
		all[i] = float64(time.Since(started).Microseconds()) / 1000
	}
	return []metric{{"first publish", "ms", median(all), true}}, nil
}
