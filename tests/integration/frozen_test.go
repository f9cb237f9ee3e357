//go:build heavy

package integration_test

import (
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"spectral/tests/pgtest"
)

// A worker that is frozen, with its sockets open, must not hold back the notification queue of all:
// Postgres ends its LISTEN backend by itself, whether that has nothing to do or is stuck sending.
func TestAFrozenWorkersListenConnectionEnds(t *testing.T) {
	program := filepath.Join(t.TempDir(), "workers")
	if out, err := exec.Command("go", "build", "-o", program, "spectral/cmd/workers").CombinedOutput(); err != nil {
		t.Fatalf("build: %v: %s", err, out)
	}
	for name, flooded := range map[string]bool{"idle": false, "flooded": true} {
		t.Run(name, func(t *testing.T) {
			b := setup(t)
			log := &notes{}
			cmd := exec.Command(program, "run")
			cmd.Env = []string{
				"DATABASE_URL=" + b.url + "&application_name=doorbell", "SPECTRAL_POOL_URL=" + b.url + "&application_name=workers",
				"SPECTRAL_GENERATION=1",
			}
			cmd.Stdout, cmd.Stderr = log, log
			must(t, cmd.Start())
			t.Cleanup(func() {
				_ = cmd.Process.Kill() // frozen or not
				_ = cmd.Wait()
			})
			b.eventually("it listens", func() bool { return log.count(`"message":"listening"`) > 0 })
			if n := len(b.doorbellPIDs()); n != 1 {
				t.Fatalf("%d LISTEN backends", n)
			}
			must(t, cmd.Process.Signal(syscall.SIGSTOP))
			frozen := time.Now()
			if flooded {
				b.exec("select pg_notify('outbox_gen_1', i || repeat('x', 7900)) from generate_series(1, 4000) i")
				b.eventually("its backend is stuck", func() bool {
					return one[bool](b, "select count(*) > 0 "+doorbells+" and wait_event = 'ClientWrite'")
				})
			}
			for deadline := frozen.Add(100 * time.Second); len(b.doorbellPIDs()) > 0; {
				if time.Now().After(deadline) {
					t.Fatalf("its backend is still there: %s", one[string](b, "select concat_ws(' ', state, wait_event) "+doorbells))
				}
			}
			t.Logf("gone after %s", time.Since(frozen))
		})
	}
}

// What the above stands on: the kernel counts a window that stays closed as time without an answer.
func TestABackendStuckSendingIsEndedByTCPUserTimeout(t *testing.T) {
	b := setup(t)
	pids := make(map[string]uint32)
	for _, timeout := range []string{"2000", "0"} {
		conn := pgtest.Conn(t, b.url)
		_, err := conn.Exec(b.ctx, "set tcp_user_timeout = "+timeout)
		must(t, err)
		pids[timeout] = conn.PgConn().PID()
		// ask for more than the socket holds, and read nothing
		_, err = conn.PgConn().Conn().Write(append([]byte{'Q', 0, 0, 0, 37}, "select repeat('x', 100000000)   \x00"...))
		must(t, err)
		b.eventually("it is stuck", func() bool {
			return one[bool](b, "select count(*) > 0 from pg_stat_activity where pid = $1 and wait_event = 'ClientWrite'", pids[timeout])
		})
	}
	there := func(timeout string) bool {
		return one[bool](b, "select count(*) > 0 from pg_stat_activity where pid = $1", pids[timeout])
	}
	b.eventually("it is ended", func() bool { return !there("2000") })
	if !there("0") {
		t.Fatal("one without the timeout is ended too: this shows nothing")
	}
}
