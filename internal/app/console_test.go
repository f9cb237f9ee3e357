package app_test

import (
	"errors"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"spectral/internal/app"
	"spectral/internal/app/console"
	"spectral/internal/core/events/infrastructure/postgres/operator"
)

func TestSettingsOfTheConsole(t *testing.T) {
	t.Parallel()
	roles := filepath.Join(t.TempDir(), "roles")
	if err := os.WriteFile(roles, []byte("ann boss"), 0o600); err != nil {
		t.Fatal(err)
	}
	const url = "postgres://console@db/app"
	for name, c := range map[string]struct {
		env  map[string]string
		want string // of the error; empty: none
	}{
		"hosts":            {map[string]string{app.EnvConsoleHosts: "Ops.example, b"}, ""},
		"proxies":          {map[string]string{app.EnvConsoleTrusted: "10.0.0.0/8,::1"}, ""},
		"no URL":           {map[string]string{app.EnvConsoleURL: "console"}, "SPECTRAL_CONSOLE_URL: it is not a URL"},
		"the workers' own": {map[string]string{app.EnvDatabaseURL: url}, "console is the login of DATABASE_URL too"},
		"a host with port": {map[string]string{app.EnvConsoleHosts: "ops:80"}, `SPECTRAL_CONSOLE_HOSTS: "ops:80"`},
		"no address":       {map[string]string{app.EnvConsoleTrusted: "proxy"}, `SPECTRAL_CONSOLE_TRUSTED: "proxy"`},
		"no role":          {map[string]string{app.EnvConsoleRoles: roles}, `roles, line 1: "boss" is no role`},
		"no file":          {map[string]string{app.EnvConsoleTokens: "/none"}, "SPECTRAL_CONSOLE_TOKENS: open /none"},
		"no server":        {map[string]string{app.EnvHTTPAddr: app.HTTPOff}, "SPECTRAL_HTTP_ADDR is off"},
	} {
		env := map[string]string{app.EnvConsoleURL: url, app.EnvDatabaseURL: "postgres://worker@db/app",
			app.EnvGeneration: "1", app.EnvBriefingsDir: t.TempDir()}
		maps.Copy(env, c.env)
		s, err := app.ReadSettings(func(name string) string { return env[name] }, false, nil)
		switch {
		case c.want != "" && (!errors.As(err, new(*app.SettingsError)) || !strings.Contains(err.Error(), c.want)):
			t.Errorf("%s: %v, want %s", name, err, c.want)
		case c.want == "" && (err != nil || len(s.Console.Hosts)+len(s.Console.Trusted) != 2):
			t.Errorf("%s: %v, %+v", name, err, s.Console)
		}
	}
	c, err := app.ReadConsole(func(string) string { return "" })
	if c != nil || err != nil {
		t.Errorf("without a URL: %v, %v", c, err)
	}
}

// The header's name is a setting, and what reads it knows the proxies.
func TestProxiesAreTrustedBySettings(t *testing.T) {
	t.Parallel()
	env := map[string]string{app.EnvConsoleURL: "postgres://console@db/app", app.EnvConsoleTrusted: "10.0.0.1",
		app.EnvConsoleUserHeader: "X-Ann", app.EnvConsoleRoles: filepath.Join(t.TempDir(), "roles")}
	if err := os.WriteFile(env[app.EnvConsoleRoles], []byte("* corrector"), 0o600); err != nil {
		t.Fatal(err)
	}
	c, err := app.ReadConsole(func(name string) string { return env[name] })
	if err != nil {
		t.Fatal(err)
	}
	r := httptest.NewRequest(http.MethodGet, "/", nil)
	r.Header.Set("X-Ann", "ann")
	r.RemoteAddr = "10.0.0.1:1"
	want := console.Person{Name: "ann", Role: operator.Corrector}
	if person, err := c.Persons.Person(r); err != nil || person != want {
		t.Errorf("%v, %v", person, err)
	}
}
