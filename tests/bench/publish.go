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
	pool, err := openAppPool(ctx, d.producer, p.connections)
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
	started := time.Now()
	n, err := p.repeat(ctx, publish, batch, p.duration)
	took := time.Since(started).Seconds()
	if p.async {
		return []metric{{"time per call", "µs", took / float64(n) * 1e6, true}}, err
	}
	if p.events > 1 {
		return []metric{{"events", "events/s", float64(n*p.events) / took, false}}, err
	}
	return []metric{{"commits", "commits/s", float64(n) / took, false}}, err
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
	var all []float64
	for range d.bench.sizes.firsts {
		took, err := firstTime(ctx, d, s)
		if err != nil {
			return nil, err
		}
		all = append(all, float64(took.Microseconds())/1000)
	}
	return []metric{{"first publish", "ms", median(all), true}}, nil
}

func firstTime(ctx context.Context, d *database, s system) (time.Duration, error) {
	pool, err := openAppPool(ctx, d.producer, 1)
	if err != nil {
		return 0, err
	}
	defer pool.Close()
	publish, err := s.Publisher(ctx, d, pool)
	if err == nil {
		err = pool.Ping(ctx) // connects
	}
	started := time.Now()
	if err == nil {
		err = publish(ctx, []event{{}})
	}
	return time.Since(started), err
}
