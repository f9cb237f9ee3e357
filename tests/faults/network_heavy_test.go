//go:build heavy

package faults_test

import (
	"math/rand/v2"
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
