//go:build heavy

package faults_test

import (
	"fmt"
	"math/rand/v2"
	"syscall"
	"testing"
	"time"

	"spectral/tests/faults/ledger"
	"spectral/tests/faults/process"
	"spectral/tests/faults/proxy"
	"spectral/tests/pgtest"
)

// supervise starts n real workers that are restarted when they end, and waits until they listen.
func (b *bundle) supervise(n int) []*process.Supervisor {
	b.Helper()
	all := make([]*process.Supervisor, n)
	for i := range all {
		all[i] = process.Supervise(b.T, b.command(b.worker, ""), restartPause)
	}
	for _, s := range all {
		s.Current().Await(b.T, listening, 1, testTimeout)
	}
	return all
}

func TestEventsSurviveRandomKills(t *testing.T) { killsAtRandom(t, 5) }

func killsAtRandom(t *testing.T, kills int) {
	t.Helper()
	b := setup(t)
	s := seed(t)
	l := ledger.New(ledger.Cards())
	supervisors := b.supervise(3)
	load := l.Start(t, ledger.Load{URL: b.publisher, Publishers: 4, Rate: 25, PerTx: 5, Seed: s})
	random := rand.New(rand.NewPCG(s, s))
	for range kills {
		pass(t, time.Duration(50+random.IntN(500))*time.Millisecond)
		victim := supervisors[random.IntN(len(supervisors))].Current()
		victim.Kill()
		victim.AwaitExit(t)
	}
	load.Stop()
	// An event that runs alone when its worker is killed is charged with a crash.
	l.Verify(t, b.direct(), ledger.Expect{Within: 2 * testTimeout, MaxAttempts: 5})
}

func TestEventsSurviveLostConnections(t *testing.T) { losesConnections(t, 8) }

func losesConnections(t *testing.T, rounds int) {
	t.Helper()
	b := setup(t)
	s := seed(t)
	p := proxy.InFrontOf(t, b.worker)
	l := ledger.New(ledger.Cards())
	running := b.runAll(3, p.URL(t, b.worker), "")
	load := l.Start(t, ledger.Load{URL: p.URL(t, b.publisher), Publishers: 4, Rate: 25, PerTx: 5, Seed: s})
	random := rand.New(rand.NewPCG(s, s))
	connections := 0
	for range rounds {
		pass(t, time.Duration(100+random.IntN(700))*time.Millisecond)
		connections += p.ResetAll()
	}
	load.Stop()
	t.Logf("%d connections lost, %v", connections, l.Counts())
	l.Verify(t, b.direct(), ledger.Expect{Within: 2 * testTimeout})
	wantRunning(t, running)
}

// The network drops packets for longer than any statement may take.
func TestEventsSurviveAStalledNetwork(t *testing.T) { stallsNetwork(t, 12*time.Second) }

func stallsNetwork(t *testing.T, length time.Duration) {
	t.Helper()
	b := setup(t)
	p := proxy.InFrontOf(t, b.worker)
	l := ledger.New(ledger.Cards())
	running := b.runAll(2, p.URL(t, b.worker), "")
	load := l.Start(t, ledger.Load{URL: b.publisher, Publishers: 4, Rate: 10, PerTx: 5, Seed: seed(t)})
	pass(t, 2*time.Second)
	p.Set(proxy.Stall)
	pass(t, length)
	p.Set(proxy.Pass)
	pass(t, 2*time.Second)
	load.Stop()
	l.Verify(t, b.direct(), ledger.Expect{Within: 2 * testTimeout})
	wantRunning(t, running)
}

// Additive migrations under load cost no event an attempt, whatever plans the workers have cached.
func TestAdditiveMigrationsCostNoAttempts(t *testing.T) { migratesUnderLoad(t, 4, 2) }

func migratesUnderLoad(t *testing.T, workers, rounds int) {
	t.Helper()
	b := setup(t)
	l := ledger.New(ledger.Cards())
	running := b.runAll(workers, b.worker, "")
	load := l.Start(t, ledger.Load{URL: b.publisher, Publishers: 4, Rate: 25, PerTx: 5, Seed: seed(t)})
	owner := pgtest.Conn(t, b.direct())
	for i := range rounds {
		pass(t, time.Second)
		for _, step := range []string{"alter table core.outbox add column added_%d text null",
			"alter table platform.system_cards add column added_%d integer null",
			"alter table core.event_handled add column added_%d integer null",
			"create index added_%d on platform.system_cards (projected_at)",
			"create index concurrently added_%[1]d_failed on core.outbox (occurred_at) where status = 'failed'"} {
			_, err := owner.Exec(t.Context(), fmt.Sprintf(step, i))
			must(t, err)
		}
	}
	pass(t, time.Second)
	load.Stop()
	t.Log(l.Counts())
	l.Verify(t, b.direct(), ledger.Expect{Within: testTimeout})
	wantRunning(t, running)
}

// Workers are killed, stopped and frozen at random, and each time some leases expire.
func TestLeasedJobsSurviveRandomFaults(t *testing.T) { faultsUnderLeases(t, 12) }

func faultsUnderLeases(t *testing.T, steps int) {
	t.Helper()
	const perStep, tries = 20, 50
	const abandoned = "claimed_at < clock_timestamp() - interval '5 s'" // no job takes that long
	s := seed(t)
	random := rand.New(rand.NewPCG(s, s))
	jitter := rand.New(rand.NewPCG(s, s+1)) // used by one goroutine
	takes := func(int) time.Duration { return time.Duration(20+jitter.IntN(1000)) * time.Millisecond }
	b := setup(t).leased(jobConfig{
		Lease: lease, Concurrency: 16, SecondExecutor: true, Retries: tries, Grace: 300 * time.Millisecond,
	}, takes)
	supervisors := make([]*process.Supervisor, 3)
	for i := range supervisors {
		supervisors[i] = process.Supervise(t, b.command(b.worker, ""), restartPause)
	}
	var frozen []*process.Process
	for step := range steps {
		keys := make([]string, perStep)
		for i := range keys {
			keys[i] = plainKey(step*perStep + i + 1)
			if random.IntN(20) == 0 {
				keys[i] = fmt.Sprintf("%s-%s", doFailOnce, keys[i])
			}
		}
		b.publish(keys...)
		pass(t, time.Duration(300+random.IntN(700))*time.Millisecond)
		for _, p := range frozen {
			p.Thaw()
		}
		frozen = nil
		victim := supervisors[random.IntN(len(supervisors))].Current()
		switch step % 3 {
		case 0:
			victim.Kill()
		case 1:
			victim.Signal(syscall.SIGTERM)
		default:
			victim.Freeze()
			frozen = append(frozen, victim)
		}
		b.expireWhere("random() < 0.1 or " + abandoned)
	}
	for _, p := range frozen {
		p.Thaw()
	}
	b.eventually("every event is settled", 6*testTimeout, func() bool {
		b.expireWhere(abandoned)
		return one[int](b.bundle, "select count(*) from core.outbox where status in ('pending', 'in_flight')") == 0
	})
	b.ledger.Verify(t, b.direct(), ledger.Expect{Within: testTimeout, MaxAttempts: tries})
	lost := 0
	for _, s := range supervisors {
		for _, p := range s.Processes() {
			lost += p.Count(leaseLost)
		}
	}
	totals := b.verify(ledger.Expect{Within: testTimeout, MaxAttempts: tries})
	if totals.Events != steps*perStep || totals.Leases["delivered"] != steps*perStep {
		t.Error(totals)
	}
	if totals.RepeatsAfter["reaped"] == 0 || totals.RepeatsAfter["released"] == 0 ||
		totals.RepeatsAfter["retried"] == 0 || lost == 0 {
		t.Errorf("%v, and %d leases that their workers found lost: the test caused too few faults", totals, lost)
	}
}

func TestHandlerThatRunsOutOfMemoryFailsAlone(t *testing.T) {
	endsItsProcess(t, doAllocate, memoryLimited, 10, plainKey)
}
