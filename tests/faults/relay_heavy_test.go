//go:build heavy

package faults_test

import (
	"fmt"
	"math/rand/v2"
	"net/url"
	"strconv"
	"testing"
	"time"

	"spectral/internal/app"
	"spectral/internal/app/embeddednats"
	"spectral/internal/core/events/infrastructure/jetstream"
	"spectral/internal/core/events/infrastructure/postgres/operator"
	"spectral/internal/core/events/infrastructure/postgres/pgtx"
	"spectral/tests/faults/ledger"
	"spectral/tests/faults/process"
	"spectral/tests/pgtest"
)

// switched is a test of the relay under load: workers that are killed, with a broker.
type switched struct {
	*bundle
	*ledger.Ledger
	random  *rand.Rand
	load    ledger.Load
	workers []*process.Supervisor
	config  embeddednats.Config
	broker  *embeddednats.Server
}

func (s *switched) startBroker() {
	s.Helper()
	var err error
	s.broker, err = embeddednats.Start(s.config)
	must(s, err)
	at, err := url.Parse(s.broker.URL())
	must(s, err)
	s.config.Port, err = strconv.Atoi(at.Port())
	must(s, err)
}

// kill kills workers at random times.
func (s *switched) kill(times int) {
	s.Helper()
	for range times {
		pass(s, time.Duration(300+s.random.IntN(1200))*time.Millisecond)
		victim := s.workers[s.random.IntN(len(s.workers))].Current()
		victim.Kill()
		victim.AwaitExit(s)
	}
}

// count compares what was published with what is delivered, failed, and waits.
func (s *switched) count(stage string) {
	s.Helper()
	const all = `select array[count(*) filter (where status = 'delivered'), count(*) filter (where status = 'failed'),
		count(*) filter (where status = 'pending'), count(*) filter (where status = 'relayed'),
		count(*) filter (where relayed_at > '-infinity')] from core.outbox`
	before := s.Events()
	n := one[[]int](s.bundle, all)
	open := s.load.Publishers * s.load.PerTx // committed, and not in the ledger yet
	if sum := n[0] + n[1] + n[2] + n[3]; sum < before || sum > s.Events()+open || n[1] > 0 {
		s.Errorf("%s: %d to %d events are published; delivered, failed, pending and relayed are %v", stage, before,
			s.Events(), n[:4])
	}
	s.Logf("%s: delivered %d, failed %d, pending %d, relayed %d; sent so far: %d", stage, n[0], n[1], n[2], n[3], n[4])
}

// While producers publish and workers are killed, events take both paths, then that of a broker that is stopped once,
// and then that of Postgres again. No event is lost, and no effect repeated.
func TestTheSwitchToABrokerAndBackUnderLoad(t *testing.T) {
	b := setup(t)
	b.register()
	number := seed(t)
	s := &switched{
		bundle: b, Ledger: ledger.New(kindOf(scriptedType, nil, primaryHandler, coHandler)),
		random: rand.New(rand.NewPCG(number, number)),
		load:   ledger.Load{URL: b.publisher, Publishers: 4, Rate: 25, PerTx: 5, Seed: number},
		config: embeddednats.Config{Dir: t.TempDir(), Password: "of a test"},
	}
	s.startBroker()
	t.Cleanup(func() { s.broker.Stop() })
	command := b.testCommand(unlimited)
	command.Env = append(command.Env, app.EnvNatsURL+"="+s.broker.URL())
	for range 3 {
		s.workers = append(s.workers, process.Supervise(t, command, restartPause))
	}
	for _, w := range s.workers {
		w.Current().Await(t, listening, 1, testTimeout)
		w.Current().Await(t, "the broker is ready", 1, testTimeout)
	}
	o := operator.New(pgtest.Pool(t, pgtest.Login(t, b.direct(), operator.Role)))
	publishing := s.Start(t, s.load)

	type report struct {
		app.Comparison
		error
	}
	reports := make(chan report, 1)
	go func() {
		c, err := app.CompareRelay(t.Context(), o, jetstream.Config{URL: s.broker.URL()}, 6*time.Second, "anna")
		reports <- report{c, err}
	}()
	s.kill(5)
	var c report
	select {
	case c = <-reports:
	case <-time.After(2 * testTimeout):
		t.Fatal("the comparison does not end")
	}
	must(t, c.error)
	// of a worker that was killed while it sent events, the copies are not marked
	if c.Sent == 0 || !c.Equal() || c.Handled[primaryHandler] != c.Sent || c.Handled[coHandler] != c.Sent {
		t.Errorf("the comparison: %+v", c.Comparison)
	}
	t.Logf("%d events took both paths, %d copies are not marked", c.Sent, c.Unmarked)
	s.count("both")

	_, err := o.SwitchRelay(t.Context(), pgtx.PathJetStream, "anna")
	must(t, err)
	s.kill(4)
	s.count("the broker")
	s.broker.Stop()
	s.kill(1)
	s.count("without the broker")
	s.startBroker()
	s.kill(4)
	s.count("the broker again")

	_, err = o.SwitchRelay(t.Context(), pgtx.PathPostgres, "anna")
	must(t, err)
	returned, err := app.EmptyRelay(t.Context(), o, time.Second)
	must(t, err)
	s.kill(1)
	s.count(fmt.Sprintf("back, with %d events that workers have left", returned))
	if n := one[int](b, "select count(*) from core.outbox where status = 'relayed'"); n > 0 {
		t.Errorf("%d events are relayed", n)
	}
	publishing.Stop()
	s.Verify(t, b.direct(), ledger.Expect{Within: 2 * testTimeout, MaxAttempts: 5})
	if errs := s.Errors(); len(errs) > 0 {
		t.Errorf("publishing failed: %v", errs)
	}
}
