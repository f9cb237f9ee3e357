// Package cli_test holds transcripts of the workers command, in testdata, run against its own
// code and a real Postgres.
package cli_test

import (
	"context"
	"io"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgproto3"
	"github.com/rogpeppe/go-internal/testscript"

	"spectral/internal/app/cli"
	"spectral/tests/pgtest"
)

// testTimeout is how long a script waits for a condition.
const testTimeout = 30 * time.Second

type runner struct{ m *testing.M }

func (r runner) Run() int { return pgtest.Run(r.m) }

func TestMain(m *testing.M) {
	testscript.Main(runner{m}, map[string]func(){
		"workers": func() { os.Exit(cli.Main(context.Background(), cli.System(), os.Args[1:])) },
	})
}

func TestTranscripts(t *testing.T) {
	t.Parallel()
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata",
		RequireExplicitExec: true,
		RequireUniqueNames:  true,
		Setup: func(env *testscript.Env) error {
			env.Values["t"] = env.T().(testing.TB)
			env.Values["held"] = new(*pgx.Conn)
			env.Values["conns"] = make(map[string]*pgx.Conn)
			env.Values["stdin"] = new(string)
			env.Setenv("COLUMNS", "400")
			env.Setenv("SPECTRAL_BRIEFINGS_DIR", filepath.Join(env.WorkDir, "briefings"))
			env.Setenv("SPECTRAL_POSTGRES_BIN", os.Getenv("SPECTRAL_POSTGRES_BIN"))
			return nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"exits":    exits,
			"answer":   answer,
			"database": database,
			"login":    login,
			"sql":      sql,
			"capture":  capture,
			"await":    await,
			"oldpg":    oldPostgres,
			"home":     home,
			"wrong":    wrong,
			"holding":  holding,
			"letgo":    letGo,
		},
	})
}

// exits CODE workers args... runs the command in this process, which must return the exit code. Scripts use exec for
// commands that need a process or a terminal, or that read HOME or a relative path.
func exits(ts *testscript.TestScript, _ bool, args []string) {
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	if args[1] != "workers" {
		ts.Fatalf("usage: exits code workers args...")
	}
	stdin := ts.Value("stdin").(*string)
	code := cli.Main(context.Background(), cli.Process{
		Stdin: strings.NewReader(*stdin), Stdout: ts.Stdout(), Stderr: &locked{w: ts.Stderr()}, Getenv: ts.Getenv,
	}, args[2:])
	*stdin = ""
	if code != want {
		ts.Fatalf("exit code %d, want %d", code, want)
	}
}

// locked is a writer for the goroutines of a command, as a process's stderr is.
type locked struct {
	mu sync.Mutex
	w  io.Writer
}

func (l *locked) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.w.Write(p)
}

// answer LINE is what the next command of exits reads from stdin.
func answer(ts *testscript.TestScript, _ bool, args []string) {
	*ts.Value("stdin").(*string) = args[0] + "\n"
}

// database [empty] makes a database of the script's own, migrated unless empty, and sets
// DATABASE_URL and ADMIN_URL to it.
func database(ts *testscript.TestScript, _ bool, args []string) {
	at := pgtest.New
	if len(args) == 1 && args[0] == "empty" {
		at = pgtest.NewEmpty
	}
	ts.Setenv("ADMIN_URL", at(ts.Value("t").(testing.TB)))
	ts.Setenv("DATABASE_URL", ts.Getenv("ADMIN_URL"))
}

// login VARIABLE role... makes a login that is a member of the roles, and sets VARIABLE to the URL
// of the script's database as that login, VARIABLE_NAME to its name.
func login(ts *testscript.TestScript, _ bool, args []string) {
	at := pgtest.Login(ts.Value("t").(testing.TB), ts.Getenv("ADMIN_URL"), args[1:]...)
	u, err := url.Parse(at)
	ts.Check(err)
	ts.Setenv(args[0], at)
	ts.Setenv(args[0]+"_NAME", u.User.Username())
}

// wrong VARIABLE sets DATABASE_URL to the variable's URL with a wrong password.
func wrong(ts *testscript.TestScript, _ bool, args []string) {
	u, err := url.Parse(ts.Getenv(args[0]))
	ts.Check(err)
	u.User = url.UserPassword(u.User.Username(), "canary")
	ts.Setenv("DATABASE_URL", u.String())
}

// query runs a statement and returns its rows, one a line, with blanks between the values. It keeps a connection for
// each URL until the script ends or a statement fails on it.
func query(ctx context.Context, ts *testscript.TestScript, at, statement string) (text string, err error) {
	conns := ts.Value("conns").(map[string]*pgx.Conn)
	conn := conns[at]
	if conn == nil {
		if conn, err = pgx.Connect(ctx, at); err != nil {
			return "", err
		}
		ts.Defer(func() { _ = conn.Close(context.Background()) })
		conns[at] = conn
	}
	text, err = ask(ctx, conn, statement)
	if err != nil {
		delete(conns, at)
		_ = conn.Close(ctx)
	}
	return text, err
}

func ask(ctx context.Context, conn *pgx.Conn, statement string) (string, error) {
	results, err := conn.PgConn().Exec(ctx, statement).ReadAll()
	if err != nil {
		return "", err
	}
	var text strings.Builder
	for _, result := range results {
		for _, row := range result.Rows {
			values := make([]string, len(row))
			for i, value := range row {
				values[i] = string(value)
			}
			text.WriteString(strings.Join(values, " ") + "\n")
		}
	}
	return text.String(), nil
}

// capture NAME PATTERN sets a variable to what the group of the pattern matches in the last output.
func capture(ts *testscript.TestScript, _ bool, args []string) {
	found := regexp.MustCompile(args[1]).FindStringSubmatch(ts.ReadFile("stdout"))
	if len(found) != 2 {
		ts.Fatalf("no match for %s", args[1])
	}
	ts.Setenv(args[0], found[1])
}

// sql URL statement prints what a statement answers; with ! it must fail, and prints its error.
func sql(ts *testscript.TestScript, fails bool, args []string) {
	ctx, cancel := context.WithTimeout(context.Background(), testTimeout)
	defer cancel()
	out, err := query(ctx, ts, args[0], strings.Join(args[1:], " "))
	if (err != nil) != fails {
		ts.Fatalf("%s%v", out, err)
	}
	if err != nil {
		out = err.Error() + "\n"
	}
	_, err = ts.Stdout().Write([]byte(out))
	ts.Check(err)
}

// holding URL statement runs a statement in a transaction that stays open until letgo commits it.
func holding(ts *testscript.TestScript, _ bool, args []string) {
	ctx, cancel := context.WithTimeout(context.Background(), testTimeout)
	defer cancel()
	conn, err := pgx.Connect(ctx, args[0])
	ts.Check(err)
	ts.Defer(func() { _ = conn.Close(context.Background()) })
	_, err = conn.Exec(ctx, "begin; "+strings.Join(args[1:], " "))
	ts.Check(err)
	*ts.Value("held").(**pgx.Conn) = conn
}

// letGo commits the transaction of holding.
func letGo(ts *testscript.TestScript, _ bool, _ []string) {
	_, err := (*ts.Value("held").(**pgx.Conn)).Exec(context.Background(), "commit")
	ts.Check(err)
}

// await ANSWER statement waits until the statement answers so.
func await(ts *testscript.TestScript, _ bool, args []string) {
	ctx, cancel := context.WithTimeout(context.Background(), testTimeout)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		out, err := query(ctx, ts, ts.Getenv("ADMIN_URL"), strings.Join(args[1:], " "))
		if err == nil && strings.TrimSpace(out) == args[0] {
			return
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			ts.Fatalf("waited for %q, the last answer was %q, %v", args[0], out, err)
		}
	}
}

// oldPostgres sets DATABASE_URL to a server that says only that it is PostgreSQL 14.
func oldPostgres(ts *testscript.TestScript, _ bool, _ []string) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	ts.Check(err)
	ts.Defer(func() { _ = listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			backend := pgproto3.NewBackend(conn, conn)
			if _, err = backend.ReceiveStartupMessage(); err == nil {
				backend.Send(&pgproto3.AuthenticationOk{})
				backend.Send(&pgproto3.ParameterStatus{Name: "server_version", Value: "14.13 (Debian 14.13-1)"})
				backend.Send(&pgproto3.ReadyForQuery{TxStatus: 'I'})
				err = backend.Flush()
			}
			for err == nil { // until the client has gone
				_, err = backend.Receive()
			}
			_ = conn.Close()
		}
	}()
	ts.Setenv("DATABASE_URL", "postgres://worker@"+listener.Addr().String()+"/app?sslmode=disable")
}

// home sets HOME to an empty folder that every user may enter: the embedded server's own user
// must reach the data below it.
func home(ts *testscript.TestScript, _ bool, _ []string) {
	dir, err := os.MkdirTemp("", "spectral-home-")
	ts.Check(err)
	ts.Check(os.Chmod(dir, 0o755)) //nolint:gosec // see above
	ts.Defer(func() { _ = os.RemoveAll(dir) })
	ts.Setenv("HOME", dir)
}
