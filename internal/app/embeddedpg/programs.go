package embeddedpg

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"regexp"
	"strconv"
	"syscall"
	"time"

	embeddedpostgres "github.com/fergusstrange/embedded-postgres"
)

// oldestMajor is the oldest version that the project's SQL runs on.
const oldestMajor = 15

// overrideName is the variable whose value callers pass as BinDir. Errors name it.
const overrideName = "SPECTRAL_POSTGRES_BIN"

// account is the user that runs PostgreSQL's programs.
type account struct {
	name string
	cred *syscall.Credential // nil: the user of this process
}

// errNotAllowed is the error for a process of root that may not do what root may.
var errNotAllowed = errors.New("this process of root lacks CAP_SETUID, CAP_SETGID or CAP_CHOWN, without which it " +
	"cannot run PostgreSQL as another user: allow them, or run as an ordinary user")

// serverAccount returns this process's user or, if that is root, an unprivileged user, because PostgreSQL refuses root.
func serverAccount(ctx context.Context, uid int) (account, error) {
	if uid != 0 {
		if _, err := user.LookupId(strconv.Itoa(uid)); errors.As(err, new(user.UnknownUserIdError)) {
			return account{}, fmt.Errorf("PostgreSQL does not start as user %d, which has no entry in /etc/passwd: add one, or "+
				"run as a user that has one", uid)
		}
		return account{name: "this user"}, nil
	}
	for _, name := range []string{"postgres", "nobody"} {
		u, err := user.Lookup(name)
		if err != nil {
			continue
		}
		uid, uidErr := strconv.ParseInt(u.Uid, 10, 64) // on macOS nobody is -2
		gid, gidErr := strconv.ParseInt(u.Gid, 10, 64)
		if uidErr == nil && gidErr == nil && uid != 0 {
			a := account{"user " + name, &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}}
			if err := a.command(ctx, "/bin/sh", "-c", ":").Run(); errors.Is(err, syscall.EPERM) {
				return a, errNotAllowed
			}
			return a, nil
		}
	}
	return account{}, errors.New("PostgreSQL refuses to run as root, and there is no user postgres or nobody for it: " +
		"add one (useradd --system postgres), or run as an ordinary user")
}

// command prepares a program to run as the account, in a process group that Ctrl-C in the terminal does not reach. When
// ctx ends, the group is killed.
func (a account) command(ctx context.Context, name string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = "/"
	cmd.Env = []string{"LC_ALL=C"} // none of the caller's PG* variables, and messages that we recognise
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Credential: a.cred}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	return cmd
}

// own makes the account the owner of a file or an empty folder.
func (a account) own(path string) error {
	if a.cred == nil {
		return nil
	}
	err := os.Lchown(path, int(a.cred.Uid), int(a.cred.Gid))
	if errors.Is(err, syscall.EPERM) {
		err = errNotAllowed
	}
	return err
}

// programs is a folder with PostgreSQL's programs.
type programs struct {
	dir     string
	version string // as the programs print it, such as 16.4
	number  int    // 160004
}

func (p programs) path(program string) string { return filepath.Join(p.dir, program) }

// findPrograms sets the account and the programs: those in c.BinDir, or else the newest installed ones, or else
// downloaded ones.
func (s *Server) findPrograms(ctx context.Context, c Config) (err error) {
	if s.acct, err = serverAccount(ctx, os.Geteuid()); err != nil {
		return err
	}
	s.programs, err = newest(ctx, s.acct, folders(c.BinDir))
	if err != nil && c.BinDir == "" && ctx.Err() == nil {
		var downloadErr error
		if s.programs, downloadErr = downloaded(ctx, s.acct, s.log); downloadErr == nil {
			return nil
		}
		err = errors.Join(err, downloadErr)
	}
	if err != nil {
		return fmt.Errorf("install PostgreSQL (apt-get install postgresql, brew install postgresql@17) or set %s to the "+
			"folder of its programs: %w", overrideName, err)
	}
	return nil
}

// folders lists binDir or, if it is empty, the folders where PostgreSQL may be installed.
func folders(binDir string) []string {
	if binDir != "" {
		dir, _ := filepath.Abs(binDir) // on failure the error names an empty folder
		return []string{dir}
	}
	var dirs []string
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

// newest returns the newest suitable version, the first of equal ones. The error says what is wrong with each folder.
func newest(ctx context.Context, acct account, dirs []string) (best programs, err error) {
	rejected := []error{fmt.Errorf("no PostgreSQL %d or newer was found", oldestMajor)}
	for _, dir := range dirs {
		p, err := inspect(ctx, acct, dir)
		if err != nil {
			rejected = append(rejected, err)
		} else if p.number > best.number {
			best = p
		}
	}
	if best.dir == "" {
		return best, errors.Join(rejected...)
	}
	return best, nil
}

var versionLine = regexp.MustCompile(`\(PostgreSQL\) ((\d+)(?:\.(\d+))?\S*)`)

// inspect reads the version of the programs in a folder. It runs them as the account that runs the server, so it fails
// for a folder that the account cannot enter.
func inspect(ctx context.Context, acct account, dir string) (programs, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	p := programs{dir: dir}
	for _, program := range []string{p.path("initdb"), p.path("postgres")} {
		out, err := acct.command(ctx, program, "--version").Output()
		if err != nil {
			return p, fmt.Errorf("%s cannot run %s: %w", acct.name, program, err)
		}
		m := versionLine.FindStringSubmatch(string(out))
		if m == nil {
			return p, fmt.Errorf("%s --version does not print a version of PostgreSQL", program)
		}
		major, _ := strconv.Atoi(m[2])
		minor, _ := strconv.Atoi(m[3]) // empty in 18beta1
		if p.version, p.number = m[1], 10_000*major+minor; major < oldestMajor {
			return p, fmt.Errorf("%s is version %s, which is too old", program, p.version)
		}
	}
	return p, nil
}

const downloadVersion = embeddedpostgres.V17

// downloaded returns the programs that an earlier call left in the cache folder, or downloads them. It fails for root:
// the library can only download by running a server, which PostgreSQL refuses to root.
func downloaded(ctx context.Context, acct account, log *slog.Logger) (programs, error) {
	folder, err := CacheFolder()
	if err != nil {
		return programs{}, err
	}
	dir := filepath.Join(folder, "postgres-"+string(downloadVersion))
	if _, err := os.Stat(dir); err != nil {
		if acct.cred != nil {
			return programs{}, errors.New("PostgreSQL is not downloaded for root")
		}
		log.InfoContext(ctx, "no suitable PostgreSQL is installed, so one is downloaded",
			logVersion, string(downloadVersion), logFolder, dir)
		done := make(chan error, 2)
		go func() { done <- download(dir, embeddedpostgres.DefaultConfig()) }() // it takes no context
		defer context.AfterFunc(ctx, func() { done <- context.Cause(ctx) })()
		if err := <-done; err != nil {
			return programs{}, fmt.Errorf("download PostgreSQL %s: %w", downloadVersion, err)
		}
	}
	return inspect(ctx, acct, filepath.Join(dir, "bin"))
}

// download leaves the programs in dir, complete or not at all. To do so it starts and stops a server.
func download(dir string, config embeddedpostgres.Config) error {
	work, err := os.MkdirTemp(filepath.Dir(dir), "download-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(work) // best effort: the rest is not used
	port, err := freePort()
	if err != nil {
		return err
	}
	server := embeddedpostgres.NewDatabase(config.Version(downloadVersion).Port(uint32(port)).Logger(io.Discard).
		CachePath(filepath.Join(work, "cache")).RuntimePath(filepath.Join(work, "run")).
		DataPath(filepath.Join(work, "data")).BinariesPath(filepath.Join(work, "programs")))
	if err := server.Start(); err != nil {
		return err
	}
	if err := server.Stop(); err != nil {
		return err
	}
	if err := os.Rename(filepath.Join(work, "programs"), dir); !errors.Is(err, fs.ErrExist) {
		return err
	}
	return nil // another process was faster
}
