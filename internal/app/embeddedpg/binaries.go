package embeddedpg

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// oldestMajor is the oldest version that the project's SQL runs on.
const oldestMajor = 15

// overrideName is the variable whose value callers pass as BinDir; errors name it.
const overrideName = "SPECTRAL_POSTGRES_BIN"

// binaries is a folder with PostgreSQL's programs.
type binaries struct {
	dir          string
	version      string // as the programs print it, such as 16.4
	major, minor int
}

func (b binaries) path(program string) string { return filepath.Join(b.dir, program) }

// installedFolders lists the folders where PostgreSQL may be installed on this machine.
func installedFolders(ctx context.Context, acct account) []string {
	var dirs []string
	if config, err := exec.LookPath("pg_config"); err == nil {
		if out, err := acct.output(ctx, config, "--bindir"); err == nil {
			dirs = append(dirs, strings.TrimSpace(out))
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

// newest inspects the folders and returns the newest suitable version; the first folder wins among equals. The
// error says what is wrong with each.
func newest(ctx context.Context, acct account, dirs []string) (binaries, error) {
	var best binaries
	var rejected []error
	for _, dir := range dirs {
		b, err := inspect(ctx, acct, dir)
		if err != nil {
			rejected = append(rejected, err)
			continue
		}
		if cmp.Or(cmp.Compare(b.major, best.major), cmp.Compare(b.minor, best.minor)) > 0 {
			best = b
		}
	}
	if best.dir == "" {
		return best, errors.Join(append([]error{fmt.Errorf("no PostgreSQL %d or newer is installed", oldestMajor)}, rejected...)...)
	}
	return best, nil
}

// override inspects the folder that the operator named.
func override(ctx context.Context, acct account, dir string) (binaries, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return binaries{}, err
	}
	b, err := inspect(ctx, acct, dir)
	if err != nil {
		return b, fmt.Errorf("%s must name a folder with the programs of PostgreSQL %d or newer: %w", overrideName, oldestMajor, err)
	}
	return b, nil
}

var versionLine = regexp.MustCompile(`\(PostgreSQL\) ((\d+)(?:\.(\d+))?\S*)`)

// inspect runs the programs as the account that is to run the server, so that folders closed to it are not chosen.
func inspect(ctx context.Context, acct account, dir string) (binaries, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	b := binaries{dir: dir}
	for _, program := range []string{"initdb", "postgres"} {
		out, err := acct.output(ctx, b.path(program), "--version")
		if err != nil {
			return b, fmt.Errorf("%s cannot run %s: %w", acct, b.path(program), err)
		}
		m := versionLine.FindStringSubmatch(out)
		if m == nil {
			return b, fmt.Errorf("%s --version does not print a version of PostgreSQL", b.path(program))
		}
		b.version = m[1]
		b.major, _ = strconv.Atoi(m[2])
		b.minor, _ = strconv.Atoi(m[3]) // empty in 18beta1
		if b.major < oldestMajor {
			return b, fmt.Errorf("%s is version %s, which is too old", b.path(program), b.version)
		}
	}
	return b, nil
}
