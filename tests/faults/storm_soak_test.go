//go:build soak

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
	"spectral/tests/pgbouncer"
	"spectral/tests/pgtest"
)

// deaf is what a worker logs while notifications do not reach it.
const deaf = "no LISTEN connection: events wait for the poll"

// supervise starts n real workers that are restarted whenever they end, and returns when they
// listen.
func (b *bundle) supervise(n int) []*process.Supervisor {
	b.Helper()
	all := make([]*process.Supervisor, n)
	for i := range all {
		all[i] = process.Supervise(b.T, b.command(b.worker, ""), restartPause)
	}
	for _, s := range all {
		s.Current().Await(b.T, listening, 1, patience)
	}
	return all
}

func TestKilledAtRandom(t *testing.T) {
	b := setup(t)
	s := seed(t)
	l := ledger.New(ledger.Cards(nil))
	supervisors := b.supervise(3)
	load := l.Start(t, ledger.Load{URL: b.publisher, Publishers: 4, Rate: 25, PerTx: 5, Seed: s})
	random := rand.New(rand.NewPCG(s, s))
	for range 20 {
		letRun(t, time.Duration(50+random.IntN(500))*time.Millisecond)
		victim := supervisors[random.IntN(len(supervisors))].Current()
		victim.Kill()
		victim.AwaitExit(t, grace)
	}
	load.Stop()
	// an event that runs alone when its worker is killed is charged with it
	l.Verify(t, b.direct(), ledger.Expect{Within: 2 * patience, MaxAttempts: 5})
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
		letRun(t, time.Duration(100+random.IntN(700))*time.Millisecond)
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
	letRun(t, 2*time.Second)
	p.Set(proxy.Stall)
	letRun(t, 20*time.Second)
	p.Set(proxy.Pass)
	letRun(t, 2*time.Second)
	load.Stop()
	l.Verify(t, b.direct(), ledger.Expect{Within: 2 * patience})
	wantRunning(t, running)
}

// Generation N runs on the schema of N+1: additive steps under load must not cost an event an
// attempt, whatever plans the workers have cached.
func TestAdditiveMigrationsUnderTwentyWorkers(t *testing.T) {
	b := setup(t)
	l := ledger.New(ledger.Cards(nil))
	running := b.runAll(20, b.worker, "")
	load := l.Start(t, ledger.Load{URL: b.publisher, Publishers: 4, Rate: 25, PerTx: 5, Seed: seed(t)})
	owner := pgtest.Conn(t, b.direct())
	for i := range 5 {
		letRun(t, time.Second)
		for _, step := range []string{
			"alter table core.outbox add column added_%d text null",
			"alter table platform.system_cards add column added_%d integer null",
			"alter table core.event_handled add column added_%d integer null",
			"create index added_%d on platform.system_cards (projected_at)",
			"create index concurrently added_%[1]d_too on core.outbox (occurred_at) where status = 'failed'",
		} {
			_, err := owner.Exec(t.Context(), fmt.Sprintf(step, i))
			must(t, err)
		}
	}
	letRun(t, time.Second)
	load.Stop()
	t.Log(l.Counts())
	l.Verify(t, b.direct(), ledger.Expect{Within: patience})
	wantRunning(t, running)
}

// Workers that are killed, stopped in order, and frozen, at random; each time some leases have run out.
func TestLeasesInAStorm(t *testing.T) {
	const steps, perStep, tries = 25, 40, 50
	const old = "claimed_at < clock_timestamp() - interval '5 s'" // of a worker that is gone: the work is shorter
	s := seed(t)
	random := rand.New(rand.NewPCG(s, s))
	jitter := rand.New(rand.NewPCG(s, s+1)) // published by one goroutine
	takes := func(int) time.Duration { return time.Duration(20+jitter.IntN(1000)) * time.Millisecond }
	b := setup(t).leased(errands{Lease: lease, Concurrency: 16, Escorted: true, Retries: tries, Grace: time.Second}, takes)
	supervisors := make([]*process.Supervisor, 3)
	for i := range supervisors {
		supervisors[i] = process.Supervise(t, b.command(b.worker, ""), restartPause)
	}
	var frozen []*process.Process
	for step := range steps {
		keys := make([]string, perStep)
		for i := range keys {
			keys[i] = neighbour(step*perStep + i + 1)
			if random.IntN(20) == 0 {
				keys[i] = fmt.Sprintf("%s-%s", doBalk, keys[i])
			}
		}
		b.publish(keys...)
		letRun(t, time.Duration(300+random.IntN(700))*time.Millisecond)
		for _, p := range frozen {
			p.Thaw()
		}
		frozen = nil
		victim := supervisors[random.IntN(len(supervisors))].Current()
		switch n := random.IntN(10); {
		case n < 4:
			victim.Kill()
		case n < 7:
			victim.Signal(syscall.SIGTERM)
		default:
			victim.Freeze()
			frozen = append(frozen, victim)
		}
		b.expireWhere("random() < 0.1 or " + old)
	}
	for _, p := range frozen {
		p.Thaw()
	}
	b.eventually("all is settled", 6*patience, func() bool {
		b.expireWhere(old)
		return one[int](b.bundle, "select count(*) from core.outbox where status in ('pending', 'in_flight')") == 0
	})
	b.ledger.Verify(t, b.direct(), ledger.Expect{Within: patience, MaxAttempts: tries})
	lost := 0
	for _, s := range supervisors {
		for _, p := range s.Processes() {
			lost += p.Count(leaseLost)
		}
	}
	totals := b.verify(ledger.Expect{Within: patience, MaxAttempts: tries})
	if totals.Events != steps*perStep || totals.Leases["delivered"] != steps*perStep {
		t.Error(totals)
	}
	if totals.Because["reaped"] == 0 || totals.Because["released"] == 0 || totals.Because["retried"] == 0 || lost == 0 {
		t.Errorf("%v, and %d leases that their workers found lost: the storm was none", totals, lost)
	}
}

func TestHandlerThatRunsOutOfMemory(t *testing.T) {
	endsItsProcess(t, doBalloon, limited, 50, neighbour)
}

// What a killed worker held is delivered even if the others cannot listen.
func TestKilledBesideWorkersThatCannotListen(t *testing.T) {
	b := setup(t)
	l := ledger.New(ledger.Cards(nil))
	worker := b.run(b.worker, "")
	held := b.hold("held-1")
	l.Publish(t, b.publisher, "held-1", neighbour(1))
	held.awaitEntered()
	other := process.Start(t, b.command(pgbouncer.Start(t, pgbouncer.Transaction, b.worker).URL, b.worker))
	other.Await(t, deaf, 1, patience)
	worker.Kill()
	worker.AwaitExit(t, grace)
	held.letGo()
	// 35 s until the verdict, found by a poll that reconnecting and its self-tests hold up
	l.Verify(t, b.direct(), ledger.Expect{Within: 3 * patience})
}

// Every way to lose every COMMIT; the heavy tests lose each in one way.
func TestAllLostCommitsOfLeasesRepeatNothing(t *testing.T) {
	for name, verdict := range map[string]proxy.Verdict{
		"before it arrives": proxy.Cutoff, "in the middle of it": proxy.Tear, "its reply": proxy.ForwardThenCut, "its reply never comes": proxy.Hush,
	} {
		for at := range commits {
			t.Run(at+"/"+name, func(t *testing.T) { losesCommitOfALease(t, at, verdict) })
		}
	}
}

func TestKilledAtEveryStatement(t *testing.T) {
	t.Run("one event/after", func(t *testing.T) { killsBetween(t, []string{"a"}, proxy.Hush, 2) })
	t.Run("a batch/before", func(t *testing.T) { killsBetween(t, []string{"a", "b", "c"}, proxy.Freeze, 1) })
	t.Run("a batch/after", func(t *testing.T) { killsBetween(t, []string{"a", "b", "c"}, proxy.Hush, 1) })
}

func TestMoreHandlersThatEndTheirProcess(t *testing.T) {
	slow := func(i int) string { return fmt.Sprintf("%s-%d", doDawdle, i) }
	t.Run(doExit, func(t *testing.T) { endsItsProcess(t, doExit, unlimited, 50, neighbour) })
	t.Run("beside many slow ones", func(t *testing.T) { endsItsProcess(t, doExit, unlimited, 50, slow) })
	t.Run("leased, among others", func(t *testing.T) { killsLeasesAmongOthers(t, doExit) })
}
