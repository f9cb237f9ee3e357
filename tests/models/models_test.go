//go:build heavy

// Package models_test checks the protocols whose interleavings no test on a real Postgres can go
// through one by one: the wakeup (wakeup.pml), the watermark of claims (watermark.pml) and leased work
// (lease.pml). Spin visits every state of the models here, for small numbers of processes: whether
// the protocol holds, and whether each broken variant fails, for a model that cannot fail proves
// nothing.
//
// What they assume of Postgres: advisory transaction locks are released after the transaction is
// visible, and before its notifications are signalled; a backend that listens reads what was
// committed since its LISTEN; xids are handed out in order; a statement that waited for a row, or
// locks it, judges it as it is then (read committed); an insert waits for the transaction that
// inserted its key. And of the rest: an execution comes to its end, and so does a transaction,
// though its client be frozen. A change to core.outbox_notify, core.outbox_barrier, notify or
// package dispatch is a change to wakeup.pml first, one to a statement of leased mode to lease.pml. Not
// modelled: the throttle, the verdict on a dead worker's rows, which claims skip until then, replays, and of
// leased mode endings that keep the row (renewal, key and completion, for one of several handlers),
// batches, of which all is undone together, and how an ending whose answer was lost is recalled, which
// decides what is reported and writes nothing.
package models_test

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

const (
	wakeup    = "wakeup.pml"
	watermark = "watermark.pml"
	lease     = "lease.pml"
)

// The assertions that a broken variant may fail.
const (
	holds    = ""
	stranded = "assertion violated (pending<=" // a visible row, when nothing moves any more
	hidden   = "assertion violated (now>=watermark)"
	undone   = "assertion violated (stamp[r]>=watermark)"
	passed   = "assertion violated ((row[i]!=1)||(stamp[i]>=watermark))"

	foreign     = "assertion violated ((status[row[me]]==1)&&(lease[me]==leases[row[me]]))" // changed by who holds it no more
	taken       = "assertion violated (status[row[me]]==0)"                                 // leased while it is leased
	overwritten = "assertion violated ((status[r]!=2)&&(status[r]!=3))"                     // brought back after its end
	robbed      = "assertion violated (left[r]==0)"                                         // brought back from a valid lease
	late        = "assertion violated (left[row[me]]>0)"                                    // changed by who held it in time
	twice       = "assertion violated (effects<=1)"
	lost        = "assertion violated (effects>=1)" // delivered without the effect
	unhandled   = "assertion violated (key==2)"     // delivered without the key
	empty       = "assertion violated executed"     // completed without an outcome
	miscounted  = "assertion violated (attempts[n]==(leases[n]-releases[n]))"
	stuck       = "assertion violated ((status[n]==2)||(status[n]==3))"
)

var cases = []struct {
	name    string
	file    string
	defines string
	want    string
	smaller string // defines for the same model in seconds: the soak tests check the full bounds; empty: there is no need
}{
	{"three producers, two listeners", wakeup, "PLAIN=3 RUNNERS=0 FOREIGN=0", holds, "PLAIN=1 RUNNERS=0 FOREIGN=0"},
	{"signals of other channels", wakeup, "PLAIN=2 RUNNERS=0", holds, "PLAIN=1 RUNNERS=0"},
	{"bulk beside two", wakeup, "PLAIN=2 BULK=1 RUNNERS=0 FOREIGN=0", holds, "PLAIN=1 BULK=1 RUNNERS=0 FOREIGN=0"},
	{"polls and timers at any time", wakeup, "PLAIN=2 RUNNERS=0 FOREIGN=0 EARLYPOLLS=1", holds, "PLAIN=1 RUNNERS=0 FOREIGN=0 EARLYPOLLS=1"},
	{"three producers, a consumer", wakeup, "PLAIN=3 LISTENERS=1", holds, "PLAIN=2 LISTENERS=1 LIMIT=1"},
	{"two runners, a row at a time", wakeup, "PLAIN=2 LISTENERS=1 RUNNERS=2 LIMIT=1", holds, "PLAIN=1 LISTENERS=1 RUNNERS=2 LIMIT=1"},
	{"a claim undone", wakeup, "PLAIN=2 LISTENERS=1 ROLLBACKS=1", holds, "PLAIN=1 LISTENERS=1 ROLLBACKS=1"},
	{"a retry", wakeup, "PLAIN=2 LISTENERS=1 RETRIES=1", holds, "PLAIN=1 LISTENERS=1 RETRIES=1"},
	{"a retry, two processes", wakeup, "PLAIN=1 RETRIES=1 FOREIGN=0", holds, "PLAIN=1 LISTENERS=1 RETRIES=1 FOREIGN=0"},
	{"a claim's connection lost", wakeup, "PLAIN=2 LISTENERS=1 LOSSES=1", holds, "PLAIN=1 LISTENERS=1 LOSSES=1"},
	{"a LISTEN connection lost", wakeup, "PLAIN=2 LISTENERS=1 RECONNECTS=1", holds, "PLAIN=1 LISTENERS=1 RECONNECTS=1"},
	// in whatever order the barrier takes them, A must not be tested after S was given back
	{"the barrier tests A before S", wakeup, "PLAIN=2 RUNNERS=0 A_BEFORE_S", holds, "PLAIN=1 RUNNERS=0 A_BEFORE_S"},

	{"the barrier forgets A", wakeup, "PLAIN=2 RUNNERS=0 NO_A", stranded, ""},
	{"the barrier gives S back first", wakeup, "PLAIN=2 RUNNERS=0 S_BEFORE_A", stranded, ""},
	{"the barrier tests A after S", wakeup, "PLAIN=2 RUNNERS=0 A_AFTER_S", stranded, ""},
	{"the barrier is never asked", wakeup, "PLAIN=2 RUNNERS=0 NO_BARRIER", stranded, ""},
	{"not asked after an empty poll", wakeup, "PLAIN=3 LISTENERS=1 FOREIGN=0 EMPTY_UNASKED", stranded, ""},
	{"not asked after connecting", wakeup, "PLAIN=2 LISTENERS=1 RECONNECTS=1 FIRST_UNASKED", stranded, ""},
	{"no poll after the barrier", wakeup, "PLAIN=2 RUNNERS=0 NO_LAST_POLL", stranded, ""},
	{"LISTEN after polling", wakeup, "PLAIN=2 RUNNERS=0 LATE_LISTEN", stranded, ""},
	{"a notification during a poll is dropped", wakeup, "PLAIN=2 RUNNERS=0 NOTIFICATION_DROPPED", stranded, ""},
	{"silent when S is refused", wakeup, "PLAIN=2 RUNNERS=0 SILENT_WHEN_REFUSED", stranded, ""},
	{"producers take no S", wakeup, "PLAIN=2 RUNNERS=0 NO_S", stranded, ""},
	{"locks go before the row is visible", wakeup, "PLAIN=2 RUNNERS=0 LOCKS_FIRST", stranded, ""},
	{"a wake is lost on the last runner", wakeup, "PLAIN=2 LISTENERS=1 WAKE_LOST", stranded, ""},
	{"a wake during a claim is forgotten", wakeup, "PLAIN=2 LISTENERS=1 AGAIN_LATE", stranded, ""},
	{"a retry does not notify", wakeup, "PLAIN=1 LISTENERS=1 RETRIES=1 RETRY_SILENT", stranded, ""},
	{"no timer for what is due later", wakeup, "PLAIN=1 LISTENERS=1 RETRIES=1 NO_TIMER", stranded, ""},
	{"an empty claim after a loss is believed", wakeup, "PLAIN=1 LISTENERS=1 LOSSES=1 NO_RECHECK", stranded, ""},

	// The limits: what is left to the poll is left without it, and nothing else is.
	{"a notifier aborts", wakeup, "PLAIN=2 ABORTING=1 RUNNERS=0 FOREIGN=0", stranded, ""},
	{"a notifier aborts: only rows silent beside it", wakeup, "PLAIN=2 ABORTING=1 RUNNERS=0 FOREIGN=0 EXCUSED=1", holds, "PLAIN=1 ABORTING=1 RUNNERS=0 FOREIGN=0 EXCUSED=1"},
	{"a notifier aborts: the poll", wakeup, "PLAIN=1 ABORTING=1 RUNNERS=0 POLL=1", holds, ""},
	{"a process dies while it holds rows", wakeup, "PLAIN=1 DEATHS=1 FOREIGN=0", stranded, ""},
	{"a process dies while it holds rows: the poll", wakeup, "PLAIN=1 DEATHS=1 FOREIGN=0 POLL=1", holds, ""},
	// Deciding early is being slow, until it lasts for ever.
	{"a notifier decides early and stays idle", wakeup, "PLAIN=1 IDLE=1 RUNNERS=0", stranded, ""},

	{"two rows, claimed twice", watermark, "PRODUCERS=2 CLAIMS=2", holds, "PRODUCERS=2 CLAIMS=2 TICKS=1"},
	{"three rows", watermark, "PRODUCERS=3 CLAIMS=1 TICKS=2", holds, "PRODUCERS=3 CLAIMS=1 TICKS=1"},
	{"two claimers", watermark, "PRODUCERS=2 CLAIMERS=2 CLAIMS=1", holds, "PRODUCERS=2 CLAIMERS=2 CLAIMS=1 TICKS=1"},
	{"a row brought back", watermark, "RETURNS=1 CLAIMS=2 TICKS=2", holds, ""},
	// 100 runs and has stamped, 90 is the last one over: xmax is 91, and soon xmin is 100
	{"xmax of a snapshot for an xid", watermark, "XMAX", hidden, ""},
	{"the clock is read after the xid", watermark, "CLOCK_LATE", hidden, ""},
	{"a producer stamps before its xid", watermark, "STAMP_FIRST", hidden, ""},
	{"a retry stamps before its xid", watermark, "RETRY_STAMP_FIRST", hidden, ""},
	{"a row is brought back with its old stamp", watermark, "RETURNS=1 RETURN_KEEPS_STAMP", undone, ""},
	{"the clock steps back", watermark, "CLOCK_STEPS", hidden, ""},
	{"an empty claim instead of the oldest row", watermark, "NO_OLDEST", undone, ""},
	{"the oldest row of an earlier snapshot", watermark, "TWO_SNAPSHOTS", passed, ""},

	{"two executions of a row", lease, "TICKS=6 DEATHS=2 RETURNS=2", holds, "TICKS=4 DEATHS=1 RETURNS=2"},
	{"three executions of a row", lease, "EXECUTIONS=3 DEATHS=2 RETURNS=2", holds, "EXECUTIONS=3 LEASE=1 TICKS=1"},
	{"twins", lease, "ROWS=2", holds, "ROWS=2 LEASE=1 TICKS=0"},
	{"twins, three executions", lease, "ROWS=2 EXECUTIONS=3 LEASE=1 TICKS=1", holds, "ROWS=2 EXECUTIONS=3 LEASE=1 TICKS=0"},
	// that there is one leader at a time saves work, no more
	{"two reapers", lease, "REAPERS=2 DEATHS=2 RETURNS=2", holds, ""},
	{"two reapers, twins", lease, "ROWS=2 REAPERS=2 LEASE=1 TICKS=2", holds, "ROWS=2 REAPERS=2 LEASE=1 TICKS=0"},
	// A lease that is expired but not reaped could as well be kept up and settled, so nothing depends
	// on how well the clock goes. The product is stricter, so that what an operator sees expired stays
	// so, but for a settle that has begun.
	{"the token alone is matched", lease, "TOKEN_ONLY REAPERS=2 DEATHS=2 RETURNS=2", holds, "TOKEN_ONLY REAPERS=2 TICKS=2"},
	{"the token alone is matched, twins", lease, "TOKEN_ONLY ROWS=2", holds, "TOKEN_ONLY ROWS=2 LEASE=1 TICKS=0"},
	// this does need that strictness, and a single leader
	{"the reaper polls first, and matches the status later", lease, "REAP_LATER=BY_STATUS DEATHS=2 RETURNS=2", holds, ""},

	{"a settle matches no token", lease, "UNMATCHED=SETTLE", foreign, ""},
	{"a heartbeat matches no token", lease, "UNMATCHED=HEARTBEAT", foreign, ""},
	{"a retry matches no token", lease, "UNMATCHED=RETRY", foreign, ""},
	{"a fail matches no token", lease, "UNMATCHED=FAIL", foreign, ""},
	{"a release matches no token", lease, "UNMATCHED=RELEASE", foreign, ""},
	{"a process has one token", lease, "TOKEN_REUSED", foreign, ""},
	{"a settle polls first, and matches no token later", lease, "SETTLE_LOOKS", foreign, ""},
	{"a lease polls first, and matches no status later", lease, "LEASE_LATER", taken, ""},
	{"a release counts as an attempt", lease, "RELEASE_COUNTS", miscounted, ""},
	{"the reaper polls first, and matches the id later", lease, "REAP_LATER=BY_ID", overwritten, ""},
	{"two reapers poll first, and match the status later", lease, "REAP_LATER=BY_STATUS REAPERS=2", robbed, ""},
	{"a lease renewed after the reaper's poll", lease, "REAP_LATER=BY_STATUS TOKEN_ONLY", robbed, ""},
	{"no reaper", lease, "REAPERS=0", stuck, ""},
	{"the key is committed before the effect", lease, "KEY_APART", lost, ""},
	{"the effect is committed before the key", lease, "COMPLETION_APART", twice, ""},
	{"the effect although the key was taken", lease, "ROWS=2 CONFLICT_IGNORED", twice, ""},
	{"twins without a key", lease, "ROWS=2 NO_KEY", twice, ""},
	{"the key is looked up first", lease, "ROWS=2 KEY_LOOKED_UP", twice, ""},
	{"conceded to an uncommitted key", lease, "ROWS=2 CONCEDE_UNCOMMITTED", unhandled, ""},
	{"not executed for an uncommitted key", lease, "ROWS=2 KEY_REMEMBERED", empty, ""},

	// The limit of that strictness: a settle that began in time ends in its own, and until then
	// nobody sees it.
	{"an expired lease is delivered", lease, "EXPIRED_STAYS", late, ""},
}

func TestModels(t *testing.T) {
	t.Parallel()
	for program, pkg := range map[string]string{"spin": "spin", "gcc": "gcc and libc6-dev"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Fatalf("%s is not installed: on Debian, apt-get install %s", program, pkg)
		}
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			text, err := os.ReadFile(c.file)
			if err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(dir, c.file), text, 0o600); err != nil {
				t.Fatal(err)
			}
			var defines []string
			bounds := c.defines
			if !full && c.smaller != "" {
				bounds = c.smaller
			}
			for define := range strings.FieldsSeq(bounds) {
				defines = append(defines, "-D"+define)
			}
			run(t, dir, "spin", append(append(defines, "-a"), c.file)...)
			// COLLAPSE compresses without loss; pan stops at the first error, or out of memory
			run(t, dir, "gcc", optimize, "-w", "-DSAFETY", "-DCOLLAPSE", "-DMEMLIM=1900", "-o", "pan", "pan.c")
			report := run(t, dir, "./pan", "-m20000", hash)
			judge(t, report, c.want)
			if t.Failed() {
				t.Logf("%s", report)
				if _, err := os.Stat(filepath.Join(dir, c.file+".trail")); err == nil {
					t.Logf("%s", run(t, dir, "spin", append(append(defines, "-t", "-p", "-g", "-l"), c.file)...))
				}
			}
		})
	}
}

var figures = regexp.MustCompile(`(?m)^ *(\d+) states, stored$|^pan: elapsed time (.*)$`)

// judge compares pan's report with what is wanted of the variant. That a variant holds counts only
// if all states were visited, and among them some where the assertions were tried.
func judge(t *testing.T, report, want string) {
	t.Helper()
	for _, m := range figures.FindAllString(report, -1) {
		t.Log(strings.TrimSpace(m))
	}
	if want != holds {
		if !strings.Contains(report, want) {
			t.Errorf("did not fail with %q: either the model has lost its teeth, or the variant is no longer broken", want)
		}
		return
	}
	if !strings.Contains(report, "errors: 0\n") {
		t.Error("the protocol fails")
	}
	for _, cut := range []string{"Search not completed", "max search depth too small", "out of memory", "memory limit"} {
		if strings.Contains(report, cut) {
			t.Errorf("not every state was visited: %s", cut)
		}
	}
	if !strings.Contains(report, "assertion violations\t+") || !strings.Contains(report, "invalid end states\t+") {
		t.Error("assertions or end states were not checked")
	}
	if _, unreached, _ := strings.Cut(report, "unreached in init"); strings.Contains(unreached, "assert(") {
		t.Error("the assertions at the end were never reached")
	}
}

// run returns what a program prints. Pan reports an error that it found by its exit code as well,
// which judge reads from the text.
func run(t *testing.T, dir, program string, args ...string) string {
	t.Helper()
	command := exec.CommandContext(t.Context(), program, args...)
	command.Dir = dir
	output, err := command.CombinedOutput()
	if exit := new(exec.ExitError); err != nil && (!errors.As(err, &exit) || program != "./pan" || !exit.Exited()) {
		if errors.Is(t.Context().Err(), context.Canceled) {
			t.Fatalf("%s was ended: %v", program, err)
		}
		t.Fatalf("%s %s: %v\n%s", program, strings.Join(args, " "), err, output)
	}
	return string(output)
}
