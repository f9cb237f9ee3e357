package embeddedpg

import (
	"context"
	"os/exec"
	"runtime"
	"syscall"
	"time"
)

// process is a running program of PostgreSQL.
type process struct {
	cmd    *exec.Cmd
	exited chan struct{}
	err    error // of Wait; read it after exited is closed
}

// launch starts a program that, where the system can do that, gets the signal death when this process is killed.
// Its output must go to files: a pipe could be held open by the program's children.
func launch(cmd *exec.Cmd, death syscall.Signal) (*process, error) {
	setDeathSignal(cmd.SysProcAttr, death)
	p := &process{cmd: cmd, exited: make(chan struct{})}
	started := make(chan error, 1)
	go func() {
		// The death signal comes when the thread that started the program ends, so keep the thread that long.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			p.err = cmd.Wait()
			close(p.exited)
		}
	}()
	if err := <-started; err != nil {
		return nil, err
	}
	return p, nil
}

// kill ends the program and its children at once, and waits for it.
func (p *process) kill() {
	select {
	case <-p.exited: // the process group's number may have been given away
	default:
		_ = syscall.Kill(-p.cmd.Process.Pid, syscall.SIGKILL)
	}
	<-p.exited
}

const (
	fastGrace      = 15 * time.Second // a fast shutdown writes a checkpoint
	immediateGrace = 10 * time.Second // in an immediate one the server kills its own stragglers after 5 s
)

// shutdown ends a server: fast while ctx and the grace last, then immediate (the next start recovers), and
// waits for it. It reports whether the shutdown was a fast one.
func (p *process) shutdown(ctx context.Context) bool {
	_ = p.cmd.Process.Signal(syscall.SIGINT)
	select {
	case <-p.exited:
		return true
	case <-ctx.Done():
	case <-time.After(fastGrace):
	}
	p.quit()
	return false
}

// quit ends a server without saving anything, and waits for it.
func (p *process) quit() {
	_ = p.cmd.Process.Signal(syscall.SIGQUIT)
	select {
	case <-p.exited:
	case <-time.After(immediateGrace):
		p.kill() // its children notice that it is gone, and end
	}
}
