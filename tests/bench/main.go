// Command bench measures this project beside its peers and the floor: bare SQL that does the same work. It starts one
// Postgres with a database for each system, runs the workloads in rounds that alternate between the systems, and prints
// medians with their range, ratios and charts.
//
//	go -C tests/bench run .                       # the short form, 3 to 5 minutes
//	go -C tests/bench run . -long -out ../../docs # everything, several hours; writes docs/performance.md
//	go -C tests/bench run . -workload drain -system spectral,river
//	go -C tests/bench run . -workload curve -rounds 1 # the curves with fewer events, 2 minutes
//
// The files:
//
//   - options.go: the flags, and which workloads they choose
//   - server.go: the Postgres, its databases and its counters
//   - system.go: what a system is; spectral.go, floor.go, river.go, watermill.go, gue.go, node.go: the systems
//   - workload.go: the list of workloads; publish.go, drain.go, latency.go: how they run
//   - relay.go: the NATS server, and what of the way through it is measured
//   - report.go: tables, charts and JSON
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

func main() {
	beProcess()
	var o options
	o.flags(flag.CommandLine)
	flag.Parse()
	chosen, err := o.choose(flag.Args())
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(2)
	}
	signals := []os.Signal{os.Interrupt, syscall.SIGTERM}
	if !signal.Ignored(syscall.SIGHUP) { // nohup ignores it
		signals = append(signals, syscall.SIGHUP)
	}
	signal.Ignore(syscall.SIGPIPE) // writing fails instead, and the server is removed
	ctx, stop := signal.NotifyContext(context.Background(), signals...)
	defer stop()
	exit(run(ctx, o, chosen))
}

// beProcess runs what the arguments of a process that this program has started ask for, and ends it.
func beProcess() {
	switch {
	case len(os.Args) == 5 && os.Args[1] == workerProcess:
		exit(runWorkerProcess(os.Args[2], os.Args[3], os.Args[4]))
	case len(os.Args) == 2 && os.Args[1] == brokerProcess:
		exit(runBroker())
	}
}

func exit(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

var errInterrupted = errors.New("interrupted")

func run(ctx context.Context, o options, chosen []workload) (err error) {
	defer func() {
		if err != nil && ctx.Err() != nil {
			err = errInterrupted // what failed is a consequence
		}
	}()
	report := new(report)
	if o.out != "" { // write what is there already, to know that writing works
		if report, err = readReport(o.out); err == nil {
			err = report.write(o.out)
		}
		if err != nil {
			return fmt.Errorf("-out: %w", err)
		}
	}
	b, err := start(ctx, o.sizes())
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.stop()) }()
	measured := report.begin(ctx, b, o)
	started := time.Now()
	for _, w := range chosen {
		fmt.Fprintf(os.Stderr, "%s %s\n", time.Since(started).Round(time.Second), w.name)
		if err := b.measure(ctx, w, o.rounds, report); err != nil {
			return fmt.Errorf("%s: %w", w.name, err)
		}
		measured.Took = time.Since(started).Round(time.Second).String()
		if o.out != "" { // each time, since the long form takes hours
			if err := report.write(o.out); err != nil {
				return err
			}
		}
	}
	if o.out == "" {
		_, err = os.Stdout.WriteString(report.markdown(false))
		return err
	}
	page, err := filepath.Abs(filepath.Join(o.out, "performance.md"))
	fmt.Fprintln(os.Stderr, "wrote", page)
	return err
}

// measure runs a workload on each of its systems, round by round.
func (b *bench) measure(ctx context.Context, w workload, rounds int, report *report) error {
	var systems []system
	var databases []*database
	for _, s := range w.systems {
		d, err := b.open(ctx, s)
		if err == nil {
			systems, databases = append(systems, s), append(databases, d)
		} else if !errors.Is(err, errSkipped) {
			return fmt.Errorf("prepare %s: %w", s.Info().name, err)
		}
	}
	errs, metrics := make([]error, len(systems)), make([][]metric, len(systems))
	points := w.curve
	if points == nil {
		points = []point{{run: w.run}}
	}
	if w.once {
		rounds = 1
	}
	for turn := range rounds * len(points) {
		p := points[turn%len(points)]
		var running sync.WaitGroup
		for i, s := range systems {
			runtime.GC()
			running.Go(func() {
				metrics[i], errs[i] = p.run(ctx, databases[i], s)
				errs[i] = errors.Join(errs[i], databases[i].end(ctx), databases[i].empty(ctx, s))
			})
			if !w.together {
				running.Wait()
			}
		}
		running.Wait()
		for i, s := range systems {
			if errs[i] != nil && slices.Contains(peers, s) && ctx.Err() == nil { // it may be too slow for this workload
				fmt.Fprintf(os.Stderr, "  %s is left out: %v\n", s.Info().name, strings.SplitN(errs[i].Error(), "\n", 2)[0])
				metrics[i] = nil
			} else if errs[i] != nil {
				return fmt.Errorf("%s: %w", s.Info().name, errs[i])
			}
			for _, m := range metrics[i] {
				if w.axis != "" {
					w.x, m.name = p.x, w.axis+": "+whole(p.x)
				}
				report.add(w, s.Info().name, m)
				fmt.Fprintf(os.Stderr, "  %d %s: %s %s %s\n", turn/len(points)+1, s.Info().name, m.name, number(m.value), m.unit)
			}
		}
	}
	return nil
}
