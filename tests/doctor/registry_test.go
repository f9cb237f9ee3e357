package doctor_test

import (
	"log/slog"
	"strings"
	"testing"

	"spectral/internal/app"
	"spectral/internal/app/doctor"
	"spectral/internal/core/events"
	"spectral/tests/pgtest"
)

// as is the generation as which a build is run.
func as(g events.Generation) func(*doctor.Config) {
	return func(c *doctor.Config) { c.Generation = g }
}

// migrates is what the cure does that begins with this build's generation.
func (p *patient) migrates(g events.Generation) func() {
	p.Helper()
	m, err := app.NewMigrator(p.ctx, p.admin.Config().ConnString(), slog.New(slog.DiscardHandler))
	if err != nil {
		p.Fatal(err)
	}
	p.Cleanup(func() { _ = m.Close() })
	return func() {
		p.Helper()
		if _, err := m.Up(p.ctx, g); err != nil {
			p.Fatal(err)
		}
	}
}

// Whatever is registered otherwise than the build of that generation has it is found, and registered anew by its cure.
func TestRegisteredOtherwise(t *testing.T) {
	t.Parallel()
	p := admit(t)
	migrateUp := p.migrates(pgtest.Generation)
	const tasks = "agent.task.dispatched"
	deprecated := ""
	for _, c := range pgtest.Contracts(t) {
		if c.Deprecation != nil {
			deprecated = c.Type
		}
	}
	for i, d := range []struct {
		event, set, seen string
		state            doctor.State
	}{
		{cards, "source = 'platform'", "source platform, not worlds", doctor.Critical},
		{cards, "class = 'slow'", "class slow, not default", doctor.Warning},
		{tasks, "class = null", "class default, not agents", doctor.Warning},
		{cards, "content_class = case content_class when 'workspace' then 'operational' else 'workspace' end", "content class ", doctor.Warning},
		{cards, "payload_schema = '{}'", "another payload", doctor.Warning},
		{cards, "payload_rules = payload_rules - 0", "another payload", doctor.Warning},
		{cards, "payload_fault = '$.a'", "another payload", doctor.Warning},
		{cards, "payload_schema = null, payload_rules = null, payload_fault = null", "another payload", doctor.Warning}, // as builds before did
		{cards, "deadline = '2031-01-01', successor = 'other'", "deprecated from 2031-01-01 00:00:00+00 for other, not not deprecated", doctor.Warning},
		{deprecated, "deadline = null, successor = null", "not deprecated, not deprecated from ", doctor.Warning},
		{cards, "consumed_in = '{\"1\": false}'", "counts as handled by nobody, though this build handles it", doctor.Critical},
		{cards, "consumed = false, consumed_in = '{}'", "counts as handled by nobody, though this build handles it", doctor.Critical},
	} {
		const changed = "update core.event_types set "
		where := " where event_type = '" + d.event + "'"
		p.exec(changed + d.set + where)
		result := p.examine("tables", as(pgtest.Generation))
		for _, f := range result.Findings {
			if f.State != d.state || !strings.HasPrefix(f.Seen, d.event+" ") || !strings.Contains(f.Seen, d.seen) || !strings.HasPrefix(f.Cure, "with this build, SPECTRAL_GENERATION=1 workers migrate up") {
				t.Errorf("with %s, it says %+v", d.set, f)
			}
		}
		if len(result.Findings) == 0 {
			t.Errorf("with %s, it says nothing", d.set)
		}
		// before it is known whose it is, that is no damage
		if d.state != doctor.Critical || strings.HasPrefix(d.set, "source") {
			result := p.examine("tables", nil)
			if len(result.Findings) == 0 || result.State != doctor.Fine || result.Findings[0].State != doctor.Note || !strings.Contains(result.Findings[0].Cure, "it was registered by generation 1") {
				t.Errorf("with %s, who does not know the generation is told %+v", d.set, result)
			}
		}
		if i%5 == 1 { // of one in five, for the time that it takes
			// a build that has not started yet will register what it has
			if result := p.examine("tables", as(7)); len(result.Findings) > 0 {
				t.Errorf("with %s, the next build's doctor says %+v", d.set, result.Findings)
			}
			// and what a later one has registered stands
			p.exec("insert into core.deployments (generation) values (5); " + changed + "registered_by = 5" + where)
			if result := p.examine("tables", as(4)); len(result.Findings) > 0 {
				t.Errorf("with %s of generation 5, that of 4 says %+v", d.set, result.Findings)
			}
			p.exec("delete from core.deployments where generation = 5; " + changed + "registered_by = 1" + where)
		}
		migrateUp()
		if result := p.examine("tables", as(pgtest.Generation)); len(result.Findings) > 0 {
			t.Errorf("after the cure of %s it says %+v", d.set, result.Findings)
		}
	}

	// it must have registered what it has when its workers live
	p.exec("update core.event_types set class = 'slow', registered_by = 0 where event_type = '" + cards + "'")
	if result := p.examine("tables", as(pgtest.Generation)); len(result.Findings) > 0 {
		t.Errorf("before the start of its workers it says %+v", result.Findings)
	}
	if result := p.examine("tables", nil); len(result.Findings) != 1 || !strings.HasSuffix(result.Findings[0].Cure, "it was registered by none") {
		t.Errorf("who knows no generation is told %+v", result.Findings)
	}
	if _, err := pgtest.Conn(t, p.admin.Config().ConnString()).Exec(p.ctx, worker(1, cards)); err != nil {
		t.Fatal(err)
	}
	if result := p.examine("tables", as(pgtest.Generation)); result.State != doctor.Warning || !strings.Contains(result.Findings[0].Seen, "class slow, not default") {
		t.Errorf("beside its workers it says %+v", result)
	}
	migrateUp()
	if result := p.examine("tables", as(pgtest.Generation)); len(result.Findings) > 0 {
		t.Errorf("after the cure it says %+v", result.Findings)
	}
}

// What only a generation that is not there could write anew is noted, and its cure lets others.
func TestRegisteredByNobody(t *testing.T) {
	t.Parallel()
	p := admit(t)
	migrateUp := p.migrates(pgtest.Generation)
	p.exec("update core.event_types set registered_by = 999, class = 'slow' where event_type = '" + cards + "'")
	result := p.examine("tables", as(pgtest.Generation))
	if len(result.Findings) != 1 || result.State != doctor.Fine || !strings.HasPrefix(result.Findings[0].Seen, "generation 999, which is not known, has registered "+cards+" version 1") {
		t.Fatalf("it says %+v", result)
	}
	before, statement, _ := strings.Cut(result.Findings[0].Cure, "as spectral_owner: ")
	statement, after, _ := strings.Cut(statement, "; ")
	if before != "if it will not be started, " || after != "then with the build that runs: workers migrate up" {
		t.Errorf("its cure is %s", result.Findings[0].Cure)
	}
	p.paste(statement + ";")
	migrateUp()
	if result := p.examine("tables", as(pgtest.Generation)); len(result.Findings) > 0 {
		t.Errorf("after the cure it says %+v", result.Findings)
	}
}
