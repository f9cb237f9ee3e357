package process

import (
	"cmp"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"syscall"
	"testing"
	"time"
)

// Command says how to run a worker.
type Command struct {
	Path string
	Args []string
	Env  []string // besides PATH and HOME
	Log  *os.File // where stderr goes instead of into Process.Log
}

// exitTimeout is more than a worker's stop ever takes: 20 s of grace and 10 s that are forced.
const exitTimeout = time.Minute

// Process is a running worker. Its methods may be called concurrently.
type Process struct {
	*Log
	cmd    *exec.Cmd
	exited chan struct{}
}

// Start runs a command and kills it when the test ends.
func Start(t testing.TB, c Command) *Process {
	t.Helper()
	p, err := launch(c)
	if err != nil {
		t.Fatalf("start %s: %v", c.Path, err)
	}
	t.Cleanup(func() { p.end(t) })
	return p
}

// launch starts a command with stderr as its log. Stdout is dropped.
func launch(c Command) (*Process, error) {
	read, write, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(c.Path, c.Args...)
	cmd.Env = append([]string{"PATH=" + os.Getenv("PATH"), "HOME=" + os.Getenv("HOME")}, c.Env...)
	cmd.Stderr = cmp.Or(c.Log, write)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	p := &Process{Log: newLog(), cmd: cmd, exited: make(chan struct{})}
	// nohup, under which the tests may run, lets children ignore SIGHUP, but not while this process catches it
	caught := make(chan os.Signal, 1)
	signal.Notify(caught, syscall.SIGHUP)
	defer signal.Stop(caught)
	started := make(chan error, 1)
	go func() {
		// Linux sends Pdeathsig when the thread that started the process ends.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			_ = cmd.Wait() // AwaitExit reads the result from ProcessState
			close(p.exited)
		}
	}()
	err = <-started
	_ = write.Close()
	if err != nil {
		_ = read.Close()
		return nil, err
	}
	go func() {
		defer func() { _ = read.Close() }()
		p.read(io.Reader(read))
	}()
	return p, nil
}

// PID returns the process id.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Exited returns a channel that is closed when the process has ended.
func (p *Process) Exited() <-chan struct{} { return p.exited }

// Signal sends a signal, unless the process has ended.
func (p *Process) Signal(s syscall.Signal) { _ = p.cmd.Process.Signal(s) }

// Kill sends SIGKILL.
func (p *Process) Kill() { p.Signal(syscall.SIGKILL) }

// Freeze stops the process by SIGSTOP. Its connections stay open.
func (p *Process) Freeze() { p.Signal(syscall.SIGSTOP) }

// Thaw resumes a frozen process.
func (p *Process) Thaw() { p.Signal(syscall.SIGCONT) }

// AwaitExit returns the exit code, -1 after a signal, and fails the test if the process hangs.
func (p *Process) AwaitExit(t testing.TB) int {
	t.Helper()
	select {
	case <-p.exited:
		return p.cmd.ProcessState.ExitCode()
	case <-time.After(exitTimeout):
		t.Fatalf("process %d has not ended within %s; its log: %s", p.PID(), exitTimeout, p.tail())
		return -1
	}
}

// end kills the process. If the test failed, it logs the last entries.
func (p *Process) end(t testing.TB) {
	t.Helper()
	p.Kill()
	p.AwaitExit(t)
	if t.Failed() {
		t.Logf("the log of process %d: %s", p.PID(), p.tail())
	}
}
