package doctor_test

import (
	"strings"
	"testing"

	"spectral/internal/app/doctor"
	"spectral/internal/core/events"
	"spectral/tests/pgtest"
)

// migrateUp migrates, which registers the event types of this build.
func (p *fixture) migrateUp() {
	p.Helper()
	if _, err := p.migrator(p.admin.Config().ConnString()).Up(p.ctx, pgtest.Generation); err != nil {
		p.Fatal(err)
	}
}

// finds checks the event types as the build of a generation, 0 for an unknown one. It wants one finding that has all
// parts, or no finding if there are no parts.
func (p *fixture) finds(g events.Generation, state doctor.State, parts ...string) doctor.Finding {
	p.Helper()
	findings := p.examine("tables", doctor.Config{Generation: g}).Findings
	if len(findings) != min(len(parts), 1) {
		p.Fatalf("generation %d: it says %+v; want %q", g, findings, parts)
	}
	if len(parts) == 0 {
		return doctor.Finding{}
	}
	f := findings[0]
	for _, part := range parts {
		if f.State != state || !strings.Contains(f.Problem+"; fix: "+f.Fix, part) {
			p.Errorf("generation %d: it says %+v; want %s: %s", g, f, state, part)
		}
	}
	return f
}

// A difference from the build of the generation that registered a type is found, and the fix registers it again.
func TestDifferentlyRegisteredEventTypesAreFound(t *testing.T) {
	t.Parallel()
	p := setup(t)
	const fix = "fix: `SPECTRAL_GENERATION=1 workers migrate up`, with this build"
	p.exec("update core.event_types set source = 'platform', class = 'slow', payload_schema = '{}', deadline = " +
		"'2031-01-01', successor = 'other', content_class = case content_class when 'workspace' then 'operational' else " +
		"'workspace' end where event_type = '" + cards + "'")
	p.finds(pgtest.Generation, doctor.Critical, "source platform, not worlds", "class slow, not default",
		"content class ", "another payload", "deprecated from 2031-01-01 00:00:00+00 for other", cards+" ", fix)
	p.migrateUp()
	p.finds(pgtest.Generation, doctor.Fine)

	slow := "update core.event_types set class = 'slow', registered_by = %by where event_type = '" + cards + "'"
	by := func(g string) { p.exec(strings.ReplaceAll(slow, "%by", g)) }
	// a doctor that is not told its generation does not know whether that is damage
	by("1")
	p.finds(0, doctor.Note, "class slow, not default", "it was registered by generation 1")
	// a later build will register its own as it starts, and what a later one has registered stands
	p.finds(7, doctor.Fine)
	p.exec("insert into core.deployments (generation) values (5)")
	by("5")
	p.finds(4, doctor.Fine)
	// no build has registered it, until a worker of this generation lives
	by("0")
	p.finds(pgtest.Generation, doctor.Fine)
	p.finds(0, doctor.Note, "it was registered by no generation")
	living := pgtest.Conn(t, p.admin.Config().ConnString())
	if _, err := living.Exec(p.ctx, workers("1")); err != nil {
		t.Fatal(err)
	}
	p.finds(pgtest.Generation, doctor.Warning, "class slow, not default", fix)
	// a generation that does not exist cannot register it again
	by("999")
	f := p.finds(pgtest.Generation, doctor.Note, cards+" version 1: registered by generation 999, which does not exist",
		"if generation 999 will not be started: as spectral_owner, run `", ", then `workers migrate up` with the build")
	p.paste(f.Fix)
	p.migrateUp()
	p.finds(pgtest.Generation, doctor.Fine)
}
