package console_test

import (
	"bufio"
	"context"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"spectral/internal/app"
	"spectral/internal/app/console"
	"spectral/internal/core/events/infrastructure/postgres/operator"
	"spectral/tests/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// answer is long enough for every answer of the console, which takes seconds at most.
const answer = time.Minute

// start serves the console of a database to a loopback visitor of a role, and returns its URL.
func start(t *testing.T, database, role string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), answer)
	defer cancel()
	// a role of persons that no migration makes yet may do nothing
	admin := pgtest.Conn(t, database)
	for _, name := range console.Roles() {
		if _, err := admin.Exec(ctx, "do $$ begin create role "+name+"; exception when duplicate_object then null; "+
			"end $$"); err != nil {
			t.Fatal(err)
		}
	}
	c, err := app.DemoConsole(ctx, database)
	if err == nil {
		err = c.Check(ctx)
	}
	if err != nil {
		t.Fatal(err)
	}
	c.Persons.Loopback = role
	handler, stop, err := c.Open(ctx, slog.New(slog.NewTextHandler(t.Output(), nil)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(stop)
	server := httptest.NewUnstartedServer(handler)
	server.Config.WriteTimeout = answer
	server.Start()
	t.Cleanup(server.Close)
	return server.URL + "/console"
}

// ask returns the status and the text of an answer. With a form it posts it.
func ask(t *testing.T, at string, form url.Values) (int, string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), answer)
	defer cancel()
	method, body := http.MethodGet, io.Reader(http.NoBody)
	if form != nil {
		method, body = http.MethodPost, strings.NewReader(form.Encode())
	}
	request, err := http.NewRequestWithContext(ctx, method, at, body)
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	client := http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	response, err := client.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response.StatusCode, string(text)
}

var pause = url.Values{"generation": {"1"}, "type": {"agent.task.dispatched"}, "reason": {"a test"}}

func TestTheDatabaseDecidesWhoMayAct(t *testing.T) {
	database := pgtest.New(t)
	status, text := ask(t, start(t, database, operator.Viewer)+"/types/pause", pause)
	for _, part := range []string{"permission denied for", "spectral_viewer", "spectral_operator"} {
		if status != http.StatusForbidden || !strings.Contains(text, part) {
			t.Errorf("a viewer's act: %d, without %q: %s", status, part, text)
		}
	}
	operating := start(t, database, operator.Role)
	status, text = ask(t, operating+"/types/pause", pause)
	if status != http.StatusSeeOther {
		t.Errorf("an operator's act: %d, %s", status, text)
	}
	if status, text = ask(t, operating+"/types/pause", pause); status != http.StatusConflict {
		t.Errorf("the same again, which the database refuses: %d, %s", status, text)
	}
}

func TestPagesEndWithTheirStatements(t *testing.T) {
	database := pgtest.New(t)
	at := start(t, database, operator.Role)
	if status, text := ask(t, at+"/operations", nil); status != http.StatusOK {
		t.Fatalf("%d, %s", status, text)
	}
	admin := pgtest.Conn(t, database)
	exec := func(sql string) {
		t.Helper()
		if _, err := admin.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	var sessions int
	if err := admin.QueryRow(t.Context(), "select count(*) from pg_stat_activity where application_name = "+
		"'spectral-console' and usename = 'spectral_console'").Scan(&sessions); err != nil || sessions == 0 {
		t.Errorf("%d sessions of the console, %v", sessions, err)
	}
	exec("begin; lock table core.operations in access exclusive mode")
	status, text := ask(t, at+"/operations", nil)
	if status != http.StatusGatewayTimeout || !strings.Contains(text, "statement_timeout 2s") {
		t.Errorf("a statement that waits: %d, %s", status, text)
	}
	exec("rollback; alter role spectral_console nologin; select pg_terminate_backend(pid) from pg_stat_activity where " +
		"usename = 'spectral_console'")
	if status, text = ask(t, at+"/operations", nil); status != http.StatusServiceUnavailable {
		t.Errorf("a database that is gone: %d, %s", status, text)
	}
	exec("alter role spectral_console login")
	if status, text = ask(t, at+"/operations", nil); status != http.StatusOK {
		t.Errorf("a database that is back: %d, %s", status, text)
	}
}

func TestPagesAreStreamed(t *testing.T) {
	at := start(t, pgtest.New(t), operator.Role)
	ctx, cancel := context.WithTimeout(t.Context(), answer)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, at+"/live?of=/operations", http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	lines := bufio.NewScanner(response.Body)
	for _, want := range []string{"event: version", "data: " + app.Version(), "", "data: "} {
		if !lines.Scan() || !strings.HasPrefix(lines.Text(), want) {
			t.Fatalf("%q, want %q; %v", lines.Text(), want, lines.Err())
		}
	}
}

func TestTheLoginOfTheConsoleIsChecked(t *testing.T) {
	database := pgtest.New(t)
	start(t, database, operator.Viewer)
	for name, c := range map[string]struct{ url, want string }{
		"the superuser":  {database, "may act as spectral_worker"},
		"the workers'":   {pgtest.Login(t, database, "spectral_worker"), "may act as spectral_worker"},
		"without roles":  {pgtest.Login(t, database), "grant spectral_viewer to"},
		"not migrated":   {pgtest.NewEmpty(t), "may act as spectral_worker"},
		"not a database": {"postgres://localhost:1/none", "SPECTRAL_CONSOLE_URL: cannot connect"},
	} {
		made, err := app.ReadConsole(func(variable string) string {
			return map[string]string{app.EnvConsoleURL: c.url}[variable]
		})
		if err == nil {
			err = made.Check(t.Context())
		}
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %s", name, err, c.want)
		}
	}
}
