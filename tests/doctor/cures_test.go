package doctor_test

import (
	"os/exec"
	"regexp"
	"strings"
	"testing"

	"spectral/internal/app"
	"spectral/internal/app/doctor"
)

// pasted is what of a cure is pasted: all that comes after who does it; none: it says in words what to look at.
var pasted = regexp.MustCompile(`(?s)(?:^|[;,] )as [^:;]*: (.*)$`)

// command is the one command of a cure.
var command = regexp.MustCompile(`^workers migrate show (?:'[^']+' )+\| psql --set=ON_ERROR_STOP=1 "\$DATABASE_URL"$`)

// mustFail wants psql to say something of what is printed for a subject, and nothing to be changed.
func (p *patient) mustFail(subject, want string, options ...string) {
	p.Helper()
	before := p.schema()
	text, err := app.SchemaStatements(subject)
	if err != nil {
		p.Fatal(err)
	}
	cmd := exec.CommandContext(p.ctx, "psql", append(options, "--no-psqlrc", "--quiet", "--dbname="+p.admin.Config().ConnString())...)
	cmd.Stdin = strings.NewReader(text)
	if out, _ := cmd.CombinedOutput(); !strings.Contains(string(out), want) {
		p.Errorf("what is printed for %s says %s; want %s", subject, out, want)
	}
	if after := p.schema(); after != before {
		p.Errorf("what was refused for %s has changed the schema", subject)
	}
}

func (p *patient) schema() string {
	p.Helper()
	objects, err := app.ReadSchema(p.ctx, p.admin)
	if err != nil {
		p.Fatal(err)
	}
	return app.WriteSchema(objects)
}

// pasteFromTheTop pastes every cure of a check in the order in which they are printed, and looks again, until nothing is found. No cure may fail.
func (p *patient) pasteFromTheTop(check string) {
	p.Helper()
	for range 3 {
		found := p.examine(check, nil).Findings
		if len(found) == 0 {
			return
		}
		for _, f := range found {
			text := pasted.FindStringSubmatch(f.Cure)
			switch {
			case text == nil:
				continue
			case strings.HasPrefix(text[1], "workers ") && !command.MatchString(text[1]), !strings.HasPrefix(text[1], "workers ") && !strings.HasSuffix(text[1], ";"):
				p.Errorf("nobody can paste the whole of %s", text[1])
			}
			p.paste("as somebody: " + text[1])
		}
	}
	p.mustBeFine(check, "after all cures")
}

// ills are damages with what the check of the schema says of them, from the top, and no more.
var ills = map[string]struct {
	damage string
	says   []string // parts of what is seen, and of the cure after an arrow
}{
	"another key": {
		"alter table core.outbox drop constraint outbox_pk, add constraint outbox_key primary key (occurred_at, id)",
		[]string{"constraint outbox_pk of core.outbox is missing -> migrate show", "constraint outbox_key of core.outbox is not of our migrations -> in whose place it may stand"},
	},
	"another name": {
		`alter table core.event_handled rename constraint event_handled_pk to event_handled_key; alter index core.outbox_due rename to due; alter trigger outbox_notify on core.outbox rename to x;
			alter function core.outbox_quiet(text) rename to quiet; alter policy scans_workspace on worlds.scans rename to p; alter table core.outbox drop constraint outbox_sizes`,
		[]string{
			"function core.outbox_quiet(text) is missing, and seems to be there as function core.quiet(text) -> see whether it is; as the owner: set lock_timeout = '5s'; alter function core.quiet(text) rename to outbox_quiet;",
			"constraint event_handled_pk of core.event_handled is missing, and seems to be there as constraint event_handled_key of core.event_handled -> as the owner: set lock_timeout = '5s'; alter table core.event_handled rename constraint event_handled_key to event_handled_pk;",
			"index core.outbox_due is missing, and seems to be there as index core.due -> as the owner: set lock_timeout = '5s'; alter index core.due rename to outbox_due;",
			"seems to be there as trigger x of core.outbox -> as the owner: set lock_timeout = '5s'; alter trigger x on core.outbox rename to outbox_notify;",
			"seems to be there as policy p of worlds.scans -> as the owner: set lock_timeout = '5s'; alter policy p on worlds.scans rename to scans_workspace;",
			"constraint outbox_sizes of core.outbox is missing -> migrate show",
		},
	},
	"the trigger has another name and is disabled": {
		"alter trigger outbox_notify on core.outbox rename to x; alter table core.outbox disable trigger x",
		[]string{"trigger outbox_notify of core.outbox is missing -> migrate show", "trigger x of core.outbox is not of our migrations -> in whose place it may stand"},
	},
	"two may be it": {
		"create index one on core.outbox (generation, event_type, available_at) where status = 'pending' and deleted_at is null; create index two on core.outbox (generation, event_type, available_at) where status = 'pending' and deleted_at is null; drop index core.outbox_due",
		[]string{"seems to be there as index core.one or index core.two -> see which it is"},
	},
	"a column has another name": {
		"alter table core.outbox rename column crashes to falls; drop trigger outbox_notify on core.outbox",
		[]string{"column core.outbox.crashes is missing, and seems to be there as column core.outbox.falls; what differs besides is said when it is back -> see whether it is; as the owner: set lock_timeout = '5s'; alter table core.outbox rename column falls to crashes;"},
	},
	"a table has another name": {
		"alter table core.outbox rename to outboxes",
		[]string{"table core.outbox is missing, and seems to be there as table core.outboxes; what differs besides -> as the owner: set lock_timeout = '5s'; alter table core.outboxes rename to outbox;"},
	},
	"a table is elsewhere": {
		`alter table core.event_handled rename to "Handled"; alter table core."Handled" set schema public`,
		[]string{`seems to be there as table public."Handled" -> as a superuser: set lock_timeout = '5s'; alter table public."Handled" rename to event_handled; alter table public.event_handled set schema core;`},
	},
	"a copy is no table of ours": {
		"create table core.kept (like core.leads including all); drop table core.leads",
		[]string{"table core.leads is missing, with -> or, empty, as the owner: workers migrate show 'table core.leads'"},
	},
	"a schema has another name": {
		"alter schema worlds rename to planets",
		[]string{"schema worlds is missing, and seems to be there as schema planets; what differs besides -> as the login that migrates: set lock_timeout = '5s'; alter schema planets rename to worlds;"},
	},
	"a view for a table": {
		"alter table core.leads rename to kept; create view core.leads as select * from core.kept; alter view core.leads owner to spectral_owner",
		[]string{"table core.leads is altered: it is a view, and should be a table -> see what it is; it has to have another name"},
	},
	"the function of the trigger has another name": {
		"alter function core.outbox_notify() rename to f",
		[]string{"function core.outbox_notify() is missing, and seems to be there as function core.f() -> as the owner: set lock_timeout = '5s'; alter function core.f() rename to outbox_notify;", "trigger outbox_notify of core.outbox is altered"},
	},
	"an identity of somebody's": {
		"create unique index mine on core.leads (duty); alter table core.leads replica identity using index mine; create publication p for table core.leads",
		[]string{"index core.mine is not of our migrations -> a publication names rows by it"},
	},
	"a view is gone": {
		"drop view core.live_workers",
		[]string{"table core.live_workers is missing, with -> as the owner: workers migrate show 'table core.live_workers'"},
	},
	"objects of others": {
		"alter table core.leads owner to postgres; alter function core.outbox_quiet(text) owner to postgres; alter function core.outbox_quiet(text) set work_mem = '65kB'; comment on column core.leads.duty is 'x'",
		[]string{"the owner of table core.leads is postgres -> as a superuser: set lock_timeout = '5s'; alter table core.leads owner to spectral_owner;", "the owner of function core.outbox_quiet(text) is postgres -> as a superuser: set lock_timeout = '5s'; alter routine core.outbox_quiet(text) owner to spectral_owner;",
			"column core.leads.duty is altered", "function core.outbox_quiet(text) is altered"},
	},
	"a trigger of somebody's, with its function": {
		"create function core.a() returns trigger language plpgsql as 'begin return null; end'; create trigger z after insert on core.leads execute function core.a()",
		[]string{"trigger z of core.leads is not of our migrations -> drop trigger z on core.leads;", "function core.a() is not of our migrations -> as the owner: drop function core.a();"},
	},
	"functions that others cannot become": {
		`drop function core.outbox_quiet(text), core.lead(text), core.lease_expires_in(), core.uuid_v7_floor(timestamptz); set role spectral_owner;
			create function core.outbox_quiet(channel text) returns boolean language sql as 'select true';
			create function core.lead(p_channel text) returns integer language sql as 'select 1';
			create procedure core.lease_expires_in() language sql as 'select 1';
			create aggregate core.uuid_v7_floor(timestamptz) (sfunc = timestamptz_larger, stype = timestamptz)`,
		[]string{"function core.uuid_v7_floor(timestamp with time zone) is missing", "function core.lead(text) is altered", "function core.lease_expires_in() is altered", "function core.outbox_quiet(text) is altered"},
	},
	"indexes": {
		`drop index platform.memories_statement_once; create index memories_statement_once on platform.memories (statement);
			update pg_catalog.pg_index set indisvalid = false where indexrelid = 'core.outbox_crashed'::regclass`,
		[]string{"index core.outbox_crashed is altered: it is invalid -> as the owner: reindex index concurrently core.outbox_crashed;", "index platform.memories_statement_once is altered: rows may come in twice -> migrate show"},
	},
	"a column that counts itself": {
		"alter table core.outbox alter column attempts drop default, alter column attempts add generated always as identity",
		[]string{"column core.outbox.attempts is altered: it is integer not null generated always as identity, and should be integer not null default 0 -> migrate show"},
	},
	"columns": {
		`alter table core.outbox alter column status set statistics 0, alter column generation set (n_distinct = 5), alter column attempts drop not null, alter column crashes drop default; alter table core.outbox set (fillfactor = 51)`,
		[]string{
			"column core.outbox.attempts is altered: it is integer default 0, and should be integer not null default 0 -> migrate show", "column core.outbox.crashes is altered: it is integer not null, and",
			"table core.outbox is altered", "column core.outbox.generation is altered: it is bigint not null planned by n_distinct=5, and should be bigint not null: plans are made",
			"column core.outbox.status is altered: it is text not null default 'pending'::text planned by statistics=0",
		},
	},
}

// many are ills that come with many others.
var many = map[string]bool{"a copy is no table of ours": true, "a view for a table": true}

// What is found says what it is, and its cures work when they are pasted from the top.
func TestCuresWorkFromTheTop(t *testing.T) {
	t.Parallel()
	for name, ill := range ills {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := admit(t)
			p.exec(ill.damage)
			found := p.examine("schema", nil).Findings
			for i, f := range found {
				if i >= len(ill.says) {
					if !many[name] {
						t.Errorf("besides, it says %+v", f)
					}
					continue
				}
				seen, cure, _ := strings.Cut(ill.says[i], " -> ")
				if !strings.Contains(f.Seen, seen) || !strings.Contains(f.Cure, cure) {
					t.Errorf("it says %+v; want %s", f, ill.says[i])
				}
			}
			if len(found) < len(ill.says) {
				t.Fatalf("it says %+v", found)
			}
			switch name {
			case "two may be it":
				p.exec("alter index core.one rename to outbox_due")
			case "an identity of somebody's":
				p.exec("alter table core.leads replica identity default; drop index core.mine")
			case "a view for a table":
				p.exec("drop view core.leads")
			case "a copy is no table of ours": // it has no statement: it may hold rows
				p.exec("drop table core.kept")
			}
			p.pasteFromTheTop("schema")
		})
	}
}

// From PostgreSQL 18 on NOT NULL may be unchecked, as other constraints may.
func TestNotNullThatIsNotChecked(t *testing.T) {
	t.Parallel()
	p := admit(t)
	var version int
	if err := p.admin.QueryRow(p.ctx, "select current_setting('server_version_num')::integer").Scan(&version); err != nil {
		t.Fatal(err)
	}
	p.exec("alter table core.outbox alter column attempts drop not null; " + insert(cards, "1", "outbox_gen_1", "1 minute") + "; update core.outbox set attempts = null")
	_, err := p.admin.Exec(p.ctx, "alter table core.outbox add constraint given not null attempts not valid")
	if version < 180000 {
		if err == nil {
			t.Error("it may be before, too")
		}
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	if found := p.examine("schema", nil).Findings; len(found) != 1 || !strings.Contains(found[0].Seen, "column core.outbox.attempts is altered: it is integer not null not valid default 0, and") {
		t.Errorf("it says %+v", found)
	}
	if found := p.examine("tables", nil).Findings; len(found) != 1 || !strings.Contains(found[0].Seen, "is in the way of constraint given of core.outbox") {
		t.Errorf("it says %+v", found)
	}
	p.mustFail("column core.outbox.attempts", "attempts is null limit 20;")
	p.exec("update core.outbox set attempts = 0")
	p.pasteFromTheTop("schema")
	p.mustBeFine("tables", "after the cure")
}

// What may be done with a table that has another name says nothing of who should.
func TestPrivilegesOfWhatWasRenamedStay(t *testing.T) {
	t.Parallel()
	p := admit(t)
	p.exec("alter table core.outbox rename to box")
	found := p.examine("privileges", nil).Findings
	if len(found) != 1 || found[0].State != doctor.Unknown || !strings.Contains(found[0].Seen, "table core.outbox is missing, and seems to be there as table core.box") {
		t.Errorf("it says %+v", found)
	}
}

// A type or a collation is not altered back by pasting: that rewrites the table while nobody can write.
func TestATypeIsAlteredBackByHand(t *testing.T) {
	t.Parallel()
	p := admit(t)
	p.exec(`alter table core.leads alter column duty type text collate "C"`)
	found := p.examine("schema", nil).Findings
	if len(found) == 0 || !strings.Contains(found[0].Seen, `it is text collate "C" not null, and should be text not null`) || pasted.MatchString(found[0].Cure) {
		t.Errorf("it says %+v", found)
	}
	text, err := app.SchemaStatements("column core.leads.duty")
	if want := "alter table core.leads alter column duty type text;"; err != nil || !strings.Contains(text, want) {
		t.Errorf("what is printed says %s, %v; want %s", text, err, want)
	}
}

// Rows that a constraint or an index does not bear are found before anything is changed, and those that cannot be written are named.
func TestRowsInTheWayAreNamed(t *testing.T) {
	t.Parallel()
	p := admit(t)
	p.exec("alter table core.outbox drop constraint outbox_attempts_range, alter column lease_seconds drop not null; " + insert(cards, "1", "outbox_gen_1", "1 minute") + "; update core.outbox set attempts = -5, lease_seconds = null")
	// psql goes on after an error
	p.mustFail("constraint outbox_attempts_range of core.outbox", "select ctid, * from core.outbox where not ")
	p.mustFail("column core.outbox.lease_seconds", "select ctid, * from core.outbox where lease_seconds is null limit 20;")
	p.mustBeFine("tables", "without the constraint")
	p.exec("alter table core.outbox add constraint outbox_attempts_range check (attempts >= 0) not valid")
	found := p.examine("tables", nil).Findings
	if len(found) != 1 || found[0].State != doctor.Critical || !strings.Contains(found[0].Seen, "is in the way of constraint outbox_attempts_range of core.outbox") || !strings.Contains(found[0].Cure, "attempts >= 0") {
		t.Errorf("it says %+v", found)
	}
	// rows that come in between the look and the check
	text, err := app.SchemaStatements("constraint outbox_attempts_range of core.outbox")
	if err != nil {
		t.Fatal(err)
	}
	p.paste(regexp.MustCompile(`(?s)do \$cure\$ begin\n  if exists .*?end \$cure\$;\n`).ReplaceAllString(text, ""))
	if strings.Contains(p.schema(), "outbox_attempts_range") {
		t.Error("a constraint stays that rows are in the way of")
	}
	p.exec("update core.outbox set attempts = 0, lease_seconds = 300")
	p.mustBeFine("tables", "with the row corrected")
	p.pasteFromTheTop("schema")
	p.exec("alter table core.outbox drop constraint outbox_pk; insert into core.outbox select * from core.outbox")
	p.mustFail("constraint outbox_pk of core.outbox", "core.outbox_pk_anew could not be built")
}

// The name of an index may be that of something else, which stays as it is.
func TestWhatIsSomebodysStays(t *testing.T) {
	t.Parallel()
	p := admit(t)
	p.exec("drop index core.outbox_crashed; create view core.outbox_crashed as select 1; alter table core.leads drop constraint leads_pk; create view core.leads_pk as select 1")
	p.mustFail("index core.outbox_crashed", "core.outbox_crashed is no index of core.outbox", "--set=ON_ERROR_STOP=1")
	p.mustFail("constraint leads_pk of core.leads", "core.leads_pk is no index of core.leads", "--set=ON_ERROR_STOP=1")
}

// A published table keeps its identity when the index that it has it by is replaced.
func TestAPublishedTableKeepsItsIdentity(t *testing.T) {
	t.Parallel()
	p := admit(t)
	p.exec(`create publication p for table core.outbox, platform.memories; alter table core.outbox replica identity using index outbox_pk;
		alter index core.outbox_pk set (fillfactor = 51)`)
	p.mustBeFine("tables", "with an identity")
	p.pasteFromTheTop("schema")
	p.mustBeFine("tables", "after the cure of its key")
	p.exec("alter table core.outbox drop constraint outbox_pk, add constraint other primary key (occurred_at, id)")
	p.pasteFromTheTop("schema")
	p.mustBeFine("tables", "after the cure of a key that was gone")
}
