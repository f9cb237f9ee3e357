package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"
)

// pickup measures how long after the producer's decision a handler starts, at a fixed rate.
type pickup struct{ rate int }

// warmUp is how many events go first, one after the other, and are not measured.
const warmUp = 10

func (w pickup) run(ctx context.Context, d *database, s system) (_ []metric, err error) {
	count := max(int(d.bench.sizes.latency.Seconds()*float64(w.rate)), 1)
	ctx, cancel := context.WithTimeout(ctx, d.bench.sizes.latency+time.Minute)
	defer cancel()
	pool, err := openProducers(ctx, d, s, 8+w.rate/50)
	if err != nil {
		return nil, err
	}
	defer pool.Close()
	publish, err := s.Publisher(ctx, d, pool)
	if err != nil {
		return nil, err
	}
	if err := d.countStatements(ctx); err != nil {
		return nil, err
	}
	sent, took := make([]time.Time, warmUp+count), make([]time.Duration, warmUp+count)
	var mu sync.Mutex // guards both: a handler may start while the producer's call still returns
	handled := make(chan int, 2*len(sent))
	stop, err := s.Work(ctx, d, job{handle: func(e event) error {
		now := cmp.Or(e.at, time.Now())
		mu.Lock()
		defer mu.Unlock()
		if took[e.N] == 0 { // not a repetition
			took[e.N] = now.Sub(sent[e.N])
			handled <- e.N
		}
		return nil
	}})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, stop()) }()
	send := func(n int) error {
		mu.Lock()
		sent[n] = time.Now()
		mu.Unlock()
		return publish(ctx, []event{{N: n}})
	}
	await := func(n int) error {
		for range n {
			select {
			case <-handled:
			case <-ctx.Done():
				return fmt.Errorf("not all events were handled: %w", ctx.Err())
			}
		}
		return nil
	}
	for n := range warmUp {
		if err := errors.Join(send(n), await(1)); err != nil {
			return nil, err
		}
	}
	before, err := d.statements(ctx)
	if err != nil {
		return nil, err
	}
	var producers sync.WaitGroup
	errs := make([]error, count)
	tick := time.NewTicker(time.Second / time.Duration(w.rate))
	defer tick.Stop()
	for i := range count {
		<-tick.C
		producers.Go(func() { errs[i] = send(warmUp + i) })
	}
	producers.Wait()
	if err := errors.Join(errors.Join(errs...), await(count), d.awaitSettled(ctx, s)); err != nil {
		return nil, err
	}
	after, err := d.statements(ctx)
	all := slices.Sorted(slices.Values(took[warmUp:]))
	ms := func(share float64) float64 {
		return float64(all[int(share*float64(count-1))].Microseconds()) / 1000
	}
	return []metric{{"p50", "ms", ms(0.5), true}, {"p99", "ms", ms(0.99), true}, {"longest", "ms", ms(1), true},
		{"statements", "per event", float64(after-before) / float64(count), true}}, err
}

// idle counts what workers without events do.
type idle struct{ workers int }

func (w idle) run(ctx context.Context, d *database, s system) (_ []metric, err error) {
	for range w.workers {
		stop, err := s.Work(ctx, d, job{})
		if err != nil {
			return nil, err
		}
		defer func() { err = errors.Join(err, stop()) }()
	}
	// Idle sessions report their transactions up to ten seconds later, as late at the end as at the beginning.
	select {
	case <-time.After(min(11*time.Second, 2*d.bench.sizes.idle)):
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	before, err := d.transactions(ctx)
	if err != nil {
		return nil, err
	}
	started := time.Now()
	select {
	case <-time.After(d.bench.sizes.idle):
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	after, err := d.transactions(ctx)
	// less the one that counted first
	return []metric{{"idle", "transactions/s", float64(after-before-1) / time.Since(started).Seconds(), true}}, err
}
