package doctor

import (
	"context"
	"fmt"
	"slices"
	"strings"

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
	missing := make(map[string]bool)
	for _, subject := range d.Missing {
		missing[subject] = true
	}
	damaged := app.WithoutKeyIndexes(slices.Concat(d.Missing, d.Altered))
	app.SortForCreation(damaged)
	for _, subject := range damaged {
		findings = append(findings, damage(subject, map[bool]string{true: "missing", false: "altered"}[missing[subject]]))
	}
	slices.SortStableFunc(findings, func(a, b Finding) int { return rank(b.State) - rank(a.State) })
	if more := len(findings) - maxListed; more > 0 {
		findings = append(findings[:maxListed], Finding{Critical, fmt.Sprintf("and %d more", more), "cure these in their order and look again, or restore into a new database"})
	}
	for _, subject := range d.Unexpected[:min(len(d.Unexpected), maxListed)] {
		cure := "keep what is yours in a schema of your own: it may slow down or refuse what events need"
		if drop := app.SchemaDropStatement(subject); drop != "" {
			cure += "; as the owner: " + drop
		}
		findings = append(findings, Finding{Warning, subject + " is not of our migrations", cure})
	}
	return "as this build's migrations make it", findings, nil
}

const trigger = "trigger outbox_notify of core.outbox"

// remake is the line that gives an object back what this build's migrations make it.
func remake(subject string) string {
	return "as the owner: workers migrate show '" + subject + `' | psql --set=ON_ERROR_STOP=1 "$DATABASE_URL"`
}

// damage says what an object that is missing or altered means.
func damage(subject, how string) Finding {
	f := Finding{Critical, subject + " is " + how, remake(subject)}
	switch {
	case subject == trigger && how == "missing":
		f.Seen += ": nobody is woken by an insert, and every event waits for the poll"
	case subject == trigger:
		f.Seen += " or disabled: inserts may wake nobody, and events wait for the poll"
	case strings.HasPrefix(subject, "index "):
		f.Seen += ": claims and looks may read the whole table"
		if how == "altered" {
			f.Cure = "if it is invalid: reindex index concurrently " + strings.TrimPrefix(subject, "index ") + "; if it is another one, " + f.Cure
		}
	case (strings.HasPrefix(subject, "table ") || strings.HasPrefix(subject, "schema ") || strings.HasPrefix(subject, "column ")) && how == "missing":
		f.Cure = "what it held is gone: restore the database from a backup; or, empty, " + f.Cure
	case strings.HasPrefix(subject, "column "):
		f.Cure += "; a type that is another is yours to alter back: what that prints says which it was"
	case strings.HasPrefix(subject, "table "):
		f.State = Warning
		f.Seen += " in its options, row security or comment"
	}
	return f
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
select 'note', format('event trigger %s of %s runs %s at %s: it may refuse or alter what migrations and cures do', e.evtname, pg_get_userbyid(e.evtowner), e.evtfoid::regproc,
    case e.evtevent when 'login' then 'every login, workers'' too' else e.evtevent || coalesce(' of ' || array_to_string(e.evttags, ', '), '') end),
  format('look at what it does; for the time of a migration: alter event trigger %I disable;', e.evtname)
from pg_event_trigger e where e.evtenabled <> 'D' and not exists (select from pg_depend d where d.classid = 'pg_event_trigger'::regclass and d.objid = e.oid and d.deptype = 'e')
union all
select 'critical', format('%s may not be executed by %s, and %s calls it', p.oid::regprocedure, string_agg(distinct r.rolname, ', '), min(p.caller)),
  format('grant execute on function %s to public;', p.oid::regprocedure)
from (select p.oid, min(o.oid::regproc::text) as caller from pg_proc p
      join pg_proc o on o.pronamespace in (select n.oid from pg_namespace n where n.nspname in ('core', 'platform', 'worlds'))
        and coalesce(nullif(o.prosrc, ''), pg_get_function_sqlbody(o.oid)) ~ ('\m' || p.proname || '\M')
      where p.pronamespace = 'pg_catalog'::regnamespace and p.proacl is not null and not has_function_privilege('public', p.oid, 'execute')
        and not exists (select from pg_init_privs i where i.classoid = 'pg_proc'::regclass and i.objoid = p.oid)
      group by p.oid) p
join pg_roles r on r.rolname in ('spectral_owner', 'spectral_publisher', 'spectral_worker', 'spectral_operator', 'spectral_platform', 'spectral_worlds')
  and not has_function_privilege(r.oid, p.oid, 'execute')
group by p.oid
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
			cure = "as spectral_owner: " + app.GrantStatement(line)
		}
		findings = append(findings, Finding{Critical, "missing: " + line, cure})
	}
	for _, line := range unexpected[:min(len(unexpected), maxListed)] {
		cure := "nobody decided that; take it back"
		if granted, found := strings.CutPrefix(line, "grant "); found {
			cure = "nobody decided that: revoke " + strings.Replace(app.GrantStatement(granted), " to ", " from ", 1)
		}
		findings = append(findings, Finding{Warning, "unexpected: " + line, cure})
	}
	if more := max(len(missing)-maxListed, 0) + max(len(unexpected)-maxListed, 0); more > 0 {
		findings = append(findings, Finding{Warning, fmt.Sprintf("and %d more differences", more), "workers migrate up lists them all"})
	}
	return "as db/privileges.txt says", findings, nil
}
