//go:build heavy

package faults_test

import (
	"fmt"
	"net"
	"net/url"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"spectral/tests/faults/ledger"
	"spectral/tests/faults/process"
	"spectral/tests/faults/proxy"
	"spectral/tests/pgtest"
)

func TestRollingRestartLosesNothing(t *testing.T) {
	b := setup(t)
	l := ledger.New(ledger.Cards())
	running := b.runAll(3, b.worker, "")
	load := l.Start(t, ledger.Load{URL: b.publisher, Publishers: 4, Rate: 25, PerTx: 5, Seed: seed(t)})
	for i := range 6 {
		pass(t, 2500*time.Millisecond) // a starting worker polls: too rarely to hide a missed notification
		old := running[i%3]
		old.Signal(syscall.SIGTERM)
		if code := old.AwaitExit(t); code != 0 {
			t.Errorf("restart %d: exit code %d, want 0", i, code)
		}
		running[i%3] = b.run(b.worker, "")
	}
	load.Stop()
	l.Verify(t, b.direct(), ledger.Expect{Within: testTimeout})
}

// A worker that is frozen while a handler runs (paused container or machine) does not keep its row.
func TestEventOfFrozenWorkerIsDeliveredByAnother(t *testing.T) {
	b := setup(t)
	l := ledger.New(ledger.Cards())
	frozen := b.run(b.worker, "")
	held := b.lockCard("held-1")
	l.Publish(t, b.publisher, "held-1", "k000001", "k000002")
	held.awaitHandler()
	other := b.run(b.worker, "")
	frozen.Freeze()
	held.release() // the handler's statement ends; the frozen worker does not read the reply
	b.eventually("another worker has delivered what the frozen one held", 75*time.Second, func() bool {
		return strings.HasPrefix(b.card("held-1"), "delivered")
	})
	frozen.Thaw()
	// Alone again, the thawed worker delivers new events.
	other.Signal(syscall.SIGTERM)
	other.AwaitExit(t)
	l.Publish(t, b.publisher, "k000003")
	// its sessions end within a moment of one another: if that of the row is the last, the worker counts as dead
	l.Verify(t, b.direct(), ledger.Expect{Within: testTimeout, MaxAttempts: 2})
}

// The worker is killed just before its n-th statement arrives, for every n of a dispatch.
func TestWorkerMayBeKilledBeforeAnyStatement(t *testing.T) {
	// An event that runs alone when its worker is killed is charged with a crash.
	for first := range parts {
		t.Run(fmt.Sprint("from ", first+1),
			func(t *testing.T) { killsAtStatements(t, []string{"a"}, proxy.Freeze, 2, first+1) })
	}
}

// parts is how many tests share the statements: each takes every fourth.
const parts = 4

func killsAtStatements(t *testing.T, keys []string, action proxy.Action, maxAttempts, first int) {
	t.Helper()
	b := setup(t)
	l := ledger.New(ledger.Cards())
	pool := proxy.InFrontOf(t, b.worker)
	command := b.command(b.worker, pool.URL(t, b.worker))
	empty := func() bool { return one[int](b, "select count(*) from core.outbox where status = 'pending'") == 0 }
	for n := first; ; n += parts {
		worker := process.Start(t, command)
		worker.Await(t, listening, 1, testTimeout)
		b.eventually("delivery of what the last worker left", testTimeout, empty)
		filter, hit := proxy.Nth(n, action, proxy.Statement)
		pool.Filter(filter)
		published := make([]string, len(keys))
		for i, key := range keys {
			published[i] = fmt.Sprintf("%s%d", key, n)
		}
		l.Publish(t, b.publisher, published...)
		reached := func() bool {
			select {
			case <-hit:
				return true
			default:
				return false
			}
		}
		b.eventually("the statement or the end", testTimeout, func() bool { return reached() || empty() })
		killed := reached() // another runner may have delivered what the blocked one had not claimed
		worker.Kill()
		worker.AwaitExit(t)
		pool.Filter(nil)
		pool.ResetAll()
		if !killed { // the dispatch has fewer statements
			t.Logf("a dispatch has fewer than %d statements", n)
			break
		}
	}
	b.run(b.worker, "")
	l.Verify(t, b.direct(), ledger.Expect{Within: testTimeout, MaxAttempts: maxAttempts})
}

// A handler that ends its process fails its event after five crashes. Events claimed with it, or running at that
// time, are delivered with one attempt.
func TestHandlerThatEndsItsProcessFailsAlone(t *testing.T) {
	t.Run(doKill, func(t *testing.T) { endsItsProcess(t, doKill, unlimited, 50, plainKey) })
	// These run in other runners whenever the process ends.
	slow := func(i int) string { return fmt.Sprintf("%s-%d", doSleep, i) }
	t.Run("among few slow ones", func(t *testing.T) { endsItsProcess(t, doExit, unlimited, 3, slow) })
}

func endsItsProcess(t *testing.T, do, memory string, neighbours int, key func(int) string) {
	t.Helper()
	b := setup(t)
	b.register()
	l := ledger.New(kindOf(scriptedType, nil, primaryHandler, coHandler))
	killer := do + "-1"
	keys := make([]string, 0, neighbours+1)
	for i := range neighbours + 1 {
		keys = append(keys, key(i))
	}
	keys[neighbours/2] = killer
	l.Publish(t, b.publisher, keys...)
	process.Supervise(t, b.testCommand(memory), restartPause)
	// the first crash was also that of the batch
	l.Verify(t, b.direct(), ledger.Expect{Within: 6 * testTimeout, Failed: map[string]int{killer: 4}})
}

func TestConnectionLostAroundCommitRepeatsNothing(t *testing.T) {
	batch := plainKeys(1, 4)
	for name, c := range map[string]struct {
		action proxy.Action
		keys   []string
	}{
		"before it arrives":    {proxy.Reset, batch},
		"after a single event": {proxy.ForwardThenReset, batch[:1]},
		"no reply, no reset":   {proxy.DropReplies, batch},
	} {
		t.Run(name, func(t *testing.T) { loseCommit(t, c.action, c.keys) })
	}
}

// The server stops under load: by a fast shutdown, by an immediate one, and by SIGKILL. No committed event is lost,
// and none loses an attempt.
func TestEventsSurviveServerShutdowns(t *testing.T) {
	b, s := setupServer(t)
	l := ledger.New(ledger.Cards())
	running := b.runAll(3, b.worker, "")
	load := l.Start(t, ledger.Load{URL: b.publisher, Publishers: 4, Rate: 50, PerTx: 5, Seed: seed(t)})
	for i, how := range []syscall.Signal{syscall.SIGINT, syscall.SIGQUIT, syscall.SIGKILL} {
		pass(t, 3*time.Second)
		held := b.lockCard(fmt.Sprintf("%s%d", ledger.LockedPrefix, i)) // a handler runs until the server stops
		l.Publish(t, b.publisher, held.key)
		held.awaitHandler()
		s.Crash(t, how)
		s.Start(t)
	}
	pass(t, 4*time.Second)
	load.Stop()
	t.Log(l.Counts())
	l.Verify(t, b.direct(), ledger.Expect{Within: 2 * testTimeout})
	wantRunning(t, running)
}

// What pg_stat_statements keeps of a worker is as much after many events, in many workspaces, as after a few; and an
// event takes few statements, polls and barriers included. A proxy counts what the server completes, which is exact:
// pg_stat_statements counts a prepared BEGIN or SAVEPOINT once.
func TestStatementsAreFew(t *testing.T) {
	b, _ := setupServerWith(t, map[string]string{"shared_preload_libraries": "pg_stat_statements"})
	conn := pgtest.Conn(t, b.direct())
	query := func(sql string) (n int) {
		t.Helper()
		if err := conn.QueryRow(t.Context(), sql).Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	_, err := conn.Exec(t.Context(), "create extension pg_stat_statements")
	must(t, err)
	var completed atomic.Int64
	counter := proxy.InFrontOf(t, b.worker)
	counter.Filter(func(m proxy.Message) proxy.Action {
		if m.From == proxy.Server && m.Type == 'C' {
			completed.Add(1)
		}
		return proxy.Forward
	})
	b.run(counter.URL(t, b.worker), "")
	version := 0
	deliver := func(n int, workspace string) (took int) {
		version++
		before := completed.Load()
		query(fmt.Sprintf(`select count(core.outbox_publish('worlds.world_model_card.published', 'worlds', jsonb_build_object(
			'card_id', 'c' || i, 'version', %d, 'title', 't'), p_workspace_id => %s)) from generate_series(1, %d) i`, version,
			workspace, n))
		b.eventually("the events are delivered", testTimeout, func() bool {
			return query("select count(*) from core.outbox where status <> 'delivered'") == 0
		})
		return int(completed.Load() - before)
	}
	deliver(1, "null") // which opens the connections
	// barrier with poll, BEGIN, settings, claim, journal, SAVEPOINT, key, settling, COMMIT; its handler adds the change of
	// the role, its write and the change back
	alone := make([]int, 9)
	for i := range alone {
		alone[i] = deliver(1, "null")
	}
	slices.Sort(alone)
	if n := alone[len(alone)/2] - 3; n > 9 { // the worker's other tasks fall into some of them
		t.Errorf("%d statements for an event alone, want at most 9", n)
	}
	const events = 1000 // each with a write of its handler
	if n := deliver(events, "null") - events; n > events/5 {
		t.Errorf("%d statements for %d events, want at most 0.2 for each", n, events)
	} else {
		t.Logf("%d statements for %d events; alone %v", n, events, alone)
	}
	for i := range 5 { // one at a time, each under a savepoint; then a batch
		deliver(i*4+5, "gen_random_uuid()")
	}
	if n := query("select count(*) from pg_stat_statements where query like 'savepoint%'"); n != 1 {
		t.Errorf("there are %d texts of savepoint", n)
	}
	rows, err := conn.Query(t.Context(), `select query from pg_stat_statements
		where query ~ '[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}|outbox_gen_[0-9]' and query !~ 'pg_stat_statements'`)
	must(t, err)
	grow, err := pgx.CollectRows(rows, pgx.RowTo[string])
	must(t, err)
	for _, text := range grow {
		t.Errorf("another text for each workspace, event or generation: %s", text)
	}
}

// Commands that wait, or change many events, go on when the server is back.
func TestOperatorCommandsOutliveARestart(t *testing.T) {
	b, s := setupServer(t)
	exec := func(sql string) {
		t.Helper()
		_, err := pgtest.Conn(t, b.direct()).Exec(t.Context(), sql)
		must(t, err)
	}
	login, err := pgx.ParseConfig(b.worker)
	must(t, err)
	exec("grant spectral_operator to " + login.User + `; insert into core.outbox (event_type, event_version, source,
		content_class, channel, generation, payload, idempotency_key, status, attempts, last_error, claimed_at)
		select 'worlds.gone.away', 1, 'worlds', 'operational', 'outbox_gen_1', 1, '{}', 'k' || i, 'failed', 6, 'E: a.b: no',
			now()
		from generate_series(1, 500) i; update core.outbox set status = 'pending', claimed_at = null where
		idempotency_key = 'k1'; select core.generation_announce(2), core.generation_drain(1, 't')`)
	run := func(args ...string) *process.Process {
		command := b.command(b.worker, "")
		command.Args = args
		return process.Start(t, command)
	}
	waiting := run("generation", "status", "1", "--wait", "60s")
	discarding := run("events", "discard", "--all", "--yes", "--batch", "10", "--rate", "50")
	b.eventually("some are discarded", testTimeout, func() bool {
		var n int
		must(t, pgtest.Conn(t, b.direct()).QueryRow(t.Context(),
			"select count(*) from core.outbox where deleted_at is not null").Scan(&n))
		return n > 0
	})
	s.Crash(t, syscall.SIGINT)
	pass(t, 3*time.Second)
	s.Start(t)
	exec("delete from core.outbox where status = 'pending'") // then it is safe to stop
	if code := discarding.AwaitExit(t); code != 0 || !discarding.Says("waiting: for the database: ") {
		t.Errorf("events discard ends with %d", code)
	}
	if code := waiting.AwaitExit(t); code != 0 {
		t.Errorf("generation status --wait ends with %d", code)
	}
}

// Whichever hosts of the URL accept connections and never answer, the live one is found.
func TestHostsThatNeverAnswerArePassedOver(t *testing.T) {
	b := setup(t)
	live, err := url.Parse(b.worker)
	must(t, err)
	hosts := []string{}
	for range 3 {
		silent, err := net.Listen("tcp", "127.0.0.1:0") // the system accepts, and nothing answers
		must(t, err)
		t.Cleanup(func() { must(t, silent.Close()) })
		hosts = append(hosts, silent.Addr().String())
	}
	all := *live
	all.Host = strings.Join(append(hosts, live.Host), ",")
	worker := process.Start(t, b.command(all.String(), ""))
	worker.Await(t, listening, 1, testTimeout) // checks, the pool and LISTEN connect one after the other
	_, err = pgtest.Conn(t, b.direct()).Exec(t.Context(), "select pg_terminate_backend(pid) from pg_stat_activity where "+
		"usename = $1", live.User.Username())
	must(t, err)
	worker.Await(t, listening, 2, time.Minute)
	all.Host = strings.Join(hosts, ",")
	refused := process.Start(t, b.command(all.String(), ""))
	if code := refused.AwaitExit(t); code != 1 {
		t.Errorf("with silent hosts only it ends with %d", code)
	}
	for _, host := range hosts {
		if !refused.Says(host) {
			t.Errorf("the error does not name %s", host)
		}
	}
}

// During a failover the old primary answers for some seconds and refuses to write.
func TestWorkersRecoverAfterFailover(t *testing.T) {
	b, s := setupServer(t)
	l := ledger.New(ledger.Cards())
	running := b.runAll(3, b.worker, "")
	load := l.Start(t, ledger.Load{URL: b.publisher, Publishers: 4, Rate: 25, PerTx: 5, Seed: seed(t)})
	pass(t, 2*time.Second)
	s.Demote(t)
	if !one[bool](b, "select pg_is_in_recovery()") {
		t.Fatal("the server has not become a standby")
	}
	pass(t, 8*time.Second)
	s.Promote(t)
	promoted := time.Now()
	pass(t, 2*time.Second)
	load.Stop()
	t.Log(l.Counts())
	l.Verify(t, b.direct(), ledger.Expect{Within: time.Minute - time.Since(promoted)})
	for _, worker := range running {
		worker.Await(t, listening, 2, time.Minute-time.Since(promoted))
	}
	wantRunning(t, running)
}
