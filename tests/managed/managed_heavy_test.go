//go:build heavy

package managed_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"spectral/internal/app"
	"spectral/internal/app/embeddedpg"
	"spectral/tests/faults/process"
	"spectral/tests/pgtest"
)

// otherServers is the variable for folders of further Postgres programs, separated as in PATH.
const otherServers = "SPECTRAL_TEST_POSTGRES"

const testTimeout = 2 * time.Minute

var binary process.Binary

func TestMain(m *testing.M) {
	code := m.Run()
	if err := binary.Remove(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

var versionForm = regexp.MustCompile(`\(PostgreSQL\) ([0-9]+)`)

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// programs returns the folder with the programs of a major version of Postgres.
func programs(t *testing.T, major int) string {
	t.Helper()
	dirs := append(filepath.SplitList(os.Getenv(otherServers)), os.Getenv(app.EnvPostgresBin))
	for _, layout := range []string{"/usr/lib/postgresql/*/bin", "/usr/pgsql-*/bin"} {
		found, err := filepath.Glob(layout)
		must(t, err)
		dirs = append(dirs, found...)
	}
	for _, dir := range dirs {
		out, err := exec.Command(filepath.Join(dir, "postgres"), "--version").Output()
		if found := versionForm.FindSubmatch(out); err == nil && found != nil && string(found[1]) == strconv.Itoa(major) {
			return dir
		}
	}
	t.Fatalf("PostgreSQL %d is not installed: install it, or name the folder of its programs in %s", major, otherServers)
	return ""
}

// cluster is a server of a provider: the tenant owns a database and may create roles.
type cluster struct {
	*testing.T
	ctx    context.Context
	server *embeddedpg.Server
	conns  map[string]*pgx.Conn // by URL
}

func newCluster(t *testing.T, dir string) *cluster {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*testTimeout)
	t.Cleanup(cancel)
	server, stop, err := pgtest.StartTemporary(ctx, "", dir)
	must(t, err)
	t.Cleanup(func() { must(t, stop()) })
	c := &cluster{T: t, ctx: ctx, server: server, conns: make(map[string]*pgx.Conn)}
	c.query(server.URL("postgres"), "create role tenant login createrole nosuperuser password 'test'")
	c.query(server.URL("postgres"), "create database app owner tenant")
	return c
}

// as returns the URL of a database for a login.
func (c *cluster) as(login, database string) string {
	c.Helper()
	u, err := url.Parse(c.server.URL(database))
	must(c, err)
	u.User = url.UserPassword(login, "test")
	return u.String()
}

// query executes sql and returns its first value as text.
func (c *cluster) query(at, sql string) string {
	c.Helper()
	value, err := c.try(at, sql)
	if err != nil {
		c.Fatalf("%s: %v", sql, err)
	}
	return value
}

func (c *cluster) try(at, sql string) (string, error) {
	conn := c.conns[at]
	if conn == nil || conn.IsClosed() {
		var err error
		if conn, err = pgx.Connect(c.ctx, at); err != nil {
			return "", err
		}
		c.conns[at] = conn
	}
	results, err := conn.PgConn().Exec(c.ctx, sql).ReadAll()
	if err != nil || len(results) == 0 || len(results[0].Rows) == 0 {
		return "", err
	}
	return string(results[0].Rows[0][0]), nil
}

// await repeats a query until it returns want.
func (c *cluster) await(at, sql, want string) {
	c.Helper()
	var have string
	var err error
	if !pgtest.Eventually(testTimeout, func() bool {
		have, err = c.try(at, sql)
		return err == nil && have == want
	}) {
		c.Fatalf("%s returns %q, want %q (%v)", sql, have, want, err)
	}
}

// workers runs the command to its end and compares the exit code.
func (c *cluster) workers(code int, at string, args ...string) (stdout, stderr string) {
	c.Helper()
	cmd := exec.CommandContext(c.ctx, binary.Path(c), args...)
	cmd.Env = []string{"DATABASE_URL=" + at, "SPECTRAL_GENERATION=1", "HOME=" + c.TempDir(), "USER=ana"}
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Run()
	have := 0
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		have = exit.ExitCode()
	} else if err != nil {
		c.Fatal(err)
	}
	if have != code {
		c.Fatalf("workers %s exits with %d, not %d:\n%s%s", strings.Join(args, " "), have, code, out.String(), errs.String())
	}
	return out.String(), errs.String()
}

// run starts the workers and returns a function that stops them.
func (c *cluster) run(at string) (stop func()) {
	c.Helper()
	cmd := exec.CommandContext(c.ctx, binary.Path(c), "run")
	cmd.Env = []string{"DATABASE_URL=" + at, "SPECTRAL_GENERATION=1", "HOME=" + c.TempDir(),
		"SPECTRAL_BRIEFINGS_DIR=" + c.TempDir()}
	var errs bytes.Buffer
	cmd.Stderr = &errs
	must(c, cmd.Start())
	stop = sync.OnceFunc(func() {
		_ = cmd.Process.Signal(os.Interrupt)
		if err := cmd.Wait(); err != nil {
			c.Errorf("the workers end with %v:\n%s", err, errs.String())
		}
	})
	c.Cleanup(stop)
	return stop
}

// install migrates as the tenant and creates the logins.
func (c *cluster) install() {
	c.Helper()
	if _, stderr := c.workers(0, c.as("tenant", "app"), "migrate", "up"); strings.Contains(stderr, "privileges differ") {
		c.Errorf("after migrating as the tenant: %s", stderr)
	}
	c.logins()
}

func (c *cluster) logins() {
	c.Helper()
	for login, role := range map[string]string{"app_worker": "spectral_worker", "app_worlds": "spectral_worlds",
		"app_operator": "spectral_operator"} {
		c.query(c.as("tenant", "app"), fmt.Sprintf("create role %s login password 'test' in role %s", login, role))
	}
}

// publish publishes n cards as the login of worlds. arguments are further arguments of core.outbox_publish.
func (c *cluster) publish(prefix string, n int, arguments string) {
	c.Helper()
	c.query(c.as("app_worlds", "app"), fmt.Sprintf(`select
		count(core.outbox_publish('worlds.world_model_card.published', 'worlds',
		jsonb_build_object('card_id', '%s-' || i, 'version', 1, 'title', 't')%s)) from generate_series(1, %d) i`,
		prefix, arguments, n))
}

// events waits until an operator sees the given number of events in a status.
func (c *cluster) events(status, want string) {
	c.Helper()
	c.await(c.as("app_operator", "app"), "select count(*) from core.outbox where status = '"+status+"'", want)
}

// wantHealthy runs the doctor's checks that do not depend on the server's settings.
func (c *cluster) wantHealthy() {
	c.Helper()
	c.workers(0, c.as("app_operator", "app"), "doctor", "migrations", "schema", "indexes", "privileges", "clock",
		"notifications", "queue", "unhandled", "channels", "leases", "vacuum")
}

// repair damages the schema and repairs it as the tenant, while workers run.
func (c *cluster) repair() {
	c.Helper()
	c.query(c.as("tenant", "app"), `alter function core.uuid_v7() rename to id;
		drop policy scans_workspace on worlds.scans;
		alter table core.outbox disable trigger outbox_notify;
		revoke select on core.outbox from spectral_worker;
		grant update on core.outbox to spectral_worlds;
		revoke select on spectral_goose.goose_db_version from spectral_worker;
		create function core.mine() returns integer language sql as 'select 1'`)
	if stdout, _ := c.workers(3, c.as("app_operator", "app"), "doctor", "schema",
		"privileges"); !strings.Contains(stdout, "workers migrate repair") {
		c.Errorf("doctor says:\n%s", stdout)
	}
	c.workers(0, c.as("tenant", "app"), "migrate", "repair", "--yes")
	c.wantHealthy()
}

// operate runs the commands of operators.
func (c *cluster) operate() {
	c.Helper()
	operator := c.as("app_operator", "app")
	wantOutput := func(part string, args ...string) {
		c.Helper()
		if stdout, stderr := c.workers(0, operator, args...); !strings.Contains(stdout+stderr, part) {
			c.Errorf("workers %s does not print %q:\n%s%s", strings.Join(args, " "), part, stdout, stderr)
		}
	}
	c.publish("lost", 3, ", p_target => 'worlds'") // worlds has no handler for cards
	c.events("failed", "3")
	id := c.query(operator, "select id from core.outbox where status = 'failed' order by id limit 1")
	wantOutput(id, "events", "list")
	wantOutput("NoHandler", "events", "show", id)
	wantOutput("failed", "events", "stats", "--by", "status")
	wantOutput("discarded 1 event", "events", "discard", id, "--yes")
	wantOutput("undiscarded 1 event", "events", "undiscard", id, "--yes")
	wantOutput("replayed 3 events", "events", "replay", "--all", "--to", "1", "--yes")
	c.events("failed", "3") // the handler is still missing
	wantOutput("discarded 3 events", "events", "discard", "--all", "--reason", "no handler", "--yes")
	const card = "worlds.world_model_card.published"
	wantOutput("paused", "events", "pause", card, "--generation", "1")
	c.publish("paused", 2, "")
	wantOutput("resumed", "events", "resume", card, "--generation", "1")
	c.events("delivered", "52")
	wantOutput("generation 2 is live", "generation", "register", "2")
	c.query(c.as("app_worlds", "app"),
		"select core.outbox_publish('"+card+"', 'worlds', '{\"card_id\": \"moved\", \"version\": 1, \"title\": \"t\"}')")
	wantOutput("moved 1 event", "generation", "adopt", "2", "1", "--yes")
	c.events("delivered", "53")
	wantOutput("is draining", "generation", "drain", "2")
	wantOutput("is retired", "generation", "retire", "2")
	wantOutput("tombstoned", "retention", "sweep", "--yes")
	wantOutput("outbox_row", "retention", "status")
	actions := c.query(operator, `select string_agg(distinct action, ' ' order by action)
		from core.operator_actions where acted_by = 'ana' and login = 'app_operator'`)
	if actions != "adopt discard generation_close generation_drain generation_register generation_retire "+
		"operation_create pause replay "+
		"resume sweep undiscard" {
		c.Errorf("the recorded operator actions are %s", actions)
	}
}

func TestTenantInstallsRunsAndOperates(t *testing.T) {
	for _, major := range []int{15, 18} {
		t.Run(strconv.Itoa(major), func(t *testing.T) {
			t.Parallel()
			c := newCluster(t, programs(t, major))
			c.install()
			if super := c.query(c.as("tenant", "app"),
				"select rolsuper from pg_roles where rolname = current_user"); super != "f" {
				t.Fatal("the tenant is a superuser")
			}
			stop := c.run(c.as("app_worker", "app"))
			c.await(c.as("app_operator", "app"), "select count(*) = 1 from core.live_workers", "t")
			c.publish("a", 50, "")
			c.events("delivered", "50")
			c.operate()
			c.wantHealthy()
			c.repair()
			stop()
			if stdout, _ := c.workers(0, c.as("tenant", "app"), "migrate", "up"); !strings.Contains(stdout, "nothing to apply") {
				t.Errorf("migrating again: %s", stdout)
			}
		})
	}
}

// A database that was dumped with waiting events goes on where it is restored, on a newer version.
func TestRestoredDumpGoesOn(t *testing.T) {
	t.Parallel()
	oldest := programs(t, 15)
	from := newCluster(t, oldest)
	from.install()
	stop := from.run(from.as("app_worker", "app"))
	from.await(from.as("app_operator", "app"), "select count(*) = 1 from core.live_workers", "t")
	from.publish("done", 30, "")
	from.events("delivered", "30")
	from.publish("lost", 1, ", p_target => 'worlds'") // worlds has no handler for cards
	from.events("failed", "1")
	stop()
	from.publish("waiting", 20, "")
	dump := filepath.Join(t.TempDir(), "app.dump")
	from.tool(oldest, "pg_dump", "--format=custom", "--file="+dump, from.as("tenant", "app"))

	to := newCluster(t, programs(t, 18))
	// The roles belong to the cluster, and migrating any database creates them.
	to.query(to.server.URL("postgres"), "create database for_roles owner tenant")
	to.workers(0, to.as("tenant", "for_roles"), "migrate", "up")
	to.query(to.server.URL("postgres"), "drop database for_roles")
	to.tool(oldest, "pg_restore", "--exit-on-error", "--dbname="+to.as("tenant", "app"), dump)
	to.logins()

	if stdout, stderr := to.workers(0, to.as("tenant", "app"), "migrate", "up"); !strings.Contains(stdout,
		"nothing to apply") || strings.Contains(stderr, "privileges differ") {
		t.Errorf("migrating the restored database: %s%s", stdout, stderr)
	}
	to.run(to.as("app_worker", "app"))
	to.events("delivered", "50")
	to.events("failed", "1")
	if cards := to.query(to.server.URL("app"),
		"select count(*) || ' ' || sum(version) from platform.system_cards"); cards != "50 50" {
		t.Errorf("cards and versions are %s", cards)
	}
	if twice := to.query(to.server.URL("app"), "select count(*) from core.outbox where attempts <> 1"); twice != "0" {
		t.Errorf("%s events had more than one attempt", twice)
	}
	to.publish("new", 5, "")
	to.events("delivered", "55")
	to.wantHealthy()
}

// tool runs a program of Postgres.
func (c *cluster) tool(dir, name string, args ...string) {
	c.Helper()
	out, err := exec.CommandContext(c.ctx, filepath.Join(dir, name), args...).CombinedOutput()
	if err != nil {
		c.Fatalf("%s: %v: %s", name, err, out)
	}
}
