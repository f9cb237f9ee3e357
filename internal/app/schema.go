package app

import (
	"context"
	"crypto/sha256"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"spectral/db"
)

// SchemaObject is a part of our schemas as the catalogs have it.
type SchemaObject struct {
	Subject    string // what it is and its name: "trigger outbox_notify of core.outbox"
	Definition string // may have several lines
}

// ReadSchema writes out our schemas from the catalogs, in a fixed order and equally on every version of Postgres: NOT
// NULL is a column's attribute (18 makes it a constraint, too), and a view's text, whose column names are qualified before
// 16 only, is shown without qualifiers. The connection may be any login's and must not be in a transaction.
func ReadSchema(ctx context.Context, conn *pgx.Conn) ([]SchemaObject, error) {
	tx, err := conn.BeginTx(ctx, pgx.TxOptions{
		BeginQuery: readCatalogs,
	})
	if err != nil {
		return nil, fmt.Errorf("read schema: %w", oneLine(err))
	}
	defer func() { _ = tx.Rollback(context.WithoutCancel(ctx)) }()
	rows, err := tx.Query(ctx, effectiveSchema)
	if err != nil {
		return nil, fmt.Errorf("read schema: %w", oneLine(err))
	}
	objects, err := pgx.CollectRows(rows, pgx.RowToStructByPos[SchemaObject])
	if err != nil {
		return nil, fmt.Errorf("read schema: %w", oneLine(err))
	}
	return objects, nil
}

// FixedSettings is for a transaction in which every server writes out the same, whatever the database or the login has set.
// Types are printed without a schema only when they are pg_catalog's.
const FixedSettings = `set local search_path = pg_catalog; set local timezone = 'UTC'; set local datestyle = 'ISO, MDY'; set local intervalstyle = 'postgres'; set local bytea_output = 'hex'; set local extra_float_digits = 1;
set local quote_all_identifiers = off; set local standard_conforming_strings = on`

// readCatalogs begins a transaction that reads the catalogs in one snapshot.
const readCatalogs = "begin isolation level repeatable read read only; " + FixedSettings

// SchemaSum is a schema as db/schema.sum has it: a line for each object, a hash of its definition and its subject,
// sorted by that.
func SchemaSum(objects []SchemaObject) string {
	objects = slices.SortedFunc(slices.Values(objects), func(a, b SchemaObject) int { return strings.Compare(a.Subject, b.Subject) })
	var lines strings.Builder
	for _, o := range objects {
		text := sameOrder(o.Definition)
		if !strings.HasPrefix(o.Subject, "function ") { // a dump that is restored has other parentheses
			text = strings.NewReplacer("(", "", ")", "").Replace(text)
		}
		sum := sha256.Sum256([]byte(text))
		_, _ = fmt.Fprintf(&lines, "%x %s\n", sum[:8], o.Subject)
	}
	return lines.String()
}

// sameOrder sorts what a function sets while it runs, which Postgres keeps in the order in which it was set.
func sameOrder(definition string) string {
	head, body, found := strings.Cut(definition, "\nAS $")
	if !found {
		return definition
	}
	lines := strings.Split(head, "\n")
	isSet := func(line string) bool { return strings.HasPrefix(line, " SET ") }
	if first := slices.IndexFunc(lines, isSet); first >= 0 {
		end := first
		for end < len(lines) && isSet(lines[end]) {
			end++
		}
		slices.Sort(lines[first:end])
	}
	return strings.Join(lines, "\n") + "\nAS $" + body
}

// SchemaDifference is how a database's schema differs from that of this build's migrations: subjects, in the order in which
// [SchemaStatements] brings them back.
type SchemaDifference struct{ Missing, Altered, Unexpected []string }

// CompareSchema compares the schema with db/schema.sum.
func CompareSchema(ctx context.Context, conn *pgx.Conn) (SchemaDifference, error) {
	objects, err := ReadSchema(ctx, conn)
	if err != nil {
		return SchemaDifference{}, err
	}
	declared, effective := readSum(db.SchemaSum), readSum(SchemaSum(objects))
	var d SchemaDifference
	for _, subject := range slices.Sorted(maps.Keys(declared)) {
		switch hash, found := effective[subject]; {
		case !found:
			d.Missing = append(d.Missing, subject)
		case hash != declared[subject]:
			d.Altered = append(d.Altered, subject)
		}
	}
	for _, subject := range slices.Sorted(maps.Keys(effective)) {
		if _, found := declared[subject]; !found {
			d.Unexpected = append(d.Unexpected, subject)
		}
	}
	SortForCreation(d.Missing)
	SortForCreation(d.Altered)
	return d, nil
}

// readSum returns the hashes by subject.
func readSum(sum string) map[string]string {
	hashes := make(map[string]string)
	for line := range strings.Lines(sum) {
		if hash, subject, found := strings.Cut(strings.TrimSpace(line), " "); found {
			hashes[subject] = hash
		}
	}
	return hashes
}

const effectiveSchema = `
with
schemas as (
  select oid, nspname from pg_namespace where nspowner = (select oid from pg_roles where rolname = 'spectral_owner')
),
relations as (
  select c.*, s.nspname || '.' || c.relname as name from pg_class c join schemas s on s.oid = c.relnamespace
),
lines (object, kind, name, subject, line) as (
  select nspname, 0, '', 'schema ' || nspname, 'schema ' || nspname || coalesce(' -- ' || obj_description(oid, 'pg_namespace'), '') from schemas
  union all
  select name, 0, '', 'table ' || name,
    case relkind when 'r' then 'table' when 'p' then 'partitioned table' when 'v' then 'view' when 'm' then 'materialized view'
      when 'S' then 'sequence' else 'relation ' || relkind::text end || ' ' || name
    || case relpersistence when 'p' then '' else ' persistence ' || relpersistence::text end
    || coalesce(' partition by ' || pg_get_partkeydef(oid), '')
    || coalesce(' ' || pg_get_expr(relpartbound, oid), '')
    || case when relrowsecurity then ' row security' else '' end || case when relforcerowsecurity then ' forced' else '' end
    || coalesce(' with (' || (select string_agg(o, ', ' order by o) from unnest(reloptions) as o) || ')', '')
    || coalesce(' -- ' || obj_description(oid, 'pg_class'), '')
  from relations where relkind not in ('i', 'I', 't', 'c')
  union all
  select r.name, 1, to_char(a.attnum, '0000'), 'column ' || r.name || '.' || a.attname,
    '  ' || a.attname || ' ' || format_type(a.atttypid, a.atttypmod)
    || case when a.attcollation in (0, ty.typcollation) then '' else ' collate ' || a.attcollation::regcollation end
    || case when a.attnotnull then ' not null' else '' end
    || case when a.attgenerated <> '' then ' generated ' || a.attgenerated::text else '' end
    || case when a.attidentity <> '' then ' identity ' || a.attidentity::text else '' end
    || coalesce(' default ' || pg_get_expr(d.adbin, d.adrelid), '')
    || coalesce(' -- ' || col_description(r.oid, a.attnum), '')
  from relations r
  join pg_attribute a on a.attrelid = r.oid and a.attnum > 0 and not a.attisdropped
  join pg_type ty on ty.oid = a.atttypid
  left join pg_attrdef d on d.adrelid = r.oid and d.adnum = a.attnum
  where r.relkind not in ('i', 'I', 't', 'S')
  union all
  select r.name, 2, c.conname, 'constraint ' || c.conname || ' of ' || r.name, '  constraint ' || c.conname || ' ' || pg_get_constraintdef(c.oid)
    || case when c.convalidated then '' else ' not valid' end || coalesce(' -- ' || obj_description(c.oid, 'pg_constraint'), '')
  from relations r join pg_constraint c on c.conrelid = r.oid and c.contype not in ('n', 't')
  union all
  select r.name, 3, i.indexrelid::regclass::text, 'index ' || i.indexrelid::regclass, '  ' || pg_get_indexdef(i.indexrelid)
    || case when i.indisvalid then '' else ' invalid' end || coalesce(' -- ' || obj_description(i.indexrelid, 'pg_class'), '')
  from relations r join pg_index i on i.indrelid = r.oid where r.relkind <> 't'
  union all
  select r.name, 4, g.tgname, 'trigger ' || g.tgname || ' of ' || r.name, '  ' || pg_get_triggerdef(g.oid) || case g.tgenabled when 'O' then '' else ' enabled ' || g.tgenabled::text end
    || coalesce(' -- ' || obj_description(g.oid, 'pg_trigger'), '')
  from relations r join pg_trigger g on g.tgrelid = r.oid and not g.tgisinternal
  union all
  select r.name, 5, p.polname, 'policy ' || p.polname || ' of ' || r.name, '  policy ' || p.polname || case when p.polpermissive then '' else ' restrictive' end || ' for ' || p.polcmd::text
    || ' to ' || (select string_agg(coalesce(nullif(o, 0)::regrole::text, 'public'), ', ') from unnest(p.polroles) as o)
    || coalesce(' using ' || pg_get_expr(p.polqual, r.oid), '') || coalesce(' with check ' || pg_get_expr(p.polwithcheck, r.oid), '')
  from relations r join pg_policy p on p.polrelid = r.oid
  union all
  select r.name, 6, '', 'query of view ' || r.name, '  as ' || regexp_replace(regexp_replace(pg_get_viewdef(r.oid), '\m[a-z0-9_]+\.', '', 'g'), '\s+', ' ', 'g')
  from relations r where r.relkind in ('v', 'm')
  union all
  select r.name, 7, '', 'values of sequence ' || r.name, format('  %s from %s to %s start %s increment %s cache %s%s', q.seqtypid::regtype, q.seqmin, q.seqmax, q.seqstart,
    q.seqincrement, q.seqcache, case when q.seqcycle then ' cycle' else '' end)
  from relations r join pg_sequence q on q.seqrelid = r.oid
  union all
  select s.nspname || '.' || ty.typname, 0, '', 'type ' || s.nspname || '.' || ty.typname, 'type ' || s.nspname || '.' || ty.typname || ' ' || case ty.typtype
      when 'e' then 'enum ' || (select string_agg(e.enumlabel, ', ' order by e.enumsortorder) from pg_enum e where e.enumtypid = ty.oid)
      when 'd' then 'domain ' || format_type(ty.typbasetype, ty.typtypmod)
        || coalesce((select string_agg(' ' || pg_get_constraintdef(c.oid), '' order by c.conname) from pg_constraint c where c.contypid = ty.oid and c.contype <> 'n'), '')
      else ty.typtype::text end
  from schemas s join pg_type ty on ty.typnamespace = s.oid and ty.typtype not in ('b', 'c')
  union all
  select s.nspname || '.' || p.proname, 8, oidvectortypes(p.proargtypes), 'function ' || s.nspname || '.' || p.proname || '(' || oidvectortypes(p.proargtypes) || ')',
    pg_get_functiondef(p.oid) || coalesce('-- ' || obj_description(p.oid, 'pg_proc'), '')
  from schemas s join pg_proc p on p.pronamespace = s.oid and p.prokind in ('f', 'p')
)
select subject, line from lines order by object collate "C", kind, name collate "C"`
