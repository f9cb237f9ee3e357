package doctor

import (
	"context"
	"fmt"
	"io/fs"
	"regexp"
	"slices"
	"strings"

	"spectral/db"
	"spectral/internal/app"
)

// migrations says which build's schema this is. Before an older one no pass begins.
func migrations(ctx context.Context, v *visit) (string, []Finding, error) {
	applied, latest, err := migrated(ctx, v)
	if err != nil {
		return "", nil, err
	}
	if applied > latest {
		return fmt.Sprintf("at %d; this build, at %d, is older and works on it", applied, latest), nil, nil
	}
	return fmt.Sprintf("at %d, as this build is", applied), nil, nil
}

func migrated(ctx context.Context, v *visit) (applied, latest int64, err error) {
	if latest, err = app.LatestMigration(); err != nil {
		return 0, 0, err
	}
	err = v.conn.QueryRow(ctx, "select coalesce(max(version_id) filter (where is_applied), 0) from public.goose_db_version").Scan(&applied)
	return applied, latest, err
}

// newer is what a check says that knows the schema of this build alone, on a database that is migrated further; else empty.
func newer(ctx context.Context, v *visit) (string, error) {
	applied, latest, err := migrated(ctx, v)
	if err != nil || applied <= latest {
		return "", err
	}
	return "not compared: the database is newer than this build; ask the newer build's doctor", nil
}

// maxListed is how many of many alike are named.
const maxListed = 20

// schema compares what there is with what this build's migrations make.
func schema(ctx context.Context, v *visit) (string, []Finding, error) {
	if seen, err := newer(ctx, v); seen != "" || err != nil {
		return seen, nil, err
	}
	d, err := app.CompareSchema(ctx, v.conn)
	if err != nil {
		return "", nil, err
	}
	var findings []Finding
	for how, subjects := range map[string][]string{"missing": d.Missing, "altered": d.Altered} {
		for _, subject := range subjects {
			findings = append(findings, damage(subject, how))
		}
	}
	slices.SortFunc(findings, func(a, b Finding) int {
		if a.State != b.State {
			return rank(b.State) - rank(a.State)
		}
		return strings.Compare(a.Seen, b.Seen)
	})
	if more := len(findings) - maxListed; more > 0 {
		findings = append(findings[:maxListed], Finding{Critical, fmt.Sprintf("and %d more", more), "compare with db/migrations, or restore into a new database"})
	}
	for _, subject := range d.Unexpected[:min(len(d.Unexpected), maxListed)] {
		findings = append(findings, Finding{Warning, subject + " is not of our migrations", "keep what is yours in a schema of your own, and drop it here: it may slow down or refuse what events need"})
	}
	return "as this build's migrations make it", findings, nil
}

const trigger = "trigger outbox_notify of core.outbox"

// damage says what an object that is missing or altered means.
func damage(subject, how string) Finding {
	f := Finding{Critical, subject + " is " + how, "run its statement again, which is in this build's source: " + definedIn(subject)}
	switch {
	case subject == trigger && how == "missing":
		f.Seen += ": nobody is woken by an insert, and every event waits for the poll"
		f.Cure = "create constraint trigger outbox_notify after insert on core.outbox deferrable initially deferred for each row when (new.status = 'pending') execute function core.outbox_notify();"
	case subject == trigger:
		f.Seen += " or disabled: inserts may wake nobody, and events wait for the poll"
		f.Cure = "alter table core.outbox enable trigger outbox_notify; if that changes nothing, drop it and create it as in " + definedIn(subject)
	case strings.HasPrefix(subject, "index "):
		name := strings.TrimPrefix(subject, "index ")
		f.Seen += ": claims and looks may read the whole table"
		f.Cure = "create it again: " + statementOf(subject)
		if how == "altered" {
			f.Cure = "reindex index concurrently " + name + "; if it is not invalid but another one, drop it and create it as in " + definedIn(subject)
		}
	case strings.HasPrefix(subject, "table ") && how == "altered":
		f.State = Warning
		f.Seen += " in its options, row security or comment"
	}
	return f
}

var subjectForm = regexp.MustCompile(`^(constraint|trigger|policy|index|function|table|column) ([a-z0-9_.]+?)(\(.*\))?( of ([a-z0-9_.]+))?$`)

// definedIn names the last migration that defines an object.
func definedIn(subject string) string {
	file, _ := definition(subject)
	return file
}

// statementOf is the statement that defines an object, on one line.
func statementOf(subject string) string {
	file, statement := definition(subject)
	if statement == "" {
		return file
	}
	return statement
}

// definition finds the last migration that defines an object, and its statement there as far as it has no semicolon within.
func definition(subject string) (file, statement string) {
	const somewhere = "db/migrations"
	words := subjectForm.FindStringSubmatch(subject)
	if words == nil {
		return somewhere, ""
	}
	kind, name, table := words[1], words[2], words[5]
	var form string
	switch kind {
	case "function":
		form = `create (or replace )?function ` + regexp.QuoteMeta(name) + `\(`
	case "table":
		form = `(create|alter) table ` + regexp.QuoteMeta(name) + `\b`
	case "index":
		form = `create (unique )?index (concurrently )?` + regexp.QuoteMeta(name[strings.LastIndex(name, ".")+1:]) + `\b`
	case "column":
		dot := strings.LastIndex(name, ".")
		form = `(create table ` + regexp.QuoteMeta(name[:dot]) + ` \((?s:[^;]*?)\n  |alter table ` + regexp.QuoteMeta(name[:dot]) + `\s(?s:[^;]*?)add column )` + regexp.QuoteMeta(name[dot+1:]) + ` `
	case "constraint":
		form = `(create|alter) table ` + regexp.QuoteMeta(table) + `\b(?s:[^;]*?)constraint ` + regexp.QuoteMeta(name) + `\b`
	default:
		form = `create (constraint )?` + kind + ` ` + regexp.QuoteMeta(name) + `\b`
	}
	defines := regexp.MustCompile(form)
	files, err := fs.Glob(db.Migrations, "migrations/*.sql")
	if err != nil {
		return somewhere, ""
	}
	slices.Sort(files)
	for _, file := range slices.Backward(files) {
		text, err := fs.ReadFile(db.Migrations, file)
		if err != nil {
			continue
		}
		up, _, _ := strings.Cut(string(text), "-- +goose Down")
		if at := defines.FindStringIndex(up); at != nil {
			statement, _, _ := strings.Cut(up[at[0]:], ";")
			return "db/" + file, strings.Join(strings.Fields(statement), " ") + ";"
		}
	}
	return somewhere, ""
}

// tables finds what changes what statements on our tables do, or whether rows are kept, beside the schema's own objects; and
// registries without which nothing can be published.
func tables(ctx context.Context, v *visit) (string, []Finding, error) {
	found, err := all[Finding](ctx, v, `
with ours as (select c.oid, c.relname, n.nspname, c.relkind, c.relpersistence, c.relrowsecurity, format('%I.%I', n.nspname, c.relname) as name
  from pg_class c join pg_namespace n on n.oid = c.relnamespace where n.nspname in ('core', 'platform', 'worlds') and c.relkind in ('r', 'p'))
select 'critical', format('rule %s of %s rewrites statements: events may be lost, or never settle', r.rulename, o.name),
  format('drop rule %I on %s; then restart the workers, whose sessions keep plans', r.rulename, o.name)
from pg_rewrite r join ours o on o.oid = r.ev_class
union all
select 'critical', format('%s is unlogged: a crash of the server empties it', o.name), format('alter table %s set logged;', o.name) from ours o where o.relpersistence = 'u'
union all
select 'critical', format('%s has row security, which hides rows from those who have to see them', o.name), format('alter table %s disable row level security;', o.name)
from ours o where o.nspname = 'core' and o.relrowsecurity
union all
select 'critical', format('%s.%s refers to %s by foreign key %s: rows that are past their retention cannot be deleted', f.relnamespace::regnamespace, f.relname, o.name, k.conname),
  format('alter table %s.%I drop constraint %I;', f.relnamespace::regnamespace, f.relname, k.conname)
from pg_constraint k join ours o on o.oid = k.confrelid and o.nspname = 'core' join pg_class f on f.oid = k.conrelid where k.contype = 'f'
union all
select 'warning', format('%s inherits from %s, whose queries read it as well', i.inhrelid::regclass, o.name), format('alter table %s no inherit %s;', i.inhrelid::regclass, o.name)
from pg_inherits i join ours o on o.oid = i.inhparent join pg_class c on c.oid = i.inhrelid where not c.relispartition
union all
select 'critical', 'no event type is registered: all publishing is refused (SP016)', 'workers migrate up, or start a worker: both register what the build has' where not exists (select from core.event_types)
union all
select 'critical', format('no role may publish as %s: its publishing is refused (SP017)', s.source), format('insert into core.publisher_sources (role_name, source) values (%L, %L);', 'spectral_' || s.source, s.source)
from (values ('platform'), ('worlds')) as s(source) where not exists (select from core.publisher_sources p where p.source = s.source)
order by 1, 2`)
	if err != nil {
		return "", nil, err
	}
	return "statements do what they say, and rows are kept", found, nil
}

// logins finds those that may do more than their group does.
func logins(ctx context.Context, v *visit) (string, []Finding, error) {
	if seen, err := newer(ctx, v); seen != "" || err != nil {
		return seen, nil, err
	}
	found, err := all[Finding](ctx, v, `
with groups as (select oid, rolname from pg_roles where starts_with(rolname, 'spectral_') and not rolcanlogin),
members as (select distinct r.oid, r.rolname, r.rolsuper from pg_roles r join groups g on pg_has_role(r.oid, g.oid, 'member') where r.rolcanlogin and not r.rolsuper),
schemas as (select oid, nspname from pg_namespace where nspname in ('core', 'platform', 'worlds')),
acls (what, owner, acl) as (
  select 'schema ' || nspname, n.nspowner, n.nspacl from pg_namespace n join schemas using (nspname)
  union all select format('%s.%I', s.nspname, c.relname), c.relowner, c.relacl from pg_class c join schemas s on s.oid = c.relnamespace
  union all select format('%s.%I (%I)', s.nspname, c.relname, a.attname), c.relowner, a.attacl from pg_attribute a join pg_class c on c.oid = a.attrelid join schemas s on s.oid = c.relnamespace
  union all select 'function ' || p.oid::regprocedure, p.proowner, p.proacl from pg_proc p join schemas s on s.oid = p.pronamespace)
select 'warning', format('role %s has %s on %s by itself, not by its group', r.rolname, string_agg(lower(x.privilege_type), ', ' order by x.privilege_type), a.what),
  format('revoke it, and let it join the group that is meant: db/privileges.txt has what each may do')
from acls a, aclexplode(a.acl) x join pg_roles r on r.oid = x.grantee
where x.grantee <> a.owner and r.oid not in (select oid from groups) group by r.rolname, a.what
union all
select 'warning', format('login %s is a member of spectral_owner, and may rewrite and erase events', m.rolname), format('revoke spectral_owner from %I; (only the login that migrates needs it)', m.rolname)
from members m where pg_has_role(m.oid, 'spectral_owner', 'member') and m.oid <> (select datdba from pg_database where datname = current_database())
union all
select 'warning', format('login %s is a member of pg_write_all_data, and may rewrite and erase events', m.rolname), format('revoke pg_write_all_data from %I;', m.rolname)
from members m where pg_has_role(m.oid, 'pg_write_all_data', 'member')
union all
select 'warning', format('login %s, which is a member of %s, is a superuser: nothing is kept from it', r.rolname, g.rolname), format('alter role %I nosuperuser;', r.rolname)
from pg_roles r join pg_auth_members m on m.member = r.oid join groups g on g.oid = m.roleid where r.rolsuper
order by 1, 2`)
	if err != nil {
		return "", nil, err
	}
	return "each may do what its group may", found[:min(len(found), maxListed)], nil
}

// indexes finds those that Postgres does not use: a build that was cut short leaves one.
func indexes(ctx context.Context, v *visit) (string, []Finding, error) {
	found, err := all[struct {
		Name  string
		Valid bool
	}](ctx, v, `select i.indexrelid::regclass::text, i.indisvalid and i.indisready and i.indislive
		from pg_index i join pg_class c on c.oid = i.indrelid join pg_namespace n on n.oid = c.relnamespace
		where n.nspname in ('core', 'platform', 'worlds') order by 1`)
	if err != nil {
		return "", nil, err
	}
	var findings []Finding
	for _, i := range found {
		if !i.Valid {
			findings = append(findings, Finding{Critical, "index " + i.Name + " is invalid: it is written but not read", "reindex index concurrently " + i.Name + ";"})
		}
	}
	return fmt.Sprintf("%d, all valid", len(found)), findings, nil
}

// privileges compares who may do what with the data.
func privileges(ctx context.Context, v *visit) (string, []Finding, error) {
	if seen, err := newer(ctx, v); seen != "" || err != nil {
		return seen, nil, err
	}
	missing, unexpected, err := app.ComparePrivileges(ctx, v.conn)
	if err != nil {
		return "", nil, err
	}
	var findings []Finding
	for _, line := range missing[:min(len(missing), maxListed)] {
		cure := "give it back; db/privileges.txt explains the line"
		if strings.HasPrefix(line, "grant ") {
			cure = "as spectral_owner: " + statement(line) + ";"
		}
		findings = append(findings, Finding{Critical, "missing: " + line, cure})
	}
	for _, line := range unexpected[:min(len(unexpected), maxListed)] {
		cure := "nobody decided that; take it back"
		if granted, found := strings.CutPrefix(line, "grant "); found {
			cure = "nobody decided that: revoke " + strings.Replace(statement(granted), " to ", " from ", 1) + ";"
		}
		findings = append(findings, Finding{Warning, "unexpected: " + line, cure})
	}
	if more := max(len(missing)-maxListed, 0) + max(len(unexpected)-maxListed, 0); more > 0 {
		findings = append(findings, Finding{Warning, fmt.Sprintf("and %d more differences", more), "workers migrate up lists them all"})
	}
	return "as db/privileges.txt says", findings, nil
}

// statement is the SQL of a line of db/privileges.txt that begins with grant, or of its rest.
func statement(line string) string {
	for _, attribute := range []string{" inherit", " noinherit", " set", " noset"} {
		line = strings.Replace(line, attribute, "", 1)
	}
	return line
}
