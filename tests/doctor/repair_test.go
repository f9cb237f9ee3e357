package doctor_test

import (
	"log/slog"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"spectral/internal/app"
	"spectral/internal/app/doctor"
	"spectral/tests/pgtest"
)

// migrator returns a migrator for a URL.
func (p *fixture) migrator(url string) *app.Migrator {
	p.Helper()
	m, err := app.NewMigrator(p.ctx, url, slog.New(slog.DiscardHandler))
	if err != nil {
		p.Fatal(err)
	}
	p.Cleanup(func() { _ = m.Close() })
	return m
}

// repair does what `workers migrate repair --yes` does. It returns the differences that are left, with what to do.
func (p *fixture) repair() (left []string) {
	p.Helper()
	_, differences, err := p.migrator(p.admin.Config().ConnString()).Repair(p.ctx)
	if err != nil {
		p.Fatal(err)
	}
	for _, l := range differences {
		left = append(left, l.String()+" -> "+l.Do)
	}
	return left
}

// byRepair is in what findings returns of a problem that a repair fixes.
const byRepair = "`workers migrate repair`"

// findings returns the problems that the checks of schema and privileges find, with what to do.
func (p *fixture) findings() (problems []string) {
	p.Helper()
	for _, f := range p.all(doctor.Config{Checks: []string{"schema", "privileges"}}) {
		problems = append(problems, f.Problem+" -> "+f.Fix)
	}
	return problems
}

func (p *fixture) mustFind(want []string) []string {
	p.Helper()
	problem := p.findings()
	for _, w := range want {
		if !slices.ContainsFunc(problem, func(s string) bool { return strings.Contains(s, w) }) {
			p.Errorf("doctor says %q; want %q", problem, w)
		}
	}
	if len(problem) != len(want) {
		p.Errorf("doctor says %q; want %q", problem, want)
	}
	return problem
}

const (
	quiet    = "function core.outbox_barrier(text)"
	notify   = "trigger outbox_notify on core.outbox"
	policy   = "policy scans_workspace on worlds.scans"
	toAll    = " to PUBLIC is unexpected"
	anyQuiet = "function core.outbox_barrier(p_channel text) returns boolean language sql as 'select true'"
)

// repairs are rounds of damages, with what doctor says about each.
var repairs = [][]struct {
	damage string
	finds  []string
}{{
	{"create or replace " + anyQuiet, []string{quiet + " is altered"}},
	{"drop trigger outbox_notify on core.outbox", []string{notify + " is missing"}},
	{"drop policy scans_workspace on worlds.scans", []string{policy + " is missing"}},
	{"drop view core.live_workers", []string{"view core.live_workers is missing"}},
	{"drop function core.uuid_v7() cascade", []string{"column core.operator_actions.id is altered",
		"column core.operations.id is altered",
		"column core.outbox.id is altered: it is uuid not null, and", "function core.uuid_v7() is missing"}},
	{"alter default privileges for role spectral_owner grant execute on functions to public; alter default privileges " +
		"for role postgres in schema core grant select on tables to spectral_worker with grant option",
		[]string{
			"default of postgres in schema core: grant select on tables to spectral_worker with grant option is unexpected",
			"default of spectral_owner: grant execute on functions to PUBLIC"}},
	{"comment on table core.outbox is null; comment on column core.paused_types.event_type is 'x'", nil}, // no damage
}, {
	{"drop function core.outbox_barrier(text)", []string{quiet + " is missing"}},
	{"create function core.outbox_barrier(integer) returns boolean language sql as 'select true'",
		[]string{"function core.outbox_barrier(integer) is unexpected"}},
	{`create function core."Mine"(one integer, inout two text) language sql as 'select two'`,
		[]string{`function core."Mine"(integer, text) is unexpected`}},
	{"alter table core.outbox disable trigger outbox_notify", []string{notify + " is altered"}},
	{"alter policy scans_workspace on worlds.scans to public using (true)", []string{policy + " is altered"}},
	{"grant create on database %database to spectral_worker; grant update on spectral_goose.goose_db_version to " +
		"spectral_worker; revoke select on spectral_goose.goose_db_version from spectral_worker",
		[]string{"grant select on table spectral_goose.goose_db_version to spectral_worker is missing",
			"grant create on the database to spectral_worker is unexpected",
			"grant update on table spectral_goose.goose_db_version"}},
}, {
	{"drop function core.outbox_barrier(text); create function core.outbox_barrier(channel text) returns integer " +
		"language sql as 'select 1'", []string{quiet + " is altered",
		"grant execute on " + quiet + " to spectral_worker is missing", "owner postgres of " + quiet + " is unexpected",
		toAll}},
	{"drop trigger outbox_notify on core.outbox; create trigger outbox_notify after insert on core.outbox for each " +
		"row execute function core.outbox_notify()", []string{notify + " is altered"}},
	{"create policy mine on worlds.scans using (true)", []string{"policy mine on worlds.scans is unexpected"}},
	{"alter default privileges for role spectral_owner revoke execute on functions from spectral_owner",
		[]string{"default of spectral_owner: revoke execute on functions from its owner is unexpected"}},
	{"alter table core.outbox owner to postgres; alter view core.live_workers owner to postgres; alter schema core " +
		"owner to postgres", []string{"schema core owner spectral_owner is missing",
		"owner postgres of table core.outbox is unexpected", "owner postgres of view core.live_workers",
		"schema core owner postgres is unexpected"}},
}, {
	{"alter function core.outbox_barrier(text) set work_mem = '65kB'", []string{quiet + " is altered"}},
	{`create function core.a() returns trigger language plpgsql as 'begin return null; end'; create trigger "Mine's" ` +
		`before insert on core.outbox for each row execute function core.a()`,
		[]string{`trigger "Mine's" on core.outbox is unexpected`, "function core.a() is unexpected"}},
	{"alter table worlds.scans disable row level security", []string{
		"table worlds.scans is altered: it is table, and should be table row security"}},
	{"alter table core.paused_types enable row level security, force row level security",
		[]string{"table core.paused_types is altered"}},
	{"revoke select on core.outbox from spectral_operator; revoke update (findings) on worlds.scans from " +
		"spectral_worlds; revoke usage on schema worlds from spectral_worlds; revoke execute on " + quiet +
		" from spectral_worker", []string{"grant execute on " + quiet,
		"grant select on table core.outbox to spectral_operator is missing",
		"grant update (findings) on table worlds.scans to spectral_worlds is missing", "grant usage on schema worlds"}},
	{"grant update on core.outbox to spectral_worker; grant select (payload) on core.outbox to spectral_worlds; grant " +
		"create on schema core to spectral_worker; grant select on core.live_workers to public",
		[]string{"grant create on schema core to spectral_worker is unexpected",
			"grant select (payload) on table core.outbox to spectral_worlds is unexpected",
			"grant select on view core.live_workers to PUBLIC", "grant update on table core.outbox"}},
}, {
	{"grant execute on " + quiet + " to spectral_worker with grant option; set role spectral_worker; grant execute on " +
		quiet + " to spectral_worlds; reset role", []string{"to spectral_worker is missing",
		"to spectral_worker with grant option is unexpected", "to spectral_worlds is unexpected"}},
	{"revoke update, insert on core.outbox from spectral_owner; revoke all on schema worlds from spectral_owner; " +
		"revoke execute on function core.outbox_check from spectral_owner",
		[]string{"revoked create, usage on schema worlds from its owner spectral_owner is unexpected",
			"revoked execute on function core.outbox_check(", "revoked insert, update on table core.outbox"}},
}}

// A repair removes all differences of a round. The rounds use one database: if it were not whole again, the next round
// would find more than its own damages.
func TestRepair(t *testing.T) {
	t.Parallel()
	p := setup(t)
	for _, round := range repairs {
		var finds []string
		for _, r := range round {
			p.exec(strings.ReplaceAll(r.damage, "%database", p.name))
			finds = append(finds, r.finds...)
		}
		for _, problem := range p.mustFind(finds) {
			if !strings.Contains(problem, byRepair) {
				t.Errorf("it is repaired, but doctor says %s", problem)
			}
		}
		if left := p.repair(); len(left) > 0 || t.Failed() {
			t.Fatalf("of %v left is %q", round, left)
		}
	}
	p.mustFind(nil)
}

// Repair leaves what holds rows or takes long, and says what to do about it. It repairs the rest.
func TestWhatRepairLeaves(t *testing.T) {
	t.Parallel()
	p := setup(t)
	finds, wantLeft := []string{"trigger retention_policies_keep"}, []string{}
	p.exec("drop trigger retention_policies_keep on core.retention_policies")
	for _, d := range []struct {
		sql         string
		finds, left []string
	}{
		{`alter table core.publisher_sources alter column source type text collate "C"`,
			[]string{`it is text collate "C" not null, and should be text not null`},
			[]string{"core.publisher_sources.source"}},
		{"create index own on core.outbox (payload)", []string{"index own on core.outbox is unexpected"},
			[]string{"index own on core.outbox is unexpected -> if it is ours under another name"}},
		{"drop table core.claim_journal cascade", []string{"table core.claim_journal is missing"},
			[]string{"core.claim_journal is missing -> what it held is gone: restore the database from a backup"}},
		{"alter table core.paused_types rename to kept",
			[]string{"table core.paused_types is missing", "table core.kept is unexpected"},
			[]string{"if it is ours under another name", "core.paused_types is missing -> what it held is gone"}},
		{"alter table core.outbox drop column crashes cascade",
			[]string{"column core.outbox.crashes is missing", "index outbox_crashed on core.outbox is missing"},
			[]string{"core.outbox.crashes is missing -> what it held is gone: restore",
				"outbox_crashed on core.outbox is missing -> "}},
		{"alter table core.outbox drop constraint outbox_status_known, drop constraint outbox_pk, add constraint mine " +
			"unique (id, occurred_at)", []string{"constraint outbox_status_known on core.outbox is missing",
			"constraint outbox_pk on core.outbox is missing", "constraint mine on"},
			[]string{"move it to", "as spectral_owner, give it the form", "as spectral_owner, give it the form"}},
		{"create function core.f() returns integer language sql as 'select 1'; create table public.other (i integer " +
			"default core.f())", []string{"function core.f() is unexpected"},
			[]string{"refused: ERROR: cannot drop function core.f()"}},
	} {
		p.exec(d.sql)
		finds, wantLeft = append(finds, d.finds...), append(wantLeft, d.left...)
	}
	p.mustFind(finds)
	left := p.repair()
	for _, problem := range p.findings() {
		if strings.Contains(problem, byRepair) && !strings.Contains(problem, "core.f()") { // whose drop was refused
			t.Errorf("it is left, but doctor says %s", problem)
		}
	}
	for _, want := range wantLeft {
		i := slices.IndexFunc(left, func(l string) bool { return strings.Contains(l, want) })
		if i < 0 {
			t.Fatalf("left is %q; want %q", left, want)
		}
		left = slices.Delete(left, i, i+1)
	}
	if len(left) > 0 {
		t.Errorf("left is %q as well", left)
	}
}

// A repair waits for locks in short turns, so that writers do not queue behind it for long. A login that may not repair
// is refused.
func TestRepairBesideALock(t *testing.T) {
	t.Parallel()
	p := setup(t)
	p.exec("drop trigger outbox_notify on core.outbox")
	const refused = "may not act as spectral_owner: repair as the login that migrates"
	if _, _, err := p.migrator(p.url).Repair(p.ctx); err == nil || !strings.Contains(err.Error(), refused) {
		t.Errorf("an operator's repair: %v", err)
	}
	holder := pgtest.Conn(t, p.admin.Config().ConnString())
	tx, err := holder.BeginTx(p.ctx, pgx.TxOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(p.ctx, "lock table core.outbox in share row exclusive mode"); err != nil {
		t.Fatal(err)
	}
	over := make(chan []string)
	go func() { over <- p.repair() }()
	p.until("exists (select from pg_locks where relation = 'core.outbox'::regclass and not granted and database = " +
		"(select oid from pg_database where datname = current_database()))")
	if err := tx.Rollback(p.ctx); err != nil {
		t.Fatal(err)
	}
	if left := <-over; len(left) > 0 {
		t.Errorf("left is %q", left)
	}
	p.mustFind(nil)
}
