package embeddedpg

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// childVariable makes the test binary a program that runs a server: its value is the childConfig.
const childVariable = "EMBEDDEDPG_TEST_CHILD"

type childConfig struct {
	Dir       string
	Ephemeral bool
}

// childReport is what the child prints when its server is up.
type childReport struct {
	URL, Root, Data, Describe string
	PID                       int // of the server
}

func TestMain(m *testing.M) {
	if text := os.Getenv(childVariable); text != "" {
		if err := runChild(text); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	// of its own, since the library that downloads leaves its log behind; every user may enter it
	temp, err := os.MkdirTemp("", "spectral-test-")
	if err == nil {
		err = errors.Join(os.Chmod(temp, 0o755), os.Setenv("TMPDIR", temp)) //nolint:gosec // see above
	}
	code := 1
	if err == nil {
		code = m.Run()
	}
	if err := errors.Join(err, os.RemoveAll(temp)); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

// runChild runs a server until its standard input ends.
func runChild(text string) error {
	var c childConfig
	if err := json.Unmarshal([]byte(text), &c); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), testDeadline)
	defer cancel()
	s, err := Start(ctx, Config{Dir: c.Dir, Ephemeral: c.Ephemeral})
	if err != nil {
		return err
	}
	report := childReport{s.URL("postgres"), s.cluster.root, s.cluster.data(), s.Describe(), s.proc.cmd.Process.Pid}
	if err := json.NewEncoder(os.Stdout).Encode(report); err != nil {
		return err
	}
	if _, err := io.Copy(io.Discard, os.Stdin); err != nil {
		return err
	}
	return s.Stop(ctx)
}

type child struct {
	childReport
	cmd   *exec.Cmd
	stdin io.Closer
}

// startChild runs a server in another program, as cred if given.
func startChild(t *testing.T, c childConfig, cred *syscall.Credential, env ...string) *child {
	t.Helper()
	text, err := json.Marshal(c)
	check(t, err)
	binary, err := os.Executable()
	check(t, err)
	if cred != nil { // it cannot enter the folder that `go test` builds in
		content, err := os.ReadFile(binary)
		check(t, err)
		binary = filepath.Join(openFolderFor(t, nil), "child")
		writeProgram(t, binary, content)
	}
	cmd := exec.CommandContext(deadline(t), binary)
	cmd.Dir = "/"
	cmd.Env = append([]string{childVariable + "=" + string(text), "PATH=" + os.Getenv("PATH")}, env...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: cred}
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	stdin, err := cmd.StdinPipe()
	check(t, err)
	stdout, err := cmd.StdoutPipe()
	check(t, err)
	check(t, cmd.Start())
	started := &child{cmd: cmd, stdin: stdin}
	t.Cleanup(func() {
		if cmd.ProcessState == nil {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		}
	})
	if err := json.NewDecoder(stdout).Decode(&started.childReport); err != nil {
		stdin.Close()
		_ = cmd.Wait()
		t.Fatalf("the child did not start a server (%v): %s", err, stderr.String())
	}
	return started
}

// stop ends the child's server and the child.
func (c *child) stop(t *testing.T) {
	t.Helper()
	check(t, c.stdin.Close())
	check(t, c.cmd.Wait())
}

// crash kills the child, which leaves it no time to stop its server.
func (c *child) crash(t *testing.T) {
	t.Helper()
	check(t, c.cmd.Process.Kill())
	_ = c.cmd.Wait()
}

const testDeadline = 2 * time.Minute

func deadline(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), testDeadline)
	t.Cleanup(cancel)
	return ctx
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func mustContain(t *testing.T, text, part string) {
	t.Helper()
	if !strings.Contains(text, part) {
		t.Errorf("%q does not contain %q", text, part)
	}
}

// openFolderFor makes a temporary folder that the server's user can enter, which t.TempDir is not for root's.
func openFolderFor(t *testing.T, owner *syscall.Credential) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "embeddedpg-test-")
	check(t, err)
	t.Cleanup(func() { check(t, os.RemoveAll(dir)) })
	check(t, os.Chmod(dir, 0o755))
	if owner != nil {
		check(t, os.Chown(dir, int(owner.Uid), int(owner.Gid)))
	}
	return dir
}

// writeProgram writes an executable file. No program may be forked meanwhile: it would hold the file open for writing
// until its exec, and the system refuses to run such a file.
func writeProgram(t *testing.T, path string, content []byte) {
	t.Helper()
	syscall.ForkLock.RLock()
	err := os.WriteFile(path, content, 0o755)
	syscall.ForkLock.RUnlock()
	check(t, err)
	check(t, os.Chmod(path, 0o755))
}

func startServer(t *testing.T, c Config) *Server {
	t.Helper()
	s, err := Start(deadline(t), c)
	check(t, err)
	t.Cleanup(func() { _ = s.Stop(context.Background()) })
	return s
}

func stopServer(t *testing.T, s *Server) {
	t.Helper()
	check(t, s.Stop(deadline(t)))
}

// ask runs SQL and returns the first column of its first row, if any, as text.
func ask(t *testing.T, url, sql string) string {
	t.Helper()
	ctx := deadline(t)
	conn, err := pgx.Connect(ctx, url)
	check(t, err)
	defer conn.Close(ctx)
	results, err := conn.PgConn().Exec(ctx, sql).ReadAll()
	check(t, err)
	for _, r := range results {
		if len(r.Rows) > 0 {
			return string(r.Rows[0][0])
		}
	}
	return ""
}

const (
	putNote = "create table note (body text); insert into note values ('kept'); checkpoint"
	getNote = "select body from note"
)

// eventually polls, for what happens in processes that are not our children.
func eventually(t *testing.T, what string, done func() bool) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	limit := time.After(30 * time.Second)
	for !done() {
		select {
		case <-tick.C:
		case <-limit:
			t.Fatalf("not within 30 s: %s", what)
		}
	}
}

// running reports whether the process exists and is not merely waiting for its parent to notice its end.
func running(pid int) bool {
	if runtime.GOOS == "linux" {
		stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
		return err == nil && !bytes.Contains(stat, []byte(") Z "))
	}
	return syscall.Kill(pid, 0) == nil
}

func testAccount(t *testing.T) account {
	t.Helper()
	acct, err := serverAccount()
	check(t, err)
	return acct
}
