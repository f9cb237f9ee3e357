//go:build heavy

// Package models_test checks the protocols that have too many interleavings for tests on a real Postgres: the wake-up
// (wakeup.pml), the claim watermark (watermark.pml) and leased work (lease.pml). Spin visits every state of the models
// for small numbers of processes, and tells whether the protocol holds. It must also find the error in each broken
// variant, since a model that cannot fail proves nothing.
//
// The models assume that Postgres releases advisory transaction locks after the transaction is visible and before its
// notifications are signalled; that a listening backend reads what was committed since its LISTEN; that xids are
// assigned in order; that a statement that waited for a row, or locks it, sees the row's current version (read
// committed); and that an insert waits for the transaction that inserted its key. They also assume that executions
// end, and transactions too, even if the client is frozen. Change wakeup.pml before core.outbox_notify,
// core.outbox_barrier, core.outbox_barrier_poll or the packages notify and dispatch, and lease.pml before a statement
// of leased mode. Not modelled are the batch size, the recovery of rows of dead workers, which claims skip until then,
// replays, and in leased mode results that keep the row (one of several handlers), batches, which roll back as a whole,
// and the retry of a result whose reply was lost, which changes only what is reported.
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

// The assertions that a broken variant fails, as pan reports them.
const (
	holds    = ""
	stranded = "assertion violated (pending<=" // a visible row is left when no step is possible
	hidden   = "assertion violated (now>=watermark)"
	tooEarly = "assertion violated (stamp[r]>=watermark)"
	passed   = "assertion violated ((row[i]!=1)||(stamp[i]>=watermark))"

	formerHolder = "assertion violated ((status[row[me]]==1)&&(lease[me]==leases[row[me]]))" // changed by a former holder
	taken        = "assertion violated (status[row[me]]==0)"                                 // leased again
	// pending again after it was settled
	overwritten = "assertion violated ((status[r]!=2)&&(status[r]!=3))"
	// pending again during a valid lease
	stolen = "assertion violated (left[r]==0)"
	// changed by its holder after the lease expired
	late       = "assertion violated (left[row[me]]>0)"
	twice      = "assertion violated (effects<=1)"
	lost       = "assertion violated (effects>=1)" // delivered without the effect
	unhandled  = "assertion violated (key==2)"     // delivered without the key
	empty      = "assertion violated executed"     // completed without a result
	miscounted = "assertion violated (attempts[n]==(leases[n]-releases[n]))"
	stuck      = "assertion violated ((status[n]==2)||(status[n]==3))"
)

var cases = []struct {
	name    string
	file    string
	defines string
	want    string
	smaller string // smaller bounds, unless the soak tests run; empty if defines are small
}{
	{"three producers, two listeners", wakeup, "PLAIN=3 RUNNERS=0 FOREIGN=0", holds, "PLAIN=1 RUNNERS=0 FOREIGN=0"},
	{"signals of other channels", wakeup, "PLAIN=2 RUNNERS=0", holds, "PLAIN=1 RUNNERS=0"},
	{"bulk beside two", wakeup, "PLAIN=2 BULK=1 RUNNERS=0 FOREIGN=0", holds, "PLAIN=1 BULK=1 RUNNERS=0 FOREIGN=0"},
	{"polls and timers at any time", wakeup, "PLAIN=2 RUNNERS=0 FOREIGN=0 EARLYPOLLS=1", holds,
		"PLAIN=1 RUNNERS=0 FOREIGN=0 EARLYPOLLS=1"},
	{"three producers, a consumer", wakeup, "PLAIN=3 LISTENERS=1", holds, "PLAIN=2 LISTENERS=1 LIMIT=1"},
	{"two runners, a row at a time", wakeup, "PLAIN=2 LISTENERS=1 RUNNERS=2 LIMIT=1", holds,
		"PLAIN=1 LISTENERS=1 RUNNERS=2 LIMIT=1"},
	{"a claim is rolled back", wakeup, "PLAIN=2 LISTENERS=1 ROLLBACKS=1", holds, "PLAIN=1 LISTENERS=1 ROLLBACKS=1"},
	{"a retry", wakeup, "PLAIN=2 LISTENERS=1 RETRIES=1", holds, "PLAIN=1 LISTENERS=1 RETRIES=1"},
	{"a retry, two processes", wakeup, "PLAIN=1 RETRIES=1 FOREIGN=0", holds, "PLAIN=1 LISTENERS=1 RETRIES=1 FOREIGN=0"},
	{"a claim's connection lost", wakeup, "PLAIN=2 LISTENERS=1 LOSSES=1", holds, "PLAIN=1 LISTENERS=1 LOSSES=1"},
	{"a LISTEN connection lost", wakeup, "PLAIN=2 LISTENERS=1 RECONNECTS=1", holds, "PLAIN=1 LISTENERS=1 RECONNECTS=1"},
	// the order does not matter, as long as A is not tested after S was released
	{"the barrier tests A before S", wakeup, "PLAIN=2 RUNNERS=0 A_BEFORE_S", holds, "PLAIN=1 RUNNERS=0 A_BEFORE_S"},

	{"the barrier does not test A", wakeup, "PLAIN=2 RUNNERS=0 NO_A", stranded, ""},
	{"the barrier releases S first", wakeup, "PLAIN=2 RUNNERS=0 S_BEFORE_A", stranded, ""},
	{"the barrier tests A after S", wakeup, "PLAIN=2 RUNNERS=0 A_AFTER_S", stranded, ""},
	{"no barrier", wakeup, "PLAIN=2 RUNNERS=0 NO_BARRIER", stranded, ""},
	{"no barrier after an empty poll", wakeup, "PLAIN=3 LISTENERS=1 FOREIGN=0 EMPTY_WITHOUT_BARRIER", stranded, ""},
	{"no barrier after connecting", wakeup, "PLAIN=2 LISTENERS=1 RECONNECTS=1 FIRST_WITHOUT_BARRIER", stranded, ""},
	{"polls before the barrier only", wakeup, "PLAIN=2 RUNNERS=0 POLL_BEFORE_BARRIER", stranded, ""},
	{"LISTEN after polling", wakeup, "PLAIN=2 RUNNERS=0 LATE_LISTEN", stranded, ""},
	{"a notification during a poll is dropped", wakeup, "PLAIN=2 RUNNERS=0 NOTIFICATION_DROPPED", stranded, ""},
	{"a producer does not notify when S is refused", wakeup, "PLAIN=2 RUNNERS=0 SILENT_WHEN_REFUSED", stranded, ""},
	{"producers take no S", wakeup, "PLAIN=2 RUNNERS=0 NO_S", stranded, ""},
	{"locks are released before the row is visible", wakeup, "PLAIN=2 RUNNERS=0 LOCKS_FIRST", stranded, ""},
	{"a wake signal to the last runner is lost", wakeup, "PLAIN=2 LISTENERS=1 WAKE_LOST", stranded, ""},
	{"a wake signal during a claim is lost", wakeup, "PLAIN=2 LISTENERS=1 AGAIN_LATE", stranded, ""},
	{"a retry does not notify", wakeup, "PLAIN=1 LISTENERS=1 RETRIES=1 RETRY_SILENT", stranded, ""},
	{"no timer for what is due later", wakeup, "PLAIN=1 LISTENERS=1 RETRIES=1 NO_TIMER", stranded, ""},
	{"no recheck after a lost connection", wakeup, "PLAIN=1 LISTENERS=1 LOSSES=1 NO_RECHECK", stranded, ""},

	// The limits: these rows wait for the poll.
	{"a notifier aborts", wakeup, "PLAIN=2 ABORTING=1 RUNNERS=0 FOREIGN=0", stranded, ""},
	{"a notifier aborts: only rows that relied on it", wakeup, "PLAIN=2 ABORTING=1 RUNNERS=0 FOREIGN=0 EXCUSED=1",
		holds, "PLAIN=1 ABORTING=1 RUNNERS=0 FOREIGN=0 EXCUSED=1"},
	{"a notifier aborts: the poll", wakeup, "PLAIN=1 ABORTING=1 RUNNERS=0 POLL=1", holds, ""},
	{"a process crashes while it holds rows", wakeup, "PLAIN=1 CRASHES=1 FOREIGN=0", stranded, ""},
	{"a process crashes while it holds rows: the poll", wakeup, "PLAIN=1 CRASHES=1 FOREIGN=0 POLL=1", holds, ""},
	// A producer that decides early is slow, unless it does not end.
	{"a notifier decides early and stays idle", wakeup, "PLAIN=1 IDLE=1 RUNNERS=0", stranded, ""},

	{"two rows, claimed twice", watermark, "PRODUCERS=2 CLAIMS=2", holds, "PRODUCERS=2 CLAIMS=2 TICKS=1"},
	{"three rows", watermark, "PRODUCERS=3 CLAIMS=1 TICKS=2", holds, "PRODUCERS=3 CLAIMS=1 TICKS=1"},
	{"two claimers", watermark, "PRODUCERS=2 CLAIMERS=2 CLAIMS=1", holds, "PRODUCERS=2 CLAIMERS=2 CLAIMS=1 TICKS=1"},
	{"a row becomes pending again", watermark, "RETURNS=1 CLAIMS=2 TICKS=2", holds, ""},
	// xid 100 runs and has stamped a row, 90 was the last to end: xmax is 91, and xmin will be 100
	{"xmax of a snapshot instead of an xid", watermark, "XMAX", hidden, ""},
	{"the clock is read after the xid", watermark, "CLOCK_LATE", hidden, ""},
	{"a producer stamps before its xid", watermark, "STAMP_FIRST", hidden, ""},
	{"a retry stamps before its xid", watermark, "RETRY_STAMP_FIRST", hidden, ""},
	{"a row becomes pending again with its old stamp", watermark, "RETURNS=1 RETURN_KEEPS_STAMP", tooEarly, ""},
	{"the clock steps back", watermark, "CLOCK_STEPS", hidden, ""},
	{"an empty claim instead of the oldest row", watermark, "NO_OLDEST", tooEarly, ""},
	{"the oldest row of an earlier snapshot", watermark, "TWO_SNAPSHOTS", passed, ""},

	{"two executions of a row", lease, "TICKS=6 CRASHES=2 RETURNS=2", holds, "TICKS=4 CRASHES=1 RETURNS=2"},
	{"three executions of a row", lease, "EXECUTIONS=3 CRASHES=2 RETURNS=2", holds, "EXECUTIONS=3 LEASE=1 TICKS=1"},
	{"two rows of one key", lease, "ROWS=2", holds, "ROWS=2 LEASE=1 TICKS=0"},
	{"two rows of one key, three executions", lease, "ROWS=2 EXECUTIONS=3 LEASE=1 TICKS=1", holds,
		"ROWS=2 EXECUTIONS=3 LEASE=1 TICKS=0"},
	// a single leader only saves work
	{"two reapers", lease, "REAPERS=2 CRASHES=2 RETURNS=2", holds, ""},
	{"two reapers, two rows of one key", lease, "ROWS=2 REAPERS=2 LEASE=1 TICKS=2", holds,
		"ROWS=2 REAPERS=2 LEASE=1 TICKS=0"},
	// An expired lease that is not reaped could be renewed and settled, so the clock need not be exact. The product is
	// stricter, so that an expired lease stays expired for operators, except during a settle that has begun.
	{"the token alone is matched", lease, "TOKEN_ONLY REAPERS=2 CRASHES=2 RETURNS=2", holds,
		"TOKEN_ONLY REAPERS=2 TICKS=2"},
	{"the token alone is matched, two rows of one key", lease, "TOKEN_ONLY ROWS=2", holds,
		"TOKEN_ONLY ROWS=2 LEASE=1 TICKS=0"},
	// this needs that strictness and a single leader
	{"the reaper reads first and matches the status later", lease, "REAP_LATER=BY_STATUS CRASHES=2 RETURNS=2", holds, ""},

	{"a settle matches no token", lease, "UNMATCHED=SETTLE", formerHolder, ""},
	{"a heartbeat matches no token", lease, "UNMATCHED=HEARTBEAT", formerHolder, ""},
	{"a retry matches no token", lease, "UNMATCHED=RETRY", formerHolder, ""},
	{"a fail matches no token", lease, "UNMATCHED=FAIL", formerHolder, ""},
	{"a release matches no token", lease, "UNMATCHED=RELEASE", formerHolder, ""},
	{"a process has one token", lease, "TOKEN_REUSED", formerHolder, ""},
	{"a settle reads first and matches no token later", lease, "SETTLE_READS_FIRST", formerHolder, ""},
	{"a lease reads first and matches no status later", lease, "LEASE_LATER", taken, ""},
	{"a release counts as an attempt", lease, "RELEASE_COUNTS", miscounted, ""},
	{"the reaper reads first and matches the id later", lease, "REAP_LATER=BY_ID", overwritten, ""},
	{"two reapers read first and match the status later", lease, "REAP_LATER=BY_STATUS REAPERS=2", stolen, ""},
	{"a lease is renewed after the reaper has read it", lease, "REAP_LATER=BY_STATUS TOKEN_ONLY", stolen, ""},
	{"no reaper", lease, "REAPERS=0", stuck, ""},
	{"the key is committed before the effect", lease, "KEY_SEPARATE", lost, ""},
	{"the effect is committed before the key", lease, "COMPLETION_SEPARATE", twice, ""},
	{"the effect is written although the key exists", lease, "ROWS=2 CONFLICT_IGNORED", twice, ""},
	{"two rows without a key", lease, "ROWS=2 NO_KEY", twice, ""},
	{"the key is read first", lease, "ROWS=2 KEY_READ_FIRST", twice, ""},
	{"a settle yields to an uncommitted key", lease, "ROWS=2 YIELD_UNCOMMITTED", unhandled, ""},
	{"not executed for an uncommitted key", lease, "ROWS=2 KEY_REMEMBERED", empty, ""},

	// The limit of that strictness: a settle that began in time may end later, and is not visible until then.
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
			// COLLAPSE compresses without loss. pan stops at the first error, or out of memory.
			run(t, dir, "gcc", optimize, "-w", "-DSAFETY", "-DCOLLAPSE", "-DMEMLIM=1900", "-o", "pan", "pan.c")
			report := run(t, dir, "./pan", "-m20000", hash)
			checkReport(t, report, c.want)
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

// checkReport compares pan's report with the expected result. A variant holds only if pan visited all states and
// evaluated the assertions.
func checkReport(t *testing.T, report, want string) {
	t.Helper()
	for _, m := range figures.FindAllString(report, -1) {
		t.Log(strings.TrimSpace(m))
	}
	if want != holds {
		if !strings.Contains(report, want) {
			t.Errorf("the variant did not fail with %q: the model does not find the error, or the variant is not broken", want)
		}
		return
	}
	if !strings.Contains(report, "errors: 0\n") {
		t.Error("the protocol fails")
	}
	for _, limit := range []string{"Search not completed", "max search depth too small", "out of memory", "memory limit"} {
		if strings.Contains(report, limit) {
			t.Errorf("not every state was visited: %s", limit)
		}
	}
	if !strings.Contains(report, "assertion violations\t+") || !strings.Contains(report, "invalid end states\t+") {
		t.Error("assertions or end states were not checked")
	}
	if _, unreached, _ := strings.Cut(report, "unreached in init"); strings.Contains(unreached, "assert(") {
		t.Error("the assertions at the end were never reached")
	}
}

// run returns the output of a program. The exit code of pan is ignored, since checkReport reads its report.
func run(t *testing.T, dir, program string, args ...string) string {
	t.Helper()
	command := exec.CommandContext(t.Context(), program, args...)
	command.Dir = dir
	output, err := command.CombinedOutput()
	if exit := new(exec.ExitError); err != nil && (!errors.As(err, &exit) || program != "./pan" || !exit.Exited()) {
		if errors.Is(t.Context().Err(), context.Canceled) {
			t.Fatalf("%s was cancelled: %v", program, err)
		}
		t.Fatalf("%s %s: %v\n%s", program, strings.Join(args, " "), err, output)
	}
	return string(output)
}
