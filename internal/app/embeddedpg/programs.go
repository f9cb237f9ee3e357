package embeddedpg

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// oldestMajor is the oldest version that the project's SQL runs on.
const oldestMajor = 15

// overrideName is the variable whose value callers pass as BinDir; errors name it.
const overrideName = "SPECTRAL_POSTGRES_BIN"

// account is the user that PostgreSQL's programs run as.
type account struct {
	name string
	cred *syscall.Credential // nil: the user of this program
}

// serverAccount returns the user of this program or, for root, which PostgreSQL refuses, an unprivileged one.
func serverAccount() (account, error) {
	if os.Geteuid() != 0 {
		return account{name: "this user"}, nil
	}
	for _, name := range []string{"postgres", "nobody"} {
		u, err := user.Lookup(name)
		if err != nil {
			continue
		}
		uid, uidErr := strconv.ParseInt(u.Uid, 10, 64) // macOS has a nobody of -2
		gid, gidErr := strconv.ParseInt(u.Gid, 10, 64)
		if uidErr == nil && gidErr == nil && uid != 0 {
			return account{"user " + name, &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}}, nil
		}
	}
	return account{}, errors.New("PostgreSQL refuses to run as root, and there is no user postgres or nobody to run it as: " +
		"add one (useradd --system postgres), or run as an ordinary user")
}

// command prepares a program to run as this account. Its process group differs from ours: Ctrl-C in a terminal goes to
// the whole foreground group, and the server must outlive it until we stop it. When ctx ends, the group is killed.
func (a account) command(ctx context.Context, name string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = "/"
	cmd.Env = []string{"LC_ALL=C"} // none of the caller's PG* variables, and messages that we recognise
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Credential: a.cred}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	return cmd
}

// own makes the account the owner of a path that we created.
func (a account) own(path string) error {
	if a.cred == nil {
		return nil
	}
	return os.Chown(path, int(a.cred.Uid), int(a.cred.Gid))
}

// programs is a folder with PostgreSQL's programs.
type programs struct {
	dir          string
	version      string // as the programs print it, such as 16.4
	major, minor int
}

func (p programs) path(program string) string { return filepath.Join(p.dir, program) }

// findPrograms returns those in c.BinDir or the newest installed ones, and downloads some if there are none.
func findPrograms(ctx context.Context, c Config, acct account) (programs, error) {
	if c.BinDir != "" {
		dir, err := filepath.Abs(c.BinDir)
		if err != nil {
			return programs{}, err
		}
		p, err := inspect(ctx, acct, dir)
		if err != nil {
			return p, fmt.Errorf("%s must name a folder with the programs of PostgreSQL %d or newer: %w", overrideName, oldestMajor, err)
		}
		return p, nil
	}
	p, installedErr := newest(ctx, acct, installedFolders(ctx, acct))
	if installedErr == nil || ctx.Err() != nil {
		return p, installedErr
	}
	folder, err := CacheFolder()
	if err == nil {
		c.log().InfoContext(ctx, "no suitable PostgreSQL is installed, so one is downloaded unless that was done before",
			logVersion, string(downloadVersion), logFolder, folder)
		p, err = downloaded(ctx, acct, folder, "")
	}
	if err != nil {
		return p, fmt.Errorf("install PostgreSQL (apt-get install postgresql, brew install postgresql@17) or set %s to the folder of its programs: %w",
			overrideName, errors.Join(installedErr, err))
	}
	return p, nil
}

// installedFolders lists the folders where PostgreSQL may be installed on this machine.
func installedFolders(ctx context.Context, acct account) []string {
	var dirs []string
	if config, err := exec.LookPath("pg_config"); err == nil {
		if out, err := acct.command(ctx, config, "--bindir").Output(); err == nil {
			dirs = append(dirs, strings.TrimSpace(string(out)))
		}
	}
	for _, layout := range []string{
		"/usr/lib/postgresql/*/bin", // Debian
		"/usr/pgsql-*/bin",          // Red Hat, packages of postgresql.org
		"/opt/homebrew/opt/postgresql@*/bin",
		"/usr/local/opt/postgresql@*/bin",
	} {
		found, _ := filepath.Glob(layout) // fails only for a bad pattern
		dirs = append(dirs, found...)
	}
	if postgres, err := exec.LookPath("postgres"); err == nil {
		dirs = append(dirs, filepath.Dir(postgres))
	}
	return dirs
}

// newest returns the newest suitable version; the first folder wins among equals. The error says what is wrong with each.
func newest(ctx context.Context, acct account, dirs []string) (best programs, err error) {
	rejected := []error{fmt.Errorf("no PostgreSQL %d or newer is installed", oldestMajor)}
	for _, dir := range dirs {
		p, err := inspect(ctx, acct, dir)
		if err != nil {
			rejected = append(rejected, err)
		} else if cmp.Or(cmp.Compare(p.major, best.major), cmp.Compare(p.minor, best.minor)) > 0 {
			best = p
		}
	}
	if best.dir == "" {
		return best, errors.Join(rejected...)
	}
	return best, nil
}

var versionLine = regexp.MustCompile(`\(PostgreSQL\) ((\d+)(?:\.(\d+))?\S*)`)

// inspect runs the programs as the account that is to run the server, so that folders closed to it are not chosen.
func inspect(ctx context.Context, acct account, dir string) (programs, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	p := programs{dir: dir}
	for _, program := range []string{"initdb", "postgres"} {
		out, err := acct.command(ctx, p.path(program), "--version").Output()
		if err != nil {
			return p, fmt.Errorf("%s cannot run %s: %w", acct.name, p.path(program), err)
		}
		m := versionLine.FindStringSubmatch(string(out))
		if m == nil {
			return p, fmt.Errorf("%s --version does not print a version of PostgreSQL", p.path(program))
		}
		p.version = m[1]
		p.major, _ = strconv.Atoi(m[2])
		p.minor, _ = strconv.Atoi(m[3]) // empty in 18beta1
		if p.major < oldestMajor {
			return p, fmt.Errorf("%s is version %s, which is too old", p.path(program), p.version)
		}
	}
	return p, nil
}
