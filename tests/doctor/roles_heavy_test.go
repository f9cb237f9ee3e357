//go:build heavy

package doctor_test

import (
	"strings"
	"testing"

	"spectral/internal/app"
	"spectral/internal/app/doctor"
	"spectral/tests/faults/server"
	"spectral/tests/pgtest"
)

// What concerns all databases of a server: done to one of the test's own.
func TestRolesAreCured(t *testing.T) {
	s := server.New(t, nil)
	at := s.URL("postgres")
	if err := pgtest.Migrate(t.Context(), at); err != nil {
		t.Fatal(err)
	}
	p := &patient{T: t, ctx: t.Context(), url: at, admin: pgtest.Conn(t, at), name: "postgres"}
	var version int
	if err := p.admin.QueryRow(p.ctx, "select current_setting('server_version_num')::integer").Scan(&version); err != nil {
		t.Fatal(err)
	}
	p.mustBeFine("privileges", "before")
	p.exec("create role grantor superuser; create role chief login createrole")
	for _, d := range []struct {
		damage, seen, cure string
		findings           int // beside what follows from it
		from, before       int // versions
	}{
		{damage: "alter role spectral_worker inherit", seen: "it is role spectral_worker nologin inherit, and should be role spectral_worker nologin noinherit", cure: "as the login that migrates: alter role spectral_worker noinherit;", findings: 1},
		{damage: "alter role spectral_publisher login superuser bypassrls", seen: "it is role spectral_publisher login inherit superuser bypassrls", cure: "as a superuser: alter role spectral_publisher nologin nosuperuser nobypassrls;", findings: 1},
		{damage: "alter role spectral_owner createrole createdb", seen: "createrole createdb", cure: "as the login that migrates: alter role spectral_owner nocreaterole nocreatedb;", findings: 1},
		{damage: "create role spectral_strangers", seen: "unexpected: role spectral_strangers nologin inherit", cure: "alter role spectral_strangers rename to formerly_spectral_strangers;", findings: 1},
		{damage: "revoke spectral_worlds from spectral_worker", seen: "missing: grant spectral_worlds to spectral_worker noinherit set", cure: "as the login that migrates: grant spectral_worlds to spectral_worker", findings: 1},
		{damage: "revoke spectral_publisher from spectral_worlds", seen: "missing: grant spectral_publisher to spectral_worlds inherit set", cure: "grant spectral_publisher to spectral_worlds", findings: 1},
		{damage: "grant spectral_owner to spectral_worker", seen: "unexpected: grant spectral_owner to spectral_worker noinherit set", cure: "revoke spectral_owner from spectral_worker", findings: 1},
		{damage: "grant spectral_worlds to spectral_worker with admin option", seen: "noinherit set admin, and should be grant spectral_worlds to spectral_worker noinherit set", cure: "revoke admin option for spectral_worlds from spectral_worker", findings: 1},
		{damage: "alter role spectral_worker inherit; grant spectral_worlds to spectral_worker with admin option", seen: "inherit set admin", cure: "revoke admin option for", findings: 2, before: 160000},
		{damage: "grant spectral_platform to spectral_worker with inherit true", seen: "it is grant spectral_platform to spectral_worker inherit set, and should be", cure: "grant spectral_platform to spectral_worker with inherit false, set true granted by", findings: 1, from: 160000},
		{damage: "grant spectral_publisher to spectral_worlds with inherit false, set false", seen: "noinherit noset", cure: "with inherit true, set true granted by", findings: 1, from: 160000},
		// somebody else has granted it, and nobody else's revoke takes it back
		{damage: "grant spectral_worlds to chief with admin option; grant spectral_worlds to spectral_worker with inherit true granted by chief", seen: "inherit set, and should be", cure: "as a superuser, or as chief: grant spectral_worlds to spectral_worker with inherit false, set true granted by chief;", findings: 1, from: 160000},
		{damage: "grant spectral_owner to chief with admin option; grant spectral_owner to spectral_operator granted by chief", seen: "unexpected: grant spectral_owner to spectral_operator", cure: "revoke spectral_owner from spectral_operator granted by chief cascade;", findings: 1, from: 160000},
	} {
		if version < d.from || d.before > 0 && version >= d.before {
			continue
		}
		p.exec(d.damage)
		for i := 0; ; i++ {
			result := p.examine("privileges", nil)
			if i == 0 {
				found := false
				for _, f := range result.Findings {
					found = found || strings.Contains(f.Seen, d.seen) && strings.Contains(f.Cure, d.cure)
				}
				if !found || len(result.Findings) != d.findings {
					t.Errorf("%s: it says %+v; want %s, cured by %s", d.damage, result.Findings, d.seen, d.cure)
				}
			}
			if result.State == doctor.Fine {
				break
			}
			if i > 0 {
				t.Fatalf("%s: after the cures it says %+v", d.damage, result)
			}
			for _, f := range result.Findings { // in their order
				p.paste(f.Cure)
			}
		}
	}

	for _, role := range app.Roles() {
		for _, name := range []string{"spectral_other", `"Formerly-` + role + `"`} {
			p.exec("alter role " + role + " rename to " + name)
			result := p.examine("privileges", nil)
			if len(result.Findings) != 1 || result.Findings[0].Cure != "as the login that migrates: alter role "+strings.Replace(name, "spectral_other", `"spectral_other"`, 1)+" rename to "+role+";" {
				t.Fatalf("of %s, which is now %s, it says %+v", role, name, result)
			}
			if err := app.CheckOperator(p.ctx, at); role == "spectral_operator" && (err == nil || !strings.Contains(err.Error(), "role spectral_operator is missing, though the database is migrated: if somebody has renamed it")) {
				t.Errorf("an operator is told %v", err)
			}
			p.paste(result.Findings[0].Cure)
			p.mustBeFine("privileges", "with "+role+" by its name")
		}
	}

	p.exec("revoke spectral_owner, spectral_worlds from chief cascade; alter role spectral_publisher login")
	if result := p.examine("logins", nil); len(result.Findings) > 0 {
		t.Errorf("of a group of ours that can log in, logins says %+v", result.Findings)
	}
	p.exec("alter role spectral_publisher nologin")
}
