package embeddedpg

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"strconv"
	"syscall"
)

// account is the user that PostgreSQL's programs run as.
type account struct {
	name string
	cred *syscall.Credential // nil: the user of this program
}

// serverAccount is the user of this program or, for root, which PostgreSQL refuses, an unprivileged one.
func serverAccount() (account, error) {
	if os.Geteuid() != 0 {
		return account{}, nil
	}
	for _, name := range []string{"postgres", "nobody"} {
		u, err := user.Lookup(name)
		if err != nil {
			continue
		}
		uid, uidErr := strconv.ParseInt(u.Uid, 10, 64) // macOS has a nobody of -2
		gid, gidErr := strconv.ParseInt(u.Gid, 10, 64)
		if uidErr == nil && gidErr == nil && uid != 0 {
			return account{name, &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}}, nil
		}
	}
	return account{}, errors.New("PostgreSQL refuses to run as root, and there is no user postgres or nobody to run it as: " +
		"add one (useradd --system postgres), or run as an ordinary user")
}

func (a account) String() string {
	if a.cred == nil {
		return "this user"
	}
	return "user " + a.name
}

// command runs a program as this account, in its own process group: Ctrl-C in a terminal goes to the whole
// foreground group, and the server must outlive it until we stop it.
func (a account) command(name string, args ...string) *exec.Cmd {
	cmd := exec.Command(name, args...)
	cmd.Dir = "/"
	cmd.Env = []string{"LC_ALL=C"} // none of the caller's PG* variables, and messages that we recognise
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Credential: a.cred}
	return cmd
}

// output runs a short program and returns what it printed.
func (a account) output(ctx context.Context, name string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	plain := a.command(name, args...)
	cmd.Dir, cmd.Env, cmd.SysProcAttr = plain.Dir, plain.Env, plain.SysProcAttr
	out, err := cmd.Output()
	return string(out), err
}

// enter reports whether the account can go into a folder, by doing it: modes alone do not tell.
func (a account) enter(dir string) error {
	if a.cred == nil {
		return nil
	}
	cmd := a.command("/bin/sh", "-c", ":")
	cmd.Dir = dir
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("%s cannot enter %s: %w", a, dir, err)
	}
	return nil
}

// own makes the account the owner of a path that we created.
func (a account) own(path string) error {
	if a.cred == nil {
		return nil
	}
	return os.Chown(path, int(a.cred.Uid), int(a.cred.Gid))
}
