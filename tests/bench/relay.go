package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	natsjs "github.com/nats-io/nats.go/jetstream"

	"spectral/internal/app/embeddednats"
	"spectral/internal/core/events/infrastructure/jetstream"
	"spectral/internal/core/events/infrastructure/postgres/dispatch"
)

// relay is what of the way through a broker is measured.
type relay int

const (
	noRelay   relay = iota
	sending         // until the broker has all events; none is handled
	receiving       // from when the broker has all events
	relaying        // both
)

// relayed are this project with a relay.
var relayed = []system{spectral{name: "relay", relay: sending}, spectral{name: "relay consumers", relay: receiving},
	spectral{name: "relay and consumers", relay: relaying}}

// throughBroker has events go through the broker until the run ends, and sends those that are there if they are only
// to be received.
func (s spectral) throughBroker(ctx context.Context, d *database) error {
	const path = "select core.relay_switch('%s', 'bench')"
	if err := d.exec(ctx, fmt.Sprintf(path, "jetstream")); err != nil {
		return err
	}
	d.atEnd(func(ctx context.Context) error {
		return errors.Join(d.exec(ctx, fmt.Sprintf(path, "postgres")), d.bench.broker.forget(ctx))
	})
	if s.relay != receiving {
		return nil
	}
	s.relay = sending
	stop, err := s.Work(ctx, d, job{})
	if err == nil {
		err = errors.Join(d.awaitSettled(ctx, s), stop())
	}
	return err
}

// benchRelay is a relay that is ready from the first event on, and may receive nothing.
type benchRelay struct {
	*jetstream.Relay
	sends  bool
	begins sync.Once
}

func (s spectral) newRelay(b *broker) (*benchRelay, error) {
	r, err := jetstream.New(jetstream.Config{URL: b.url, Stream: benchStream, Generation: generation, Name: "bench",
		Log: discard})
	return &benchRelay{Relay: r, sends: s.relay == sending}, err
}

// Ready waits the first time: what is claimed before would be handled from Postgres.
func (r *benchRelay) Ready() bool {
	r.begins.Do(func() {
		for end := time.Now().Add(10 * time.Second); !r.Relay.Ready() && time.Now().Before(end); {
			time.Sleep(time.Millisecond)
		}
	})
	return r.Relay.Ready()
}

func (r *benchRelay) Receive(ctx context.Context, handler string, limit int) (dispatch.Messages, error) {
	if r.sends {
		<-ctx.Done()
		return dispatch.Messages{}, ctx.Err()
	}
	return r.Relay.Receive(ctx, handler, limit)
}

// broker is a NATS server in a process that ends with this one.
type broker struct {
	url     string
	process *exec.Cmd
	input   io.Closer
}

// brokerProcess is the argument that makes this program a broker.
const brokerProcess = "broker-process"

const benchStream = "bench"

func startBroker() (*broker, error) {
	program, err := os.Executable()
	if err != nil {
		return nil, err
	}
	b := &broker{process: exec.Command(program, brokerProcess)}
	b.process.Stderr = os.Stderr
	if b.input, err = b.process.StdinPipe(); err != nil {
		return nil, err
	}
	output, err := b.process.StdoutPipe()
	if err == nil {
		err = b.process.Start()
	}
	if err != nil {
		return nil, err
	}
	line, err := bufio.NewReader(output).ReadString('\n')
	if b.url = strings.TrimSpace(line); err != nil {
		return nil, errors.Join(fmt.Errorf("broker: %w", err), b.stop())
	}
	return b, nil
}

// runBroker is the process, until its input ends.
func runBroker() error {
	server, err := embeddednats.Start(embeddednats.Config{})
	if err != nil {
		return err
	}
	defer server.Stop()
	fmt.Println(server.URL())
	_, _ = io.Copy(io.Discard, os.Stdin)
	return nil
}

func (b *broker) stop() error { return errors.Join(b.input.Close(), b.process.Wait()) }

// forget deletes the stream, if there is one.
func (b *broker) forget(ctx context.Context) error {
	nc, err := nats.Connect(b.url)
	if err != nil {
		return err
	}
	defer nc.Close()
	js, err := natsjs.New(nc)
	if err == nil {
		err = js.DeleteStream(ctx, benchStream)
	}
	if errors.Is(err, natsjs.ErrStreamNotFound) {
		return nil
	}
	return err
}

// cpu returns the CPU time of the broker; zero where /proc is missing.
func (b *broker) cpu() time.Duration {
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", b.process.Process.Pid))
	_, rest, _ := strings.Cut(string(text), ") ") // the name of the program may have spaces
	fields := strings.Fields(rest)
	if len(fields) < 13 {
		return 0
	}
	user, _ := strconv.ParseInt(fields[11], 10, 64)
	system, _ := strconv.ParseInt(fields[12], 10, 64)
	return time.Duration(user+system) * tick
}
