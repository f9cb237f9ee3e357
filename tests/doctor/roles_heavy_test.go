//go:build heavy

package doctor_test

import (
	"errors"
	"net/url"
	"strings"
	"testing"

	"spectral/internal/app"
)

// Roles belong to all databases of a server: this one is the test's.
func TestRolesAreRepaired(t *testing.T) {
	p := ownServer(t, nil)
	p.mustFind(nil)
	p.exec("create role chief login createrole")
	for damage, finds := range map[string][]string{
		"alter role spectral_worker inherit; alter role spectral_publisher login superuser bypassrls; alter role " +
			"spectral_owner createrole": {"role spectral_worker nologin noinherit is missing",
			"role spectral_worker nologin inherit is unexpected",
			"role spectral_owner nologin inherit is missing", "inherit createrole is unexpected",
			"role spectral_publisher nologin inherit is missing", "superuser bypassrls is unexpected"},
		"revoke spectral_publisher from spectral_worlds; grant spectral_owner to spectral_operator; grant " +
			"spectral_worlds to spectral_worker with admin option": {
			"grant spectral_publisher to spectral_worlds inherit set is missing", "noinherit set admin is unexpected",
			"grant spectral_owner to spectral_operator inherit set is unexpected",
			"grant spectral_worlds to spectral_worker noinherit set is missing",
		},
	} {
		p.exec(damage)
		if problem := p.findings(); len(problem) < len(finds) {
			t.Errorf("%s: doctor says %q; want %q", damage, problem, finds)
		}
		if left := p.repair(); len(left) > 0 {
			t.Errorf("%s: left is %q", damage, left)
		}
		p.mustFind(nil)
	}
	fresh, err := url.Parse(p.url)
	if err != nil {
		t.Fatal(err)
	}
	fresh.Path = "/fresh"
	p.exec("create database fresh")
	for _, role := range app.Roles() {
		p.exec("alter role " + role + ` rename to "Formerly-` + role + `"`)
		err := app.CheckOperator(p.ctx, p.url)
		if says := "role spectral_operator is missing: run `workers migrate repair`"; role == "spectral_operator" &&
			(err == nil || !strings.HasSuffix(err.Error(), says)) {
			t.Errorf("without the role: %v", err)
		}
		if err := app.CheckOperator(p.ctx, fresh.String()); !errors.Is(err, app.ErrNotMigrated) {
			t.Errorf("without role %s, of a database that is not migrated: %v", role, err)
		}
		if left := p.repair(); len(left) > 0 {
			t.Errorf("of %s, which has another name, left is %q", role, left)
		}
		p.mustFind(nil)
	}
}
