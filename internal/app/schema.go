package app

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"

	"github.com/jackc/pgx/v5"

	"spectral/db"
)

// SchemaObject is a part of our schemas as the catalogs have it.
type SchemaObject struct {
	Subject    string // what it is and its name: "trigger outbox_notify of core.outbox"
	Definition string // as SQL has it, after the name where that begins otherwise; may have several lines
	Comment    string // of one line
}

// ReadSchema writes out our schemas from the catalogs, in a fixed order and equally on every version of Postgres, but for the queries of
// views, whose column names are qualified before 16 only: NOT NULL is a column's attribute (18 makes it a constraint, too). The
// connection may be any login's and must not be in a transaction.
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

// WriteSchema is a schema as db/schema.txt has it.
func WriteSchema(objects []SchemaObject) string {
	var text strings.Builder
	for _, o := range objects {
		text.WriteString(objectMark + o.Subject + "\n" + o.Definition + "\n")
		if o.Comment != "" {
			text.WriteString(commentMark + o.Comment + "\n")
		}
	}
	return text.String()
}

// What begins an object of db/schema.txt, and its comment.
const (
	objectMark  = "=== "
	commentMark = "--- "
)

// ParseSchema reads what [WriteSchema] has written.
func ParseSchema(text string) (objects []SchemaObject) {
	for part := range strings.SplitSeq("\n"+strings.TrimSuffix(text, "\n"), "\n"+objectMark) {
		if part == "" {
			continue
		}
		var o SchemaObject
		o.Subject, o.Definition, _ = strings.Cut(part, "\n")
		o.Definition, o.Comment, _ = strings.Cut(o.Definition, "\n"+commentMark)
		objects = append(objects, o)
	}
	return objects
}

// SameEverywhere is a schema as every version of Postgres has it, and one that was dumped and restored, whose expressions have other
// parentheses. It is no SQL.
func SameEverywhere(objects []SchemaObject) []SchemaObject {
	objects = slices.Clone(objects)
	for i, o := range objects {
		switch kind, _, _ := strings.Cut(o.Subject, " "); kind {
		case "function":
			o.Definition = sameOrder(o.Definition)
		case "query":
			o.Definition = strings.Join(strings.Fields(qualifier.ReplaceAllString(o.Definition, "")), " ")
			fallthrough
		default:
			o.Definition = strings.NewReplacer("(", "", ")", "").Replace(o.Definition)
		}
		objects[i] = o
	}
	return objects
}

var qualifier = regexp.MustCompile(`\b[a-z0-9_]+\.`)

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
type SchemaDifference struct {
	Missing, Altered, Unexpected []string
	// Renamed are those of the missing that seem to be there under another name, which is then among the unexpected.
	Renamed []Renamed
	// Effective are the definitions of what there is, Declared those of what should be, by subject.
	Effective, Declared map[string]string
}

// CompareSchema compares the schema with db/schema.txt.
func CompareSchema(ctx context.Context, conn *pgx.Conn) (SchemaDifference, error) {
	objects, err := ReadSchema(ctx, conn)
	if err != nil {
		return SchemaDifference{}, err
	}
	d := SchemaDifference{Effective: make(map[string]string), Declared: make(map[string]string)}
	for _, o := range objects {
		d.Effective[o.Subject] = o.Definition
	}
	for _, o := range declaredSchema() {
		d.Declared[o.Subject] = o.Definition
	}
	effective, wanted := bySubject(objects), bySubject(declaredSchema())
	for subject, o := range wanted {
		switch found, there := effective[subject]; {
		case !there:
			d.Missing = append(d.Missing, subject)
		case found != o:
			d.Altered = append(d.Altered, subject)
		}
	}
	for subject := range effective {
		if _, is := wanted[subject]; !is {
			d.Unexpected = append(d.Unexpected, subject)
		}
	}
	slices.Sort(d.Unexpected)
	for _, subjects := range [][]string{d.Missing, d.Altered} {
		slices.Sort(subjects)
		SortForCreation(subjects)
	}
	of := func(objects map[string]SchemaObject, subjects []string) (some []SchemaObject) {
		for _, subject := range WithoutKeyIndexes(subjects) {
			some = append(some, objects[subject])
		}
		return some
	}
	if d.Renamed, err = moved(ctx, conn, d.Missing); err != nil {
		return SchemaDifference{}, err
	}
	d.Renamed = append(d.Renamed, renamed(of(wanted, d.Missing), of(effective, d.Unexpected))...)
	return d, nil
}

// bySubject are objects as every version of Postgres has them.
func bySubject(objects []SchemaObject) map[string]SchemaObject {
	by := make(map[string]SchemaObject, len(objects))
	for _, o := range SameEverywhere(objects) {
		by[o.Subject] = o
	}
	return by
}

// declaredSchema is the schema of this build.
var declaredSchema = sync.OnceValue(func() []SchemaObject { return ParseSchema(db.Schema) })

const effectiveSchema = `
with
schemas as (
  select oid, nspname from pg_namespace where nspowner = (select oid from pg_roles where rolname = 'spectral_owner')
),
relations as (
  select c.*, s.nspname || '.' || c.relname as name from pg_class c join schemas s on s.oid = c.relnamespace
),
lines (object, kind, name, subject, line, comment) as (
  select nspname, 0, '', 'schema ' || nspname, 'create schema ' || nspname, obj_description(oid, 'pg_namespace') from schemas
  union all
  select name, 0, '', 'table ' || name,
    case relkind when 'r' then 'table' when 'p' then 'partitioned table' when 'v' then 'view' when 'm' then 'materialized view'
      when 'S' then 'sequence' else 'relation ' || relkind::text end
    || case relpersistence when 'p' then '' else ' persistence ' || relpersistence::text end
    || coalesce(' partition by ' || pg_get_partkeydef(oid), '')
    || coalesce(' ' || pg_get_expr(relpartbound, oid), '')
    || case when relrowsecurity then ' row security' else '' end || case when relforcerowsecurity then ' forced' else '' end
    || coalesce(' with (' || (select string_agg(o, ', ' order by o) from unnest(reloptions) as o) || ')', ''),
    obj_description(oid, 'pg_class')
  from relations where relkind not in ('i', 'I', 't', 'c')
  union all
  select r.name, 1, to_char(a.attnum, '0000'), 'column ' || r.name || '.' || a.attname,
    format_type(a.atttypid, a.atttypmod)
    || case when a.attcollation in (0, ty.typcollation) then '' else ' collate ' || a.attcollation::regcollation end
    || case when a.attnotnull then ' not null' else '' end
    || case when exists (select from pg_constraint k where k.conrelid = a.attrelid and k.contype = 'n' and k.conkey = array[a.attnum] and not k.convalidated) then ' not valid' else '' end
    || case a.attidentity when '' then '' when 'a' then ' generated always as identity' else ' generated by default as identity' end
    || case when d.adbin is null then '' when a.attgenerated = '' then ' default ' || pg_get_expr(d.adbin, d.adrelid)
      else ' generated always as (' || pg_get_expr(d.adbin, d.adrelid) || ')' || case a.attgenerated when 's' then ' stored' else '' end end
    || coalesce(' planned by ' || nullif(concat_ws(', ', case a.attstattarget when 0 then 'statistics=0' end, array_to_string(a.attoptions, ', ')), ''), ''),
    col_description(r.oid, a.attnum)
  from relations r
  join pg_attribute a on a.attrelid = r.oid and a.attnum > 0 and not a.attisdropped
  join pg_type ty on ty.oid = a.atttypid
  left join pg_attrdef d on d.adrelid = r.oid and d.adnum = a.attnum
  where r.relkind not in ('i', 'I', 't', 'S')
  union all
  select r.name, 2, c.conname, 'constraint ' || c.conname || ' of ' || r.name, pg_get_constraintdef(c.oid), obj_description(c.oid, 'pg_constraint')
  from relations r join pg_constraint c on c.conrelid = r.oid and c.contype not in ('n', 't')
  union all
  select r.name, 3, i.indexrelid::regclass::text, 'index ' || i.indexrelid::regclass, pg_get_indexdef(i.indexrelid)
    || case when i.indisvalid then '' else ' invalid' end, obj_description(i.indexrelid, 'pg_class')
  from relations r join pg_index i on i.indrelid = r.oid where r.relkind <> 't'
  union all
  select r.name, 4, g.tgname, 'trigger ' || g.tgname || ' of ' || r.name, pg_get_triggerdef(g.oid) || case g.tgenabled when 'O' then '' else ' enabled ' || g.tgenabled::text end,
    obj_description(g.oid, 'pg_trigger')
  from relations r join pg_trigger g on g.tgrelid = r.oid and not g.tgisinternal
  union all
  select r.name, 5, p.polname, 'policy ' || p.polname || ' of ' || r.name, 'CREATE POLICY ' || p.polname || ' ON ' || r.name || case when p.polpermissive then '' else ' AS RESTRICTIVE' end
    || ' FOR ' || case p.polcmd when 'r' then 'SELECT' when 'a' then 'INSERT' when 'w' then 'UPDATE' when 'd' then 'DELETE' else 'ALL' end
    || ' TO ' || (select string_agg(coalesce(nullif(o, 0)::regrole::text, 'public'), ', ') from unnest(p.polroles) as o)
    || coalesce(' USING (' || pg_get_expr(p.polqual, r.oid) || ')', '') || coalesce(' WITH CHECK (' || pg_get_expr(p.polwithcheck, r.oid) || ')', ''),
    obj_description(p.oid, 'pg_policy')
  from relations r join pg_policy p on p.polrelid = r.oid
  union all
  select r.name, 6, '', 'query of view ' || r.name, pg_get_viewdef(r.oid), null
  from relations r where r.relkind in ('v', 'm')
  union all
  select r.name, 7, '', 'values of sequence ' || r.name, format('%s from %s to %s start %s increment %s cache %s%s', q.seqtypid::regtype, q.seqmin, q.seqmax, q.seqstart,
    q.seqincrement, q.seqcache, case when q.seqcycle then ' cycle' else '' end), null
  from relations r join pg_sequence q on q.seqrelid = r.oid
  union all
  select s.nspname || '.' || ty.typname, 0, '', 'type ' || s.nspname || '.' || ty.typname, case ty.typtype
      when 'e' then 'enum ' || (select string_agg(e.enumlabel, ', ' order by e.enumsortorder) from pg_enum e where e.enumtypid = ty.oid)
      when 'd' then 'domain ' || format_type(ty.typbasetype, ty.typtypmod)
        || coalesce((select string_agg(' ' || pg_get_constraintdef(c.oid), '' order by c.conname) from pg_constraint c where c.contypid = ty.oid and c.contype <> 'n'), '')
      else ty.typtype::text end, obj_description(ty.oid, 'pg_type')
  from schemas s join pg_type ty on ty.typnamespace = s.oid and ty.typtype not in ('b', 'c')
  union all
  select s.nspname || '.' || p.proname, 8, oidvectortypes(p.proargtypes), 'function ' || s.nspname || '.' || p.proname || '(' || oidvectortypes(p.proargtypes) || ')',
    rtrim(pg_get_functiondef(p.oid), e'\n'), obj_description(p.oid, 'pg_proc')
  from schemas s join pg_proc p on p.pronamespace = s.oid and p.prokind in ('f', 'p')
)
select subject, line, coalesce(regexp_replace(comment, '\s+', ' ', 'g'), '') from lines order by object collate "C", kind, name collate "C"`
