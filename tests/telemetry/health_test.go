package telemetry_test

import (
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"regexp"
	"strings"
	"testing"

	"spectral/internal/app"
	"spectral/tests/pgtest"
)

func TestHealth(t *testing.T) {
	t.Parallel()
	p := start(t, nil)
	p.work()
	for _, path := range []string{"/healthz", "/readyz"} {
		if status, text := p.get(path); status != http.StatusOK || text != "ok\n" {
			t.Errorf("%s: %d %s", path, status, text)
		}
	}
	// without a database the process lives, and is not ready
	other := pgtest.Conn(t, pgtest.Server(t).URL("postgres"))
	var name string
	must(t, p.admin.QueryRow(p.ctx, "select current_database()").Scan(&name))
	connections := func(allowed bool) {
		_, err := other.Exec(p.ctx, fmt.Sprintf("alter database %s allow_connections %t", name, allowed))
		must(t, err)
	}
	connections(false)
	defer connections(true)
	p.exec("select pg_terminate_backend(pid) from pg_stat_activity where datname = current_database() and pid <> " +
		"pg_backend_pid()")
	if !pgtest.Eventually(testTimeout, func() bool {
		status, text := p.get("/readyz")
		return status == http.StatusServiceUnavailable && strings.HasPrefix(text, "reconnecting: ")
	}) {
		t.Error("without a database it is ready")
	}
	if status, text := p.get("/healthz"); status != http.StatusOK {
		t.Errorf("without a database: %d %s", status, text)
	}
	connections(true)
	if !pgtest.Eventually(testTimeout, func() bool { status, _ := p.get("/readyz"); return status == http.StatusOK }) {
		t.Error("with the database back it is not ready")
	}
	if status, _ := p.get("/nothing"); status != http.StatusNotFound {
		t.Errorf("an unknown page: %d", status)
	}
}

// Without a port a worker takes the next free one where the default is taken; an address that is set and taken is an
// error that says so.
func TestTheAddressMayBeTaken(t *testing.T) {
	t.Parallel()
	first := start(t, func(s *app.Settings) { s.HTTPAddr = "" })
	second := start(t, func(s *app.Settings) { s.HTTPAddr = "127.0.0.1" })
	address := func(p *process) (address string) {
		pattern := regexp.MustCompile(`"url":"http://([^"]+)"`)
		pgtest.Eventually(testTimeout, func() bool {
			found := pattern.FindStringSubmatch(p.log.String())
			if found != nil {
				address = found[1]
			}
			return found != nil
		})
		return address
	}
	one, two := address(first), address(second)
	if one == "" || one == two {
		t.Fatalf("the logs name %q and %q", one, two)
	}
	worker, _ := app.NewWorker(app.Settings{
		DatabaseURL: first.url, PoolURL: first.url, Generation: pgtest.Generation, BriefingsDir: t.TempDir(),
		HTTPAddr: one,
	}, slog.New(slog.DiscardHandler))
	err := worker.Start(first.ctx)
	if !errors.As(err, new(*app.SettingsError)) || !strings.HasPrefix(err.Error(), "SPECTRAL_HTTP_ADDR: ") {
		t.Errorf("an address that is taken: %v", err)
	}
}
