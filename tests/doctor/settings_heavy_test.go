//go:build heavy

package doctor_test

import (
	"context"
	"net/url"
	"strings"
	"testing"
	"time"

	"spectral/internal/app/doctor"
	"spectral/tests/faults/server"
	"spectral/tests/pgtest"
)

// Every harmful setting is found wherever it can be set, by a login that may see no configuration file, and goes away by its cure.
func TestSettingsAreCured(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	t.Cleanup(cancel)
	s := server.New(t, nil)
	at := s.URL("postgres")
	if err := pgtest.Migrate(ctx, at); err != nil {
		t.Fatal(err)
	}
	p := &patient{T: t, ctx: ctx, admin: pgtest.Conn(t, at), name: "postgres"}
	p.exec("create role somebody; create role watcher login password 'watcher' in role spectral_operator")
	u, err := url.Parse(at)
	if err != nil {
		t.Fatal(err)
	}
	u.User = url.UserPassword("watcher", "watcher")
	bare := u.String()
	if u.RawQuery == "" {
		bare += "?"
	}
	p.url = bare
	p.mustBeFine("settings", "before")
	find := func(seen string) (found *doctor.Finding) {
		for _, f := range p.examine("settings", nil).Findings {
			if strings.Contains(f.Seen, seen) {
				if found != nil {
					t.Errorf("it is said twice that %s", f.Seen)
				}
				found = &f
			}
		}
		return found
	}
	for name, value := range map[string]string{
		"autovacuum": "off", "default_transaction_isolation": "'repeatable read'", "default_transaction_read_only": "on", "enable_indexonlyscan": "off", "enable_indexscan": "off",
		"fsync": "off", "full_page_writes": "off", "role": "spectral_owner", "session_replication_role": "replica", "statement_timeout": "'2s'", "synchronous_commit": "off",
		"track_activities": "off", "track_counts": "off", "transaction_timeout": "'2s'",
	} {
		var settable string
		if err := p.admin.QueryRow(p.ctx, "select coalesce((select context from pg_settings where name = $1), '')", name).Scan(&settable); err != nil {
			t.Fatal(err)
		}
		if name == "role" {
			settable = "user"
		} else if settable == "" { // this server does not know it
			continue
		}
		for _, whose := range []string{"role somebody", "database postgres", "role somebody in database postgres", "role all"} {
			if settable == "sighup" {
				continue
			}
			p.exec("alter " + whose + " set " + name + " = " + value)
			f := find(name + " is ")
			if f == nil || !strings.HasSuffix(f.Seen, ", in the sessions of "+whose) {
				t.Fatalf("of %s of %s it says %+v", name, whose, p.examine("settings", nil))
			}
			p.paste(f.Cure)
			p.mustBeFine("settings", "after the cure of "+name+" of "+whose)
		}
		if name == "role" {
			continue
		}
		p.exec("alter system set " + name + " = " + value)
		p.exec("select pg_reload_conf()")
		// sessions that begin from now on: the server takes a moment to read its file
		for ; find(name+" is ") == nil; p.inTime() {
		}
		if f := find(name + " is "); !strings.HasSuffix(f.Seen, ", for the whole server") {
			t.Fatalf("of %s of the server it says %+v", name, f)
		}
		if settable == "user" { // the URL's own is not the server's
			p.url = bare + "&options=-c%20" + name + "%3D" + map[bool]string{true: "0", false: "on"}[strings.HasSuffix(name, "_timeout")]
			switch name {
			case "default_transaction_isolation":
				p.url = bare + "&default_transaction_isolation=read%20committed"
			case "default_transaction_read_only":
				p.url = bare + "&default_transaction_read_only=off"
			}
			if f := find(name + " is "); f == nil || !strings.HasSuffix(f.Seen, ", for the whole server") {
				t.Errorf("of %s, which the URL sets otherwise, it says %+v", name, f)
			}
			p.url = bare
		}
		p.paste(find(name + " is ").Cure)
		for ; find(name+" is ") != nil; p.inTime() {
		}
		p.mustBeFine("settings", "after the cure of "+name+" of the server")
	}

	p.url = bare + "&statement_timeout=2000&synchronous_commit=off"
	for _, name := range []string{"statement_timeout", "synchronous_commit"} {
		if f := find(name + " is "); f == nil || f.Cure != "take it out of DATABASE_URL, or of PGOPTIONS" || !strings.HasSuffix(f.Seen, ", in the sessions of whoever connects as this one") {
			t.Errorf("of %s of the URL it says %+v", name, f)
		}
	}

	// without a connection for a look past what the URL sets, what was found before stands
	p.exec("alter role watcher connection limit 1; alter role somebody set synchronous_commit = off")
	if result := p.examine("settings", nil); len(result.Findings) != 2 || result.State != doctor.Warning || result.Findings[1].State != doctor.Unknown {
		t.Errorf("with a single connection it says %+v", result)
	}
	p.exec("alter role watcher connection limit -1; alter role somebody reset all")

	p.url = bare
	p.mustBeFine("settings", "without what the URL set")
}
