//go:build heavy

package faults_test

import (
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"time"

	"spectral/tests/faults/ledger"
	"spectral/tests/faults/proxy"
)

// The socket stays open, so that only the worker's own patience (10 s) tells.
func TestAnswerToCommitNeverComes(t *testing.T) {
	losesCommit(t, proxy.Hush, []string{neighbour(1), neighbour(2), neighbour(3)}, patience)
}

func TestConnectionsCutUnderLoad(t *testing.T) {
	b := setup(t)
	s := seed(t)
	p := proxy.InFrontOf(t, b.worker)
	l := ledger.New(ledger.Cards(nil))
	running := b.runAll(3, p.URL(t, b.worker), "")
	load := l.Start(t, ledger.Load{URL: p.URL(t, b.publisher), Publishers: 4, Rate: 25, PerTx: 5, Seed: s})
	random := rand.New(rand.NewPCG(s, s))
	cut := 0
	for range 30 {
		meanwhile(t, time.Duration(100+random.IntN(700))*time.Millisecond)
		cut += p.Cut()
	}
	load.Stop()
	t.Logf("%d connections cut, %v", cut, l.Counts())
	l.Verify(t, b.direct(), ledger.Expect{Within: 2 * patience})
	wantRunning(t, running)
}

// Connections break off within an answer, at any byte of it.
func TestAnswersTornUnderLoad(t *testing.T) {
	b := setup(t)
	s := seed(t)
	p := proxy.InFrontOf(t, b.worker)
	l := ledger.New(ledger.Cards(nil))
	running := b.runAll(2, p.URL(t, b.worker), "")
	load := l.Start(t, ledger.Load{URL: p.URL(t, b.publisher), Publishers: 4, Rate: 25, PerTx: 5, Seed: s})
	random := rand.New(rand.NewPCG(s, s))
	for range 20 {
		p.Filter(proxy.AfterBytes(random.IntN(4000)))
		meanwhile(t, 300*time.Millisecond)
		p.Filter(nil)
		meanwhile(t, 700*time.Millisecond)
	}
	load.Stop()
	t.Log(l.Counts())
	l.Verify(t, b.direct(), ledger.Expect{Within: 2 * patience})
	wantRunning(t, running)
}

// A network that swallows packets for 20 s, longer than any statement may take.
func TestNetworkStalls(t *testing.T) {
	b := setup(t)
	p := proxy.InFrontOf(t, b.worker)
	l := ledger.New(ledger.Cards(nil))
	running := b.runAll(2, p.URL(t, b.worker), "")
	load := l.Start(t, ledger.Load{URL: b.publisher, Publishers: 4, Rate: 10, PerTx: 5, Seed: seed(t)})
	meanwhile(t, 2*time.Second)
	p.Set(proxy.Stall)
	meanwhile(t, 20*time.Second)
	p.Set(proxy.Pass)
	meanwhile(t, 2*time.Second)
	load.Stop()
	l.Verify(t, b.direct(), ledger.Expect{Within: 2 * patience})
	wantRunning(t, running)
}

// The LISTEN connection is dead and nobody was told; new ones would work.
func TestHalfOpenListen(t *testing.T) {
	b := setup(t)
	direct := proxy.InFrontOf(t, b.worker)
	l := ledger.New(ledger.Cards(nil))
	worker := b.run(direct.URL(t, b.worker), b.worker)
	l.Publish(t, b.publisher, neighbour(1))
	l.Verify(t, b.direct(), ledger.Expect{Within: patience})
	var dead atomic.Int64
	dead.Store(int64(len(direct.Accepted())))
	direct.Filter(func(m proxy.Message) proxy.Verdict {
		if int64(m.Conn) <= dead.Load() {
			return proxy.Freeze
		}
		return proxy.Forward
	})
	started := time.Now()
	l.Publish(t, b.publisher, neighbour(2))
	l.Verify(t, b.direct(), ledger.Expect{Within: 20 * time.Second}) // 15 s to notice, 5 s for the poll
	t.Logf("picked up after %s", time.Since(started))
	worker.Await(t, listening, 2, patience)
	// and from now on at once
	l.Publish(t, b.publisher, neighbour(3))
	l.Verify(t, b.direct(), ledger.Expect{Within: time.Second})
}

// Twenty workers and a database that is down for a minute: they must neither storm it nor march in
// step, and all be back when it is.
func TestDatabaseDownForTwentyWorkers(t *testing.T) {
	const (
		many    = 20
		settle  = 20 * time.Second // until all have backed off
		outage  = 80 * time.Second
		mostPer = 10 // connection attempts of one worker in a minute
	)
	b := setup(t)
	p := proxy.InFrontOf(t, b.worker)
	l := ledger.New(ledger.Cards(nil))
	running := b.runAll(many, p.URL(t, b.worker), "")
	load := l.Start(t, ledger.Load{URL: b.publisher, Publishers: 2, Rate: 5, PerTx: 3, Seed: seed(t)})
	meanwhile(t, time.Second)
	p.Set(proxy.Refuse)
	p.Cut()
	started := time.Now()
	meanwhile(t, outage)
	p.Set(proxy.Pass)

	var late []time.Duration // attempts once backed off, since the outage began
	for _, at := range p.Accepted() {
		if since := at.Sub(started); since > settle && since < outage {
			late = append(late, since)
		}
	}
	perMinute := float64(len(late)) / many / (outage - settle).Minutes()
	t.Logf("%d attempts in all, %.1f a minute and worker once backed off", len(p.Accepted()), perMinute)
	if perMinute > mostPer {
		t.Errorf("%.1f connection attempts a minute and worker, want at most %d", perMinute, mostPer)
	}
	buckets := make(map[int]int) // by 250 ms
	for _, since := range late {
		buckets[int(since/(250*time.Millisecond))]++
	}
	for bucket, n := range buckets {
		if n > many/2 {
			t.Errorf("%d attempts within 250 ms, %s after the outage began: %d workers march in step", n, time.Duration(bucket)*250*time.Millisecond, many)
		}
	}
	for _, worker := range running {
		worker.Await(t, listening, 2, 45*time.Second) // the longest delay and a half
	}
	load.Stop()
	l.Verify(t, b.direct(), ledger.Expect{Within: 2 * patience})
	wantRunning(t, running)
}
