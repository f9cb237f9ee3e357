package pgtest

import (
	"net/url"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"spectral/internal/app/embeddednats"
	"spectral/internal/core/events"
	"spectral/internal/core/events/infrastructure/jetstream"
	"spectral/internal/core/events/infrastructure/postgres/dispatch"
)

// envRelay, if set, makes every worker send its events through a broker, where they may take that way.
const envRelay = "SPECTRAL_TEST_RELAY"

// broker returns a NATS server that the tests of this process share. Run stops it.
var broker = sync.OnceValues(func() (*embeddednats.Server, error) {
	server, err := embeddednats.Start(embeddednats.Config{})
	if err == nil {
		stopBroker = server.Stop
	}
	return server, err
})

var stopBroker = func() {}

// Relayed reports whether workers send their events through a broker.
func Relayed() bool { return os.Getenv(envRelay) != "" }

// Relay returns what a worker of a database sends its events through; nil if envRelay is not set.
func Relay(t testing.TB, database string, generation events.Generation) dispatch.Relay {
	t.Helper()
	if !Relayed() {
		return nil
	}
	server, err := broker()
	if err != nil {
		t.Fatal(err)
	}
	u, err := url.Parse(database)
	if err != nil {
		t.Fatal(err)
	}
	relay, err := jetstream.New(jetstream.Config{
		URL: server.URL(), Stream: strings.Trim(u.Path, "/"), Generation: generation, Name: t.Name(),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(relay.Close)
	return relay
}

// AwaitRelay waits until the relay of a worker that has started is ready.
func AwaitRelay(t testing.TB, relay dispatch.Relay) {
	t.Helper()
	late, tick := time.After(20*time.Second), time.NewTicker(2*time.Millisecond)
	defer tick.Stop()
	for relay != nil && !relay.Ready() {
		select {
		case <-tick.C:
		case <-late:
			t.Fatal("the relay is not ready")
		}
	}
}
