package main

import (
	"context"
	"fmt"
	"os"
	"time"

	client "github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/exporters/prometheus"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"

	"spectral/internal/app"
	"spectral/internal/core/telemetry"
)

// metric is one measured value.
type metric struct {
	name, unit string
	value      float64
	lower      bool // is better
}

type runner func(ctx context.Context, d *database, s system) ([]metric, error)

// workload is measured on each of its systems.
type workload struct {
	name     string
	about    string // a sentence for the report
	long     bool   // only in the long form; a curve also if it is named
	systems  []system
	run      runner
	once     bool    // instead of in each round
	together bool    // the systems run at once, since they only wait
	curve    []point // what to run instead, by its first metric
	axis     string  // what the points of the curve are numbers of
	x        int     // the point that runs
}

// point of a curve.
type point struct {
	x   int
	run runner
}

// sizes are what the short and the long form, and the test, differ in.
type sizes struct {
	fewPeers bool          // in the less important workloads
	publish  time.Duration // of each publishing run
	runs     [][2]int      // connections, and events in a transaction
	calls    time.Duration // of each run of single calls
	firsts   int           // first publications
	drain    int           // no-op events
	effects  int           // events with an effect
	latency  time.Duration
	idle     time.Duration
	million  int // events of the large drain
	failing  int
	leased   int
	// the points of the curves
	backlogs  []int
	histories []int // delivered events behind
	workers   []int // processes; also types of events, and handlers of each
}

var (
	short = sizes{fewPeers: true, publish: 700 * time.Millisecond, runs: [][2]int{{1, 1000}, {32, 1}},
		calls: 500 * time.Millisecond, firsts: 5, drain: 30_000, effects: 10_000,
		latency: 3 * time.Second, idle: 10 * time.Second,
		backlogs: []int{1000, 10_000, 100_000}, histories: []int{0, 10_000, 100_000}, workers: []int{1, 2, 4, 8}}
	long = sizes{publish: 5 * time.Second, runs: [][2]int{{1, 1}, {1, 10}, {1, 1000}, {8, 1}, {8, 10}, {8, 1000},
		{32, 1}, {32, 10}, {32, 1000}, {64, 1}, {64, 10}, {64, 1000}},
		calls: 3 * time.Second, firsts: 20, drain: 100_000, effects: 100_000,
		latency: 30 * time.Second, idle: time.Minute, million: 1_000_000, failing: 10_000, leased: 20_000,
		backlogs: []int{1000, 10_000, 100_000, 1_000_000}, histories: []int{0, 100_000, 1_000_000, 10_000_000},
		workers: []int{1, 2, 4, 8}}
)

// The systems, and their variants in some workloads.
var (
	product    = spectral{name: "spectral"}
	productSQL = spectral{name: "spectral-sql", sql: true}
	bare       = floor{name: "floor"}
	peers      = append([]system{riverQueue{}, watermillSQL{}, gueQueue{}}, nodePeers...)
)

// with returns systems and all peers.
func with(first ...system) []system { return append(first, peers...) }

// some returns systems and, in the short form, only the best known peer.
func (n sizes) some(first ...system) []system {
	if n.fewPeers {
		return append(first, riverQueue{})
	}
	return with(first...)
}

// workloads returns all workloads in the order of the report. The short form has one of each kind.
func workloads(n sizes) []workload {
	all := []workload{
		{name: "call", systems: []system{productSQL, bare, floor{name: "empty statement", empty: true}},
			about: "Time of one event in one call on one connection, prepared, synchronous_commit off: `core.outbox_publish` " +
				"against an INSERT of the same row into the same table without CHECKs and trigger. An empty statement shows " +
				"what the round trip takes.",
			run: publishing{connections: 1, events: 1, async: true, duration: n.calls}.run},
		{name: "first publish", systems: []system{product, productSQL, bare, riverQueue{}},
			about: "The first transaction with an event on a new connection, without the time to connect.",
			run:   firstPublish},
		{name: "commits with trigger", systems: []system{
			floor{name: "with trigger", direct: "core.outbox", trigger: true}, floor{name: "no trigger", direct: "core.outbox"}},
			about: "32 connections insert into `core.outbox`, with the trigger that notifies and without it.",
			run:   publishing{connections: 32, events: 1, duration: n.publish}.run},
	}
	for _, run := range n.runs {
		p := publishing{connections: run[0], events: run[1], duration: n.publish}
		systems := with(product, productSQL, bare)
		if p.events > 1 {
			systems = n.some(product, productSQL, bare)
		}
		all = append(all, workload{
			name: fmt.Sprintf("publish %dx%d", p.connections, p.events), systems: systems, run: p.run,
			about: fmt.Sprintf("Connections: %d. Events in each transaction: %d. The floor is a plain INSERT without CHECKs "+
				"and trigger.", p.connections, p.events)})
	}
	all = append(all,
		workload{name: "drain", systems: with(product, bare), run: drain{count: n.drain, resources: true}.run,
			about: fmt.Sprintf("A backlog of %d events without effect, from when the worker runs until the last is settled "+
				"(gue: a tenth). CPU, WAL and allocations are for each event.", n.drain)},
		workload{name: "drain with snapshot", systems: n.some(product, bare), run: drain{count: n.drain, hold: true}.run,
			about: "The same while a transaction holds a snapshot from before."},
		workload{name: "drain with log", systems: []system{product, logged()}, run: drain{count: n.drain}.run,
			about: "The same with the log and the metrics as by default, the log written to the null device, against none."},
		workload{name: "drain with partitions", run: drain{count: n.drain}.run,
			systems: []system{product, spectral{name: "spectral in partitions", months: true}},
			about:   "The same with `core.outbox` in monthly partitions, against one table."},
		workload{name: "relay", run: drain{count: n.drain, resources: true}.run,
			systems: append([]system{product}, relayed...),
			about: fmt.Sprintf("A backlog of %d events without effect, from Postgres and through JetStream on a NATS server in "+
				"a process by itself: *relay* until the stream has all of them and none is handled, *relay consumers* from then "+
				"until the last is settled, *relay and consumers* both at once. CPU, WAL and allocations are for each event.",
				n.drain)},
		workload{name: "statements", systems: []system{product, bare, riverQueue{}},
			about: "Statements that the worker sends for each event of a backlog, BEGIN, SET and COMMIT included.",
			run:   drain{count: n.drain, statements: true}.run},
	)
	for _, w := range []struct {
		name, about string
		effect      effect
		keys        int
		systems     []system
	}{
		{"effects in batches", "a statement for each batch, if there are batch handlers; distinct rows", perBatch, 0,
			with(product, bare)},
		{"effects in batches on hot rows", "the same on 500 rows", perBatch, hotRows, n.some(product, bare)},
		{"effects one by one", "a statement for each event, distinct rows", perEvent, 0, n.some(product, bare)},
		{"effects one by one on hot rows", "the same on 500 rows", perEvent, hotRows, n.some(product, bare)},
	} {
		all = append(all, workload{name: w.name, systems: w.systems, long: w.effect == perEvent && w.keys > 0,
			about: fmt.Sprintf("A backlog of %d events with an effect each: %s.", n.effects, w.about),
			run:   drain{count: n.effects, effect: w.effect, keys: w.keys}.run})
	}
	for _, rate := range []int{50, 500, 2000} {
		all = append(all, workload{name: fmt.Sprintf("pickup at %d/s", rate), long: rate > 50,
			systems: n.some(product, floor{name: "floor", notify: true}), run: pickup{rate: rate}.run,
			about: fmt.Sprintf("From before the producer's BEGIN until the handler runs, at %d events per second. The floor is "+
				"LISTEN and SELECT.", rate)})
	}
	all = append(all,
		workload{name: "idle", systems: with(product), once: true, together: true, run: idle{workers: 1}.run,
			about: "Transactions per second of a worker without events."},
		workload{name: "idle with 20 workers", long: true, once: true, systems: []system{product},
			run:   idle{workers: 20}.run,
			about: "Transactions per second of 20 workers without events."},
		workload{name: "drain 1 M", long: true, systems: with(product, bare), run: drain{count: n.million}.run,
			about: fmt.Sprintf("A backlog of %d events without effect.", n.million)},
		workload{name: "drain 1 M with snapshot", long: true, systems: []system{product, bare},
			run:   drain{count: n.million, hold: true}.run,
			about: "The same while a transaction holds a snapshot from before."},
		workload{name: "drain 1 M with stale statistics", long: true, systems: []system{product},
			run:   drain{count: n.million, stale: true}.run,
			about: "The same when the table was last analyzed while it was empty."},
		workload{name: "drain with failures", long: true, systems: []system{product},
			run:   drain{count: n.failing, failing: true}.run,
			about: "Every tenth event fails twice, and is retried after up to 1 s and 2 s."},
		workload{name: "leased", long: true, systems: []system{spectral{name: "spectral", leased: true}},
			run:   drain{count: n.leased}.run,
			about: "A backlog of leased events with 100 executors that do nothing."},
	)
	backlog := fmt.Sprintf("a backlog of %d events without effect", n.drain)
	return append(all,
		curve("curve of backlog", "events", "Drains of so many events without effect.", n.backlogs,
			func(x int) runner { return drain{count: x}.run }, product, bare, riverQueue{}),
		curve("curve of history", "delivered events", "Drain of "+backlog+", behind so many delivered ones.", n.histories,
			func(x int) runner { return drain{count: n.drain, history: x}.run }, product, riverQueue{}),
		curve("curve of consumers", "types", "Drain of "+backlog+", of so many types with a consumer each.", n.workers,
			func(x int) runner { return drain{count: n.drain}.of(spectral{types: x}) }, product),
		curve("curve of handlers", "handlers", "Drain of "+backlog+", each with so many handlers.", n.workers,
			func(x int) runner { return drain{count: n.drain}.of(spectral{handlers: x}) }, product),
		curve("curve of worker processes", "processes", "Drain of "+backlog+".", n.workers,
			func(x int) runner { return drain{count: n.drain, processes: x}.run }, product),
		curve("curve of relay processes", "processes", "Drain of "+backlog+" through JetStream by so many worker processes, "+
			"from when they are started; the systems are those of the workload *relay*.", []int{1, 2, 4},
			func(x int) runner { return drain{count: n.drain, processes: x}.run }, append([]system{product}, relayed...)...),
		curve("curve of payload size", "bytes", "Drain of "+backlog+" with so much text in the payload; of fewer from 1 kB "+
			"on, so that there is no more text in all.", []int{100, 1000, 10_000, 100_000},
			func(x int) runner { return drain{count: min(n.drain, n.drain*1000/x), bytes: x}.run }, product, bare, riverQueue{}))
}

// curve returns the workload that is at(x) for each of xs, of which each should be so many times the one before.
func curve(name, axis, about string, xs []int, at func(x int) runner, systems ...system) workload {
	w := workload{name: name, axis: axis, about: about, systems: systems, long: true}
	for _, x := range xs {
		w.once = w.once || x >= 10_000_000 // which take long to make
		w.curve = append(w.curve, point{x, at(x)})
	}
	return w
}

const hotRows = 500

// logged is the product with the log and the metrics that a worker has by default.
func logged() spectral {
	file, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0)
	if err != nil {
		panic(err)
	}
	log, _ := app.StartLog(file, nil, generation)
	scraped, err := prometheus.New(prometheus.WithRegisterer(client.NewRegistry()))
	if err != nil {
		panic(err)
	}
	measured, err := telemetry.New(telemetry.Config{
		Metrics: sdkmetric.NewMeterProvider(sdkmetric.WithReader(scraped)), Types: []string{contract.Type}, LogShare: 1,
	})
	if err != nil {
		panic(err)
	}
	return spectral{name: "spectral with log", log: log, measured: measured}
}
