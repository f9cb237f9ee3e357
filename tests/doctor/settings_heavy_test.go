//go:build heavy

package doctor_test

import (
	"context"
	"net/url"
	"strings"
	"testing"

	"spectral/internal/app/doctor"
	"spectral/tests/faults/server"
	"spectral/tests/pgtest"
)

// ownServer returns a migrated database on a separate server, connected as its superuser.
func ownServer(t *testing.T, settings map[string]string) *fixture {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), testTimeout)
	t.Cleanup(cancel)
	at := server.New(t, settings).URL("postgres")
	if err := pgtest.Migrate(ctx, at); err != nil {
		t.Fatal(err)
	}
	return &fixture{T: t, ctx: ctx, url: at, admin: pgtest.Conn(t, at), name: "postgres"}
}

// A login that cannot read the configuration file finds each harmful setting wherever it is set; the fix removes it.
func TestHarmfulSettingsAreFoundAndFixed(t *testing.T) {
	p := ownServer(t, nil)
	p.exec("create role other; create role watcher login password 'watcher' in role spectral_operator")
	u, err := url.Parse(p.url)
	if err != nil {
		t.Fatal(err)
	}
	u.User = url.UserPassword("watcher", "watcher")
	bare := u.String()
	if u.RawQuery == "" {
		bare += "?"
	}
	p.url = bare
	mustBeFine := func(when string) {
		t.Helper()
		if result := p.examine("settings", doctor.Config{}); result.State != doctor.Fine {
			t.Errorf("%s it says %+v", when, result)
		}
	}
	mustBeFine("before")
	find := func(name string) (found *doctor.Finding) {
		for _, f := range p.examine("settings", doctor.Config{}).Findings {
			if strings.Contains(f.Problem, name+" is ") {
				if found != nil {
					t.Errorf("there are two findings on %s", name)
				}
				found = &f
			}
		}
		return found
	}
	mustFind := func(name, where string) *doctor.Finding {
		t.Helper()
		f := find(name)
		if f == nil || !strings.HasSuffix(f.Problem, where) {
			t.Fatalf("of %s it says %+v; want %q", name, f, where)
		}
		return f
	}
	for name, value := range map[string]string{
		"autovacuum": "off", "default_transaction_isolation": "'repeatable read'",
		"default_transaction_read_only": "on",
		"enable_indexonlyscan":          "off", "enable_indexscan": "off", "fsync": "off", "full_page_writes": "off",
		"role": "spectral_owner", "session_replication_role": "replica",
		"synchronous_commit": "off", "track_activities": "off", "track_counts": "off",
	} {
		var settable string
		known := p.admin.QueryRow(p.ctx, "select coalesce((select context from pg_settings where name = $1), '')", name)
		if err := known.Scan(&settable); err != nil {
			t.Fatal(err)
		}
		if settable == "" && name != "role" { // this server does not know it
			continue
		}
		for _, whose := range []string{"role other", "database postgres", "role other in database postgres",
			"role all"} {
			if settable != "sighup" {
				p.exec("alter " + whose + " set " + name + " = " + value)
				p.paste(mustFind(name, ", in the sessions of "+whose).Fix)
				mustBeFine("after the fix of " + name + " of " + whose)
			}
		}
		if name == "role" {
			continue
		}
		p.exec("alter system set " + name + " = " + value)
		p.exec("select pg_reload_conf()")
		for ; find(name) == nil; p.inTime() { // the server takes a moment to read its file
		}
		p.paste(mustFind(name, ", for the whole server").Fix)
		for ; find(name) != nil; p.inTime() {
		}
	}

	// what the URL sets is not the server's
	p.url = bare + "&options=-c%20enable_indexscan%3Doff"
	const connected = ", in the sessions that connect as this one does"
	if f := mustFind("enable_indexscan", connected); f.Fix != "remove enable_indexscan from DATABASE_URL or PGOPTIONS" {
		t.Errorf("of the URL it says %+v", f)
	}
	p.url = bare
	mustBeFine("without what the URL set")
}
