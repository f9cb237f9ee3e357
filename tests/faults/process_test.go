package faults_test

import (
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"spectral/tests/faults/ledger"
	"spectral/tests/faults/process"
	"spectral/tests/faults/proxy"
)

// stopping is what a worker logs when it begins to stop.
const stopping = "stopping: waiting for running handlers"

func TestTerminatedWorkerFinishesItsHandlers(t *testing.T) {
	b := setup(t)
	l := ledger.New(ledger.Cards())
	worker := b.run(b.worker, "")
	held := b.lockCard("held-1")
	l.Publish(t, b.publisher, "held-1", "k000001", "k000002")
	held.awaitHandler()
	worker.Signal(syscall.SIGTERM)
	worker.Await(t, stopping, 1, testTimeout)
	l.Publish(t, b.publisher, "k000003") // for the next worker
	held.release()
	if code := worker.AwaitExit(t); code != 0 {
		t.Errorf("exit code %d, want 0", code)
	}
	if got := b.card("held-1"); got != "delivered 1" {
		t.Errorf("the running event is %s", got)
	}
	b.run(b.worker, "")
	l.Verify(t, b.direct(), ledger.Expect{Within: testTimeout})
}

// The kernel ignores a signal to process 1 of a container for which that has no handler.
func TestHangupStopsAWorkerThatIsProcess1(t *testing.T) {
	unshare, err := exec.LookPath("unshare")
	if err != nil || os.Geteuid() != 0 {
		t.Skip("only root with unshare (util-linux) can start process 1 of a namespace")
	}
	b := setup(t)
	command := b.command(b.worker, "")
	command.Path, command.Args = unshare, append([]string{"--pid", "--fork", command.Path}, command.Args...)
	worker := process.Start(t, command)
	worker.Await(t, listening, 1, testTimeout)
	children, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%[1]d/children", worker.PID()))
	must(t, err)
	pid, err := strconv.Atoi(strings.TrimSpace(string(children)))
	must(t, err)
	must(t, syscall.Kill(pid, syscall.SIGHUP))
	if code := worker.AwaitExit(t); code != 0 {
		t.Errorf("exit code %d, want 0", code)
	}
}

func TestEventsOfKilledWorkerAreDelivered(t *testing.T) {
	b := setup(t)
	l := ledger.New(ledger.Cards())
	worker := b.run(b.worker, "")
	held := b.lockCard("held-1")
	l.Publish(t, b.publisher, "held-1", "k000001", "k000002")
	held.awaitHandler()
	worker.Kill()
	worker.AwaitExit(t)
	held.release()
	b.run(b.worker, "")
	l.Verify(t, b.direct(), ledger.Expect{Within: testTimeout})
}

// The worker cannot know whether a COMMIT whose reply is lost took effect. Each event must be handled once either
// way.
func TestLostCommitReplyRepeatsNothing(t *testing.T) {
	loseCommit(t, proxy.ForwardThenReset, plainKeys(1, 4))
}

// loseCommit does action to the COMMIT that settles the events.
func loseCommit(t *testing.T, action proxy.Action, keys []string) {
	t.Helper()
	b := setup(t)
	l := ledger.New(ledger.Cards())
	pool := proxy.InFrontOf(t, b.worker)
	worker := b.run(b.worker, pool.URL(t, b.worker))
	var conn atomic.Int64
	filter, hit := proxy.Nth(1, action, func(m proxy.Message) bool {
		conn.Store(int64(m.Conn))
		return proxy.Commit(m)
	})
	pool.Filter(filter)
	l.Publish(t, b.publisher, keys...)
	select {
	case <-hit:
	case <-time.After(testTimeout):
		t.Fatal("no COMMIT went through the proxy")
	}
	l.Verify(t, b.direct(), ledger.Expect{Within: testTimeout})
	// The worker closes the connection and goes on with all its runners.
	b.eventually("the worker closes the connection", testTimeout, func() bool {
		return !slices.Contains(pool.Open(), int(conn.Load()))
	})
	l.Publish(t, b.publisher, plainKeys(101, 8)...) // enough for every runner
	l.Verify(t, b.direct(), ledger.Expect{Within: testTimeout})
	wantRunning(t, []*process.Process{worker})
}

// Whether or not its log is read, a worker delivers events and ends in order.
func TestLogsNeverStopWork(t *testing.T) {
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	must(t, err)
	goneReader, gone, err := os.Pipe()
	must(t, err)
	must(t, goneReader.Close())
	unread, stalled, err := os.Pipe()
	must(t, err)
	const setPipeSize = 1031 // F_SETPIPE_SZ of fcntl(2): a page is full after a few entries
	if _, _, e := syscall.Syscall(syscall.SYS_FCNTL, stalled.Fd(), setPipeSize, 4096); e != 0 {
		t.Fatal(e)
	}
	t.Cleanup(func() {
		for _, file := range []*os.File{full, gone, unread, stalled} {
			must(t, file.Close())
		}
	})
	for name, log := range map[string]*os.File{
		"the disk is full": full, "the reader is gone": gone, "the reader stands still": stalled,
	} {
		t.Run(name, func(t *testing.T) {
			b := setup(t)
			l := ledger.New(ledger.Cards())
			command := b.command(b.worker, "")
			command.Args, command.Log = append(command.Args, "--log-level", "debug"), log
			worker := process.Start(t, command)
			l.Publish(t, b.publisher, plainKeys(1, 100)...) // whose entries fill the pipe
			l.Verify(t, b.direct(), ledger.Expect{Within: testTimeout})
			worker.Signal(syscall.SIGHUP)
			if code := worker.AwaitExit(t); code != 0 {
				t.Errorf("exit code %d, want 0", code)
			}
		})
	}
}

func TestNohupKeepsAWorkerRunning(t *testing.T) {
	b := setup(t)
	command := b.command(b.worker, "")
	command.Path, command.Args = "nohup", append([]string{command.Path}, command.Args...)
	worker := process.Start(t, command)
	worker.Await(t, listening, 1, testTimeout)
	worker.Signal(syscall.SIGHUP)
	l := ledger.New(ledger.Cards())
	l.Publish(t, b.publisher, plainKeys(1, 8)...)
	l.Verify(t, b.direct(), ledger.Expect{Within: testTimeout})
	if worker.Count("stopping: waiting for running handlers") > 0 {
		t.Error("it stops at SIGHUP")
	}
	worker.Signal(syscall.SIGTERM)
	if code := worker.AwaitExit(t); code != 0 {
		t.Errorf("exit code %d, want 0", code)
	}
}
