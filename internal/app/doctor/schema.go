package doctor

import (
	"fmt"
	"slices"
	"strings"

	"spectral/internal/app"
	"spectral/internal/core/events"
	"spectral/internal/core/events/infrastructure/postgres/publish"
)

// migrations says which build's schema this is, and finds what makes the next migration fail: a step that is not recorded, and a record
// that is not the migrating login's. Before an older schema no pass begins.
func migrations(v *visit) string {
	applied, latest := v.migrated()
	v.list(`
with record as (select c.oid, c.relowner, r.rolname as owner, r.rolsuper from pg_class c join pg_namespace n on n.oid = c.relnamespace join pg_roles r on r.oid = c.relowner
  where (n.nspname, c.relname) = ('spectral_goose', 'goose_db_version'))
select 'warning', format('step %s is not recorded as applied, and later ones are: migrate up is refused', s.step),
  format('if the check of schema finds nothing, it is applied, and only its record is lost; if it finds what that step makes, the step is not: then apply it by hand before. To record it, as %I: insert into spectral_goose.goose_db_version (version_id, is_applied) values (%s, true);', r.owner, s.step)
from record r, unnest($1::bigint[]) as s(step)
where s.step < (select max(g.version_id) from spectral_goose.goose_db_version g where g.is_applied)
  and not exists (select from spectral_goose.goose_db_version g where g.version_id = s.step and g.is_applied)
union all
select case when r.rolsuper then 'note' else 'warning' end, format('spectral_goose.goose_db_version, which records what is applied, belongs to %I, and the database to %I: unless a superuser migrates, it is refused', r.owner, d.rolname),
  format('as a superuser: alter table spectral_goose.goose_db_version owner to %I;', d.rolname)
from record r, pg_database b join pg_roles d on d.oid = b.datdba
where b.datname = current_database() and not d.rolsuper and not pg_has_role(d.oid, r.relowner, 'usage')
order by 1, 2 limit $2`, app.Migrations(), maxListed)
	switch {
	case len(v.findings) > 0:
		return ""
	case applied > latest:
		return fmt.Sprintf("at %d; this build, at %d, is older and works on it", applied, latest)
	default:
		return fmt.Sprintf("at %d, as this build is", applied)
	}
}

// migrated is the newest step that is applied, and the newest of this build.
func (v *visit) migrated() (applied, latest int64) {
	v.fail(v.conn.QueryRow(v.ctx, "select coalesce(max(version_id) filter (where is_applied), 0) from spectral_goose.goose_db_version").Scan(&applied))
	return applied, app.LatestMigration()
}

// maxListed is how many of many alike are named.
const maxListed = 20

// repairs is what to do about whatever differs from this build.
const repairs = "workers migrate repair"

// schema compares what there is with what this build's migrations make.
func schema(v *visit) string {
	differences, _, err := app.Compare(v.ctx, v.conn)
	v.differing(differences, err)
	return "as this build's migrations make it"
}

// privileges compares who may do what with the data.
func privileges(v *visit) string {
	_, differences, err := app.Compare(v.ctx, v.conn)
	v.differing(differences, err)
	return "as decided: what each role is, owns and may do"
}

// differing lists differences, the worst first.
func (v *visit) differing(differences []app.Difference, err error) {
	v.fail(err)
	for _, d := range differences {
		state := Critical
		kind, _, _ := strings.Cut(d.Subject, " ")
		// a trigger may swallow rows, and functions act as their owner, who has to be able to
		if d.Want == "" && !slices.Contains([]string{"trigger", "owner", "revoked"}, kind) {
			state = Warning
		}
		v.found(state, d.String(), repairs)
	}
	slices.SortStableFunc(v.findings, func(a, b Finding) int { return rank(b.State) - rank(a.State) })
	if more := len(v.findings) - maxListed; more > 0 {
		v.findings = v.findings[:maxListed]
		v.found(v.findings[0].State, fmt.Sprintf("and %d more", more), repairs)
	}
}

// tables finds what changes what statements on our tables do, or whether rows are kept, beside the schema's own objects; and
// registries without which nothing can be published.
func tables(v *visit) string {
	v.list(`
with ours as (select c.oid, c.relname, n.nspname, c.relkind, c.relpersistence, format('%I.%I', n.nspname, c.relname) as name
  from pg_class c join pg_namespace n on n.oid = c.relnamespace where n.nspname in ('core', 'platform', 'worlds') and c.relkind in ('r', 'p'))
select 'critical', format('rule %s of %s rewrites statements: events may be lost, or never settle', r.rulename, o.name),
  format('as spectral_owner: drop rule %I on %s; then restart the workers, whose sessions keep plans', r.rulename, o.name)
from pg_rewrite r join ours o on o.oid = r.ev_class
union all
select 'critical', format('%s is unlogged: a crash of the server empties it', o.name), format('as spectral_owner: alter table %s set logged;', o.name) from ours o where o.relpersistence = 'u'
union all
select 'critical', format('%s.%s refers to %s by foreign key %s: rows that are past their retention cannot be deleted', f.relnamespace::regnamespace, f.relname, o.name, k.conname),
  format('as %I: alter table %s.%I drop constraint %I;', pg_get_userbyid(f.relowner), f.relnamespace::regnamespace, f.relname, k.conname)
from pg_constraint k join ours o on o.oid = k.confrelid and o.nspname = 'core' join pg_class f on f.oid = k.conrelid where k.contype = 'f'
union all
select 'critical', format('foreign keys of %s are not enforced, their triggers are disabled: %s', o.name, string_agg(distinct k.conname, ', ' order by k.conname)),
  format('as a superuser: alter table %s enable trigger all; and look for rows that they would have refused', o.name)
from pg_trigger t join ours o on o.oid = t.tgrelid join pg_constraint k on k.oid = t.tgconstraint where t.tgisinternal and t.tgenabled <> 'O' group by o.name
union all
select 'note', format('event trigger %s of %s runs %s at %s: it may refuse or alter what migrations and cures do', e.evtname, pg_get_userbyid(e.evtowner), e.evtfoid::regproc,
    case e.evtevent when 'login' then 'every login, workers'' too' else e.evtevent || coalesce(' of ' || array_to_string(e.evttags, ', '), '') end),
  format('look at what it does; for the time of a migration, as a superuser: alter event trigger %I disable;', e.evtname)
from pg_event_trigger e where e.evtenabled <> 'D' and not exists (select from pg_depend d where d.classid = 'pg_event_trigger'::regclass and d.objid = e.oid and d.deptype = 'e')
union all
select 'critical', format('%s is published (%s), and has no replica identity: every update of it fails, settling included', o.name, string_agg(p.pubname, ', ')),
  format('as spectral_owner: alter table %s replica identity %s;', o.name, case when exists (select from pg_index i where i.indrelid = o.oid and i.indisprimary) then 'default' else 'full' end)
from ours o join pg_class c on c.oid = o.oid join pg_publication_tables t on t.schemaname = o.nspname and t.tablename = o.relname join pg_publication p on p.pubname = t.pubname and (p.pubupdate or p.pubdelete)
where c.relreplident = 'n' or c.relreplident = 'i' and not exists (select from pg_index i where i.indrelid = o.oid and i.indisreplident)
  or c.relreplident = 'd' and not exists (select from pg_index i where i.indrelid = o.oid and i.indisprimary) group by o.oid, o.name
order by 1, 2`)
	v.registries()
	return "statements do what they say, rows are kept, and registries are the build's"
}

// registries finds what publishing goes by and what is not as this build, or a worker that lives, has it. What a build of a higher generation
// has registered stands, and what one of a lower generation has is replaced by this one's first start: neither is reported.
func (v *visit) registries() {
	contracts, err := app.Contracts()
	if err != nil {
		v.fail(err)
		return
	}
	types, err := publish.EventTypes(contracts)
	v.fail(err)
	v.list(`
with declared as (
  select r.* from jsonb_to_recordset($1::jsonb) as r(event_type text, event_version integer, source text, class text, content_class text, consumed boolean,
    payload_schema jsonb, payload_rules jsonb, payload_fault text, deadline timestamptz, successor text)),
latest as (select distinct on (d.event_type) d.* from declared d order by d.event_type, d.event_version desc),
publishers(role_name, source) as (values ('spectral_platform', 'platform'), ('spectral_worlds', 'worlds'), ('spectral_owner', 'core')),
-- those that a build of this generation has registered, or would have
ours as (
  select t.* from core.event_types t
  where $2 > 0 and (t.registered_by = $2 or t.registered_by < $2 and exists (select from core.live_workers w where w.generation = $2))),
unheard as (
  select w.generation, t.event_type from core.live_workers w cross join lateral jsonb_object_keys(w.handlers) as h(event_type)
  join core.event_types t on t.event_type = h.event_type and not core.consumes(w.generation, t.consumed_in, t.consumed)
  group by w.generation, t.event_type),
dropped as (
  select d.event_type from latest d
  where d.consumed and not exists (select from unheard u where u.event_type = d.event_type)
    and case when $2 = 0 then exists (select from core.event_types t where (t.event_type, t.event_version) = (d.event_type, d.event_version) and not t.consumed
        and not exists (select from jsonb_each_text(t.consumed_in) as g where g.value = 'true'))
      else exists (select from core.event_types t where t.event_type = d.event_type and (t.consumed_in ->> $2::text)::boolean is false)
        or exists (select from ours t where t.event_type = d.event_type and not core.consumes($2, t.consumed_in, t.consumed)) end),
different as (
  select t.event_type, t.event_version, t.registered_by, d.source <> t.source as refused, array_to_string(array[
    case when d.source <> t.source then format('source %s, not %s', t.source, d.source) end,
    case when d.event_type is not null and d.class is distinct from t.class then format('class %s, not %s', coalesce(t.class, '`+events.DefaultClass+`'), coalesce(d.class, '`+events.DefaultClass+`')) end,
    case when d.content_class <> t.content_class then format('content class %s, not %s', t.content_class, d.content_class) end,
    case when not d.consumed and core.consumes(nullif($2, 0), t.consumed_in, t.consumed) then 'waiting for a handler, not settled as it is published' end,
    case when d.event_type is not null and (d.payload_schema, d.payload_rules, d.payload_fault::jsonpath::text) is distinct from (t.payload_schema, t.payload_rules, t.payload_fault::text) then 'another payload' end,
    case when (l.deadline, l.successor) is distinct from (t.deadline, t.successor) then format('%s, not %s',
      coalesce('deprecated from ' || t.deadline || ' for ' || t.successor, 'not deprecated'), coalesce('deprecated from ' || l.deadline || ' for ' || l.successor, 'not deprecated')) end], '; ') as how
  from core.event_types t join latest l on l.event_type = t.event_type
  left join declared d on (d.event_type, d.event_version) = (t.event_type, t.event_version))
select 'critical', 'no event type is registered: all publishing is refused (SP016)', 'workers migrate up, or start a worker: both register what the build has' where not exists (select from core.event_types)
union all
select 'critical', format('%s version %s, which this build has, is not registered: its publishing is refused (SP016)', d.event_type, d.event_version), 'workers migrate up, or start a worker: both register what the build has'
from declared d where exists (select from core.event_types) and not exists (select from core.event_types t where (t.event_type, t.event_version) = (d.event_type, d.event_version))
union all
select 'critical', format('%s is registered without a handler in generation %s, though its live workers handle it: what is published is settled without them, and lost', u.event_type, u.generation),
  format('as spectral_owner: update core.event_types set consumed = true, consumed_in = consumed_in || jsonb_build_object(%L, true) where event_type = %L;', u.generation, u.event_type)
from unheard u
union all
select 'critical', format('%s is registered without a handler, though this build handles it: what is published is settled at once, and lost', d.event_type),
  case when $2 = 0 then format('as spectral_owner: update core.event_types set consumed = true where event_type = %L; then restart the workers', d.event_type) else $3 end
from dropped d
union all
select case when d.refused then 'critical' else 'warning' end, format('%s version %s is not registered as this build, of generation %s, has it: %s', d.event_type, d.event_version, $2, d.how),
  $3 || '; if it comes back, another build runs as this generation: give one of them a number of its own'
from different d join ours o on (o.event_type, o.event_version) = (d.event_type, d.event_version) where d.how <> ''
union all
select 'note', format('%s version %s is not registered as this build has it: %s', d.event_type, d.event_version, d.how),
  format('whether that is right goes by this build''s generation: SPECTRAL_GENERATION=N workers doctor tables; it was registered by %s', case d.registered_by when 0 then 'none' else 'generation ' || d.registered_by end)
from different d where $2 = 0 and d.how <> ''
union all
select 'note', format('generation %s, which is not known, has registered %s: what it says of them stays until it or a later one starts', t.registered_by, string_agg(t.event_type || ' version ' || t.event_version, ', ' order by t.event_type, t.event_version)),
  format('if it will not be started, as spectral_owner: update core.event_types set registered_by = 0 where registered_by = %s; then with the build that runs: workers migrate up', t.registered_by)
from core.event_types t where t.registered_by > 0 and not exists (select from core.deployments p where p.generation = t.registered_by) group by t.registered_by
union all
select 'critical', format('%s may not publish as %s: its publishing is refused (SP017)', p.role_name, p.source), format('as spectral_owner: insert into core.publisher_sources (role_name, source) values (%L, %L);', p.role_name, p.source)
from publishers p where not exists (select from core.publisher_sources s where (s.role_name, s.source) = (p.role_name, p.source))
union all
select case when r.oid is null then 'note' else 'warning' end, format('%s may publish as %s, which nobody decided%s', s.role_name, s.source, case when r.oid is null then '; there is no such role, and whoever gets the name may' end),
  format('as spectral_owner: delete from core.publisher_sources where role_name = %L and source = %L;', s.role_name, s.source)
from core.publisher_sources s left join pg_roles r on r.rolname = s.role_name
where (r.oid is null or s.role_name = any ($4)) and not exists (select from publishers p where (s.role_name, s.source) = (p.role_name, p.source))
order by 1, 2`, string(types), int64(v.Generation), fmt.Sprintf("with this build, SPECTRAL_GENERATION=%d workers migrate up; or start one of its workers: both register what it has", v.Generation), app.Roles())
}

// logins finds those that may do more than their group does.
func logins(v *visit) string {
	v.list(`
with groups as (select oid, rolname from pg_roles where rolname = any ($1) or starts_with(rolname, 'spectral_') and not rolcanlogin),
members as (select distinct r.oid, r.rolname, r.rolsuper from pg_roles r join groups g on pg_has_role(r.oid, g.oid, 'member')
  where r.rolcanlogin and not r.rolsuper and r.oid not in (select oid from groups)),
migrating as (select datdba as oid from pg_database where datname = current_database()),
-- each grant that makes members of what may do everything; those to our groups privileges finds
grants as (select m.roleid::regrole::text as above, m.member, m.member::regrole::text as name, m.roleid in (select oid from migrating) as migrates,
    case when current_setting('server_version_num')::integer >= 160000 then m.grantor::regrole::text end as grantor
  from pg_auth_members m
  where (m.roleid::regrole::text in ('spectral_owner', 'pg_write_all_data') and m.member not in (select oid from migrating)
      or m.roleid in (select oid from migrating) and pg_has_role(m.roleid, 'spectral_owner', 'member'))
    and m.member not in (select oid from groups)),
schemas as (select oid, nspname from pg_namespace where nspname in ('core', 'platform', 'worlds')),
acls (what, on_what, columns, owner, acl) as (
  select 'schema ' || nspname, 'schema ' || nspname, '', n.nspowner, n.nspacl from pg_namespace n join schemas using (nspname)
  union all select format('%s.%I', s.nspname, c.relname), format('%s %s.%I', case c.relkind when 'S' then 'sequence' else 'table' end, s.nspname, c.relname), '', c.relowner, c.relacl
    from pg_class c join schemas s on s.oid = c.relnamespace
  union all select format('%s.%I (%I)', s.nspname, c.relname, a.attname), format('table %s.%I', s.nspname, c.relname), format(' (%I)', a.attname), c.relowner, a.attacl
    from pg_attribute a join pg_class c on c.oid = a.attrelid join schemas s on s.oid = c.relnamespace
  union all select 'function ' || p.oid::regprocedure, 'function ' || p.oid::regprocedure, '', p.proowner, p.proacl from pg_proc p join schemas s on s.oid = p.pronamespace)
select 'warning', format('role %s has %s on %s by itself, not by its group', r.rolname, string_agg(lower(x.privilege_type), ', ' order by x.privilege_type), a.what),
  format('as spectral_owner: revoke %s on %s from %I cascade; and let it join the group that is meant', string_agg(lower(x.privilege_type) || a.columns, ', ' order by x.privilege_type), a.on_what, r.rolname)
from acls a, aclexplode(a.acl) x join pg_roles r on r.oid = x.grantee
where x.grantee <> a.owner and r.oid not in (select oid from groups) group by r.rolname, a.what, a.on_what
union all
select 'warning', format('login %s is a member of %s%s, and may rewrite and erase events', string_agg(distinct m.rolname, ', ' order by m.rolname), g.above || case when g.migrates then ', which migrates' else '' end,
    case when bool_and(g.member = m.oid) then '' else ' through ' || g.name end),
  case when min(g.grantor) is null then format('as the login that migrates: revoke %s from %s cascade;', g.above, g.name)
    else format('as a superuser%s: %s', case when min(g.grantor) = max(g.grantor) then ', or as ' || min(g.grantor) else '' end,
      string_agg(distinct format('revoke %s from %s granted by %s cascade;', g.above, g.name, g.grantor), ' ')) end
from members m join grants g on pg_has_role(m.oid, g.member, 'member') where m.oid not in (select oid from migrating)
group by g.above, g.member, g.name, g.migrates
union all
select 'warning', format('login %s, which is a member of %s, is a superuser: nothing is kept from it', r.rolname, g.rolname), format('as a superuser: alter role %I nosuperuser;', r.rolname)
from pg_roles r join pg_auth_members m on m.member = r.oid join groups g on g.oid = m.roleid where r.rolsuper and r.oid not in (select oid from groups)
order by 1, 2 limit $2`, app.Roles(), maxListed)
	return "each may do what its group may"
}

// indexes finds those that Postgres does not use: a build that was cut short leaves one.
func indexes(v *visit) string {
	found := all[struct {
		Name, Subject string
		Key, Valid    bool
	}](v, `select i.indexrelid::regclass::text, format('index %I on %I.%I', x.relname, n.nspname, c.relname),
			exists (select from pg_constraint k where k.conindid = i.indexrelid), i.indisvalid and i.indisready and i.indislive
		from pg_index i join pg_class c on c.oid = i.indrelid join pg_class x on x.oid = i.indexrelid join pg_namespace n on n.oid = c.relnamespace
		where n.nspname in ('core', 'platform', 'worlds') order by 1`)
	for _, i := range found {
		if !i.Valid {
			fix := "reindex" // or what a build that was cut short has left
			if !i.Key && !app.InSchema(i.Subject) {
				fix = "drop"
			}
			v.found(Critical, "index "+i.Name+" is invalid: it is written but not read",
				"as spectral_owner: "+fix+" index concurrently "+i.Name+";")
		}
	}
	return fmt.Sprintf("%d, all valid", len(found))
}
